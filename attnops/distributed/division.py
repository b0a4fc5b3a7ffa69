"""What ranks agree on before a divided call, and what each then knows of the others."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor

from attnops.arguments import read_arguments
from attnops.coords import Coords, resolve_coords
from attnops.distributed.agreement import agree
from attnops.distributed.faults import lost_ranks
from attnops.distributed.layout import Layout, gather, meeting_place
from attnops.distributed.placed import Part, on_cpu, place_pattern
from attnops.distributed.priors import Priors
from attnops.distributed.routes import Visit, visit
from attnops.patterns.base import Pattern
from attnops.patterns.segments import Padding
from attnops.planner import DEFAULT_BUDGET


@dataclass(eq=False)
class Division:
    """How queries and keys are divided, and the coords of every rank's keys; positions are always there.

    `local` holds this rank's query coords, `keys` those of each rank's keys.
    """

    group: dist.ProcessGroup
    queries: Layout
    key_layout: Layout
    local: Coords
    keys: list[Coords]
    batch_shape: tuple[int, ...]
    device: torch.device
    _routes: list[tuple[Pattern, tuple[list[Visit | None], list[slice | None]]]] = field(default_factory=list)

    def part(self, source: int, device: torch.device | None = None) -> Part:
        """Where this rank's queries and the keys of `source` lie in the whole."""
        device = device or self.device
        return Part(self.queries.rows(self.group.rank()).to(device), self.key_layout.rows(source).to(device))

    def routes(self, pattern: Pattern) -> tuple[list[Visit | None], list[slice | None]]:
        """What this rank needs of each, and what each needs of it; told once, kept for the next layer."""
        for known, routes in self._routes:
            if known is pattern:
                return routes
        rank, world = self.group.rank(), self.group.size()
        visits: list[Visit | None] = []
        local = self.local.to("cpu")
        for source in range(world):
            placed = place_pattern(on_cpu(pattern), self.part(source, torch.device("cpu")))
            coords = local, self.keys[source].to("cpu")
            sizes = self.queries.lengths[rank], self.key_layout.lengths[source]
            visits.append(visit(placed, coords, self.batch_shape, *sizes))
        needs = [(0, 0) if each is None else (each.keys.start, each.keys.stop) for each in visits]
        told = torch.tensor(needs, device=self.device)
        everyone = [torch.empty_like(told) for _ in range(world)]
        with lost_ranks("context_attend"):
            dist.all_gather(everyone, told, group=self.group)
        spans = [tuple(needed[rank].tolist()) for needed in everyone]
        routes = visits, [slice(*span) if span[0] < span[1] else None for span in spans]
        self._routes.append((pattern, routes))
        return routes


def divide(
    group: dist.ProcessGroup,
    order: str,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    priors: Priors,
    coords: Coords | tuple[Coords, Coords] | None,
    scale: float | None,
    dropout: float,
    method: str,
    backend: str,
) -> Division:
    """Agree on the call, and learn what each rank holds."""
    refusal: Exception | None = None
    same: dict[str, object] = {}
    numbers: tuple[int, ...] = ()
    try:
        query_coords, key_coords = _own_coords(query, key, value, priors, coords, scale, dropout)
        numbers = (query.shape[-2], key.shape[-2])
        wants_grad = torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value))
        same = {
            "order": order, "method": method, "backend": backend, "autocast": _autocast(query),
            "batch shape": tuple(query.shape[:-3]), "heads": query.shape[-3], "key heads": key.shape[-3],
            "D": query.shape[-1], "Dv": value.shape[-1], "dtype": query.dtype, "device": query.device.type,
            "pattern": _contents(priors.pattern), "bias": priors, "score": priors.score, "scale": scale,
            "dropout": dropout,
            "query coords": _kinds(query_coords), "key coords": _kinds(key_coords),
            "whether queries are keys' tokens": query_coords is key_coords, "requires_grad": wants_grad,
            "what learns": _learns(priors),
        }  # fmt: skip
    except Exception as error:  # a prior of a user's own may raise anything; `agree` raises it here
        refusal = error
    device = meeting_place(query, group)
    gathered = agree("context_attend", same, group, numbers=numbers, refusal=refusal, device=device)
    layouts = []
    for place, what in enumerate(("queries", "keys")):
        layout = Layout(tuple(row[place] for row in gathered), order)
        layout.check(what)
        layouts.append(layout)
    return with_coords(group, layouts[0], layouts[1], query_coords, key_coords, tuple(query.shape[:-3]), query.device)


