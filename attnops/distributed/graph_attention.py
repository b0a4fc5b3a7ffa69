"""`attend` over a graph that is divided over ranks."""

from __future__ import annotations

from collections.abc import Mapping

from torch import Tensor

from attnops.biases import Bias
from attnops.checks import require_flag
from attnops.coords import Coords
from attnops.distributed.agreement import agree
from attnops.distributed.exchange import exchange, group_refusal, needs_gradient, refuse
from attnops.distributed.faults import lost_ranks
from attnops.distributed.halo import HaloPlan
from attnops.operator import attend
from attnops.patterns import BlockMask, Edges, GlobalTokens, Mask, Padding, Pattern
from attnops.scores import Score
from attnops.states import AttentionOutput

OF_STORAGE_ROWS = (BlockMask, Edges, GlobalTokens, Mask, Padding)  # they read `index`, which is another on each rank


def graph_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    plan: HaloPlan,
    *,
    pattern: Pattern | None = None,
    bias: Bias | Pattern | Tensor | None = None,
    score: Score | None = None,
    scale: float | None = None,
    coords: Coords | tuple[Coords, Coords] | None = None,
    edge_data: Mapping[str, Tensor] | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    return_weights: bool = False,
    backend: str = "auto",
) -> Tensor | AttentionOutput:
    """`attend` over the edges of a graph whose nodes are divided over ranks: each gives its own nodes and gets them.

    Keys and values travel to the ranks whose edges need them in one halo exchange, and with them the coords of keys;
    their gradients travel home. Output and gradients are those of one process. Gradients of what all ranks hold alike,
    the parameters of biases and scores, are of this rank's edges alone: sum them over ranks, as for any such loss.

    A position that is not given is that of the node in the whole graph. `index` is the row on this rank: patterns and
    biases that know nodes by number read a coord that you give, such as `Coords(node=plan.queries)`.

    Args:
        query: `[*B, H, n_q, D]`, the queries of `plan.queries`.
        key: `[*B, Hkv, n, D]`, the keys of `plan.keys.own`. value: `[*B, Hkv, n, Dv]`.
        plan: from `plan_halo`.
        pattern: what else a pair of an edge must satisfy, such as `Causal()`.
        bias: as of `attend`; a tensor is `[*B, H, E_r]`, of this rank's edges: `bias[:, plan.edge]`.
        coords: of this rank's own nodes; one where queries and keys are one set, or a pair.
        edge_data: data of this rank's edges by name, `[E_r]` or `[E_r, F]`, beside and instead of those of the plan.
        score, scale, dropout, return_lse, return_weights, backend: as of `attend`; weights are `[*B, H, E_r]`.

    Returns:
        `[*B, H, n_q, Dv]`, or an `AttentionOutput`.

    Raises:
        ValueError, TypeError: a bad argument, by name; a pattern or bias that cannot be known on one rank.
        DisagreementError: other shapes, dtypes, priors or plans on other ranks.
        LostRankError: another rank ended or did not join in time.

    Example:
        >>> import attnops, torch
        >>> from attnops.distributed import graph_attend, partition, plan_halo
        >>> ring = attnops.Edges(torch.stack([torch.arange(6), torch.arange(6).roll(-1)]), 6, 6)
        >>> plan = plan_halo(ring, partition(ring, parts=1, method="range"))           # as many parts as ranks
        >>> query, key, value = torch.randn(3, 2, len(plan.queries), 4)                # [H, n, D]
        >>> graph_attend(query, key, value, plan).shape
        torch.Size([2, 6, 4])
    """
    if not isinstance(plan, HaloPlan):
        refuse("graph_attend", TypeError(f"plan is {type(plan).__name__}; it must be from plan_halo"))
    halo, edges = plan.keys, plan.edges
    refusal: Exception | None = group_refusal(halo)
    sides = (Coords(), Coords())
    same: dict[str, object] = {"plan": halo.name}
    try:
        _check_vectors(query, key, value, plan)
        _check_priors(pattern, bias, plan, query.shape[-3])
        require_flag(return_lse=return_lse, return_weights=return_weights)
        sides = _sides(coords, plan)
        if edge_data is not None:
            if not isinstance(edge_data, Mapping):
                raise TypeError(f"edge_data is {type(edge_data).__name__}; it must be a dict of tensors by name")
            edges = plan.edges.with_data(**edge_data)
        same |= {
            "dtype": key.dtype,
            "batch": list(key.shape[:-3]),
            "heads": (query.shape[-3], key.shape[-3]),
            "D, Dv": (key.shape[-1], value.shape[-1]),
            "pattern": pattern,
            "bias": _kind(bias),
            "score": _kind(score),
            "scale": scale,
            "coords of keys": [(name, data.dtype, list(data.shape[:-1])) for name, data in sides[1].data.items()],
            "dropout": dropout,
            "backend": backend,
            "gradients": needs_gradient(key, value, *sides[1].data.values()),
        }
    except (TypeError, ValueError) as error:
        refusal = refusal or error
    with lost_ranks("graph_attend"):
        device = key.device if isinstance(key, Tensor) else "cpu"
        agree("graph_attend", same, halo.group, refusal=refusal, device=device)
    of_queries, of_keys = sides
    held_key, held_value, *held_coords = exchange(
        halo, key.movedim(-2, 0), value.movedim(-2, 0), *(data.movedim(-1, 0) for data in of_keys.data.values())
    )
    held = {name: data.movedim(0, -1) for name, data in zip(of_keys.names, held_coords, strict=True)}
    return attend(
        query,
        held_key.movedim(0, -2),
        held_value.movedim(0, -2),
        pattern=edges if pattern is None else edges & pattern,
        bias=bias,
        score=score,
        scale=scale,
        coords=(
            _with_position(of_queries, plan.queries + plan.num_keys - plan.num_queries),
            _with_position(Coords(**held), halo.held),
        ),
        dropout=dropout,
        return_lse=return_lse,
        return_weights=return_weights,
        backend=backend,
    )


# ----------------------------------------------------------------------------------------------- coords
def _sides(coords: Coords | tuple[Coords, Coords] | None, plan: HaloPlan) -> tuple[Coords, Coords]:
    """Coords of this rank's queries and of its own keys."""
    if coords is None:
        return Coords(), Coords()
    if isinstance(coords, Coords):
        if not plan.one_set:
            raise ValueError("coords is one Coords, but queries and keys are two sets of nodes: give a pair")
        coords = (coords, coords)
    if not isinstance(coords, tuple) or len(coords) != 2 or not all(isinstance(side, Coords) for side in coords):
        raise TypeError(f"coords is {type(coords).__name__}; it must be a Coords or a pair (Coords, Coords)")
    for side, each, size in (("query", coords[0], len(plan.queries)), ("key", coords[1], plan.keys.num_own)):
        if each.length is not None and each.length != size:
            raise ValueError(f"coords of the {side} side have {each.length} nodes; this rank holds {size}")
    return coords


def _with_position(coords: Coords, position: Tensor) -> Coords:
    """With the position in the whole graph, unless one is given."""
    return coords if "position" in coords else Coords(**coords.data, position=position)


# ----------------------------------------------------------------------------------------------- checks
def _check_vectors(query: Tensor, key: Tensor, value: Tensor, plan: HaloPlan) -> None:
    sizes = (len(plan.queries), plan.keys.num_own, plan.keys.num_own)
    for (name, tensor), size in zip((("query", query), ("key", key), ("value", value)), sizes, strict=True):
        if not isinstance(tensor, Tensor):
            raise TypeError(f"{name} is a {type(tensor).__name__}; it must be a tensor [*B, H, N, D]")
        if tensor.ndim < 3 or tensor.shape[-2] != size:
            raise ValueError(f"{name} has shape {list(tensor.shape)}; it must be [*B, H, N = {size}, D] on this rank")
        if tensor.dtype != query.dtype or tensor.device != query.device:
            given, first = (f"{each.dtype} on {each.device}" for each in (tensor, query))
            raise TypeError(f"{name} is {given}; it must be {first}, as query is")
    if query.shape[:-3] != key.shape[:-3] or query.shape[-1] != key.shape[-1] or key.shape[:-1] != value.shape[:-1]:
        shapes = ", ".join(str(list(tensor.shape)) for tensor in (query, key, value))
        raise ValueError(f"query, key and value have shapes {shapes}; batch, D and heads must fit")


def _check_priors(pattern: Pattern | None, bias: Bias | Pattern | Tensor | None, plan: HaloPlan, heads: int) -> None:
    if pattern is not None and not isinstance(pattern, Pattern):
        raise TypeError(
            f"pattern is a {type(pattern).__name__}; it must be a Pattern or None: the edges are the plan's"
        )
    added = bias if isinstance(bias, Pattern) else bias.pattern if isinstance(bias, Bias) else None
    for each in (pattern, added):
        for leaf in each.leaves if isinstance(each, Pattern) else ():
            if isinstance(leaf, OF_STORAGE_ROWS):
                raise ValueError(
                    f"pattern {type(leaf).__name__} reads index, the row of a node, which differs from rank to rank: "
                    "write it over a coord that you give, or as edge data"
                )
    for term in bias.terms if isinstance(bias, Bias) else ():
        if term.heads is not None and term.heads != heads:
            raise ValueError(f"bias {type(term).__name__} has {term.heads} heads; query has {heads}")
        if getattr(term, "depends_on_length", False):
            raise ValueError(f"bias {term} depends on the largest position of all nodes, which one rank does not know")
    if isinstance(bias, Tensor) and bias.ndim and bias.shape[-1] not in (1, plan.edges.num_edges):
        count = plan.edges.num_edges
        raise ValueError(f"bias has shape {list(bias.shape)}; it must be [*B, H, E_r = {count}], of this rank's edges")


def _kind(prior: object) -> object:
    """What ranks compare of a bias or score: its kind, not its numbers, which are this rank's."""
    if isinstance(prior, Bias):
        return [type(term).__name__ for term in prior.terms], prior.pattern
    return prior if isinstance(prior, Pattern) else type(prior).__name__