def _own_coords(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    priors: Priors,
    coords: Coords | tuple[Coords, Coords] | None,
    scale: float | None,
    dropout: float,
) -> tuple[Coords, Coords]:
    """This rank's own coords, once all that it can see alone is checked."""
    read_arguments(
        query, key, value, None, None, priors.score, scale, coords, dropout, False, False, DEFAULT_BUDGET, False
    )
    if query.device.type == "meta":
        raise ValueError("query lies on meta; it must hold numbers, which ranks exchange")
    own = (Coords(),) * 2 if coords is None else coords if isinstance(coords, tuple) else (coords, coords)
    for term in () if priors.bias is None else priors.bias.terms:
        if term.heads is not None and term.heads != query.shape[-3]:
            raise ValueError(f"bias {type(term).__name__} has {term.heads} heads; query has {query.shape[-3]}")
        term.check(resolve_coords(coords, *_sizes(query, key)), {})
    return own


def _sizes(query: Tensor, key: Tensor) -> tuple[tuple[int, ...], int, int, torch.device]:
    return tuple(query.shape[:-3]), query.shape[-2], key.shape[-2], query.device


def _kinds(coords: Coords) -> list[tuple[str, object, tuple[int, ...], bool]]:
    return [(name, x.dtype, tuple(x.shape[:-1]), x.requires_grad) for name, x in coords.data.items()]


def _autocast(query: Tensor) -> torch.dtype | None:
    device = query.device.type
    return torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else None


def _contents(pattern: Pattern) -> str:
    """The pattern, and the lengths that it is refused by where they are longer than the whole."""
    lengths = [told(leaf.key_lengths) for leaf in pattern.leaves if type(leaf) is Padding]
    return f"{pattern} of {lengths}" if lengths else str(pattern)


def _learns(priors: Priors) -> list[bool]:
    """Which tensors of bias and score need a gradient; the backward of one rank would wait for the others."""
    owners = [*priors.rotations, *priors.sinks, *(x for x in (priors.bias, priors.score) if x is not None)]
    modules = [module for owner in owners for module in owner.modules()]
    held = [x for module in modules for x in (*module.parameters(recurse=False), *vars(module).values())]
    return [torch.is_grad_enabled() and x.requires_grad for x in held if isinstance(x, Tensor)]


def told(tensor: Tensor | None) -> str:
    """Shape, and two sums that depend on every value and its place; of integers."""
    if tensor is None:
        return "none"
    flat = tensor.detach().long().flatten()
    place = torch.arange(1, flat.numel() + 1, device=flat.device)
    return f"{list(tensor.shape)} with sums {int(flat.sum())}, {int((flat * place).sum())}"


def with_coords(
    group: dist.ProcessGroup,
    queries: Layout,
    keys: Layout,
    query_coords: Coords,
    key_coords: Coords,
    batch_shape: tuple[int, ...],
    device: torch.device,
) -> Division:
    """The division with positions filled in and each rank's key coords gathered."""
    rank = group.rank()
    local = dict(query_coords.data)
    if "position" not in local:
        local["position"] = (queries.rows(rank) + (keys.total - queries.total)).to(device)
    whole: list[dict[str, Tensor]] = [{} for _ in keys.lengths]
    for name, data in key_coords.data.items():
        for source, part in enumerate(gather(data, group, keys, data.ndim - 1)):
            whole[source][name] = part
    for source, carried in enumerate(whole):
        if "position" not in carried:
            carried["position"] = keys.rows(source).to(device)
    every = [Coords(**carried) for carried in whole]
    return Division(group, queries, keys, Coords(**local), every, batch_shape, device)
