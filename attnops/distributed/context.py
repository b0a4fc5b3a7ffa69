"""`attend` over a sequence that is divided over ranks."""

from __future__ import annotations

import math

import torch
import torch.distributed as dist
from torch import Tensor

from attnops.arguments import read_arguments
from attnops.biases.base import Bias, TensorBias
from attnops.biases.rotary import Rotary, longest
from attnops.captured import captured_tensors
from attnops.checks import require_flag
from attnops.coords import Coords, resolve_coords
from attnops.distributed.agreement import agree
from attnops.distributed.all_to_all import heads_of, require_shares, to_heads, to_tokens
from attnops.distributed.division import Division, divide
from attnops.distributed.layout import Group, Layout, gather, join, meeting_place, process_group, require_order
from attnops.distributed.placed import Part, place_bias, place_pattern, place_score
from attnops.distributed.priors import Priors
from attnops.distributed.ring import Ring, on_gpu, ring_attend
from attnops.operator import attend
from attnops.patterns.base import Pattern
from attnops.planner import DEFAULT_BUDGET
from attnops.problem import Call
from attnops.scores.base import Score
from attnops.states import AttentionOutput, merge

METHODS = ("ring", "all_to_all")


def context_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mesh: Group = None,
    order: str = "contiguous",
    method: str = "ring",
    pattern: Pattern | Tensor | None = None,
    bias: Bias | Pattern | Tensor | None = None,
    score: Score | None = None,
    scale: float | None = None,
    coords: Coords | tuple[Coords, Coords] | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    backend: str = "auto",
) -> Tensor | AttentionOutput:
    """`attend` over a sequence that is divided over ranks; each passes its own tokens and gets its own rows.

    All ranks call it, with `query`, `key`, `value` and `coords` of their own tokens, and with the same `pattern`,
    `bias`, `score` and numbers: those that one process would pass for the whole sequence. What reads positions or
    other coords finds them, for they travel with the keys; what reads storage rows (`Mask`, `Padding`, `BlockMask`,
    `GlobalTokens`, a tensor bias) is written in rows of the whole. Positions that are not given are the end-aligned
    rows of the whole. Forward and every gradient equal one process's up to rounding.

    With "ring", blocks of keys go to the ranks that may attend some of them, the next while the current one is
    computed, and partial results are merged; keys that a pattern empties for a rank are not sent to it. With
    "all_to_all", each rank gets all tokens of its heads: four exchanges, whatever the pattern.

    A rank's gradients of bias and score parameters are those of its own queries: one process's are their sum over
    ranks. `DistributedDataParallel` and `fully_shard` average over ranks, which fits a loss that is the mean of the
    ranks' losses; where the loss is their sum, sum the gradients. The backward communicates too, so every rank must
    call it if one does.

    Args:
        query, key, value: `[*B, H, Nq, D]`, `[*B, Hkv, Nk, D]`, `[*B, Hkv, Nk, Dv]` of this rank's tokens. Ranks may
            hold different numbers of them, also none.
        mesh: a one-dimensional `DeviceMesh`, a process group, or None for all ranks.
        order: which tokens a rank holds. "contiguous": rank 0 the first, rank 1 the next. "zigzag": of 2W chunks, rank
            r holds chunks r and 2W - 1 - r (`shard_sequence` cuts them), so that causal work is balanced.
        method: "ring" or "all_to_all".
        pattern, bias, score, scale, dropout, return_lse, backend: as `attend` takes them, for the whole sequence. Edge
            lists are divided by nodes instead.
        coords: of this rank's tokens, or a pair (queries, keys).

    Raises:
        DisagreementError: ranks that differ in anything that must be the same, on every rank, before anything is sent.
        ValueError, TypeError: a bad argument, by name; edge lists; heads that all_to_all cannot divide.

    Source: Liu, Zaharia, Abbeel 2023 (ring), arXiv:2310.01889; Jacobs et al. 2023 (all-to-all), arXiv:2309.14509;
    zig-zag order: Brandon et al. 2023, arXiv:2311.09431, and Llama 3, arXiv:2407.21783.

    Example:
        One rank alone; `torchrun` starts several:

        >>> import tempfile, torch, torch.distributed as dist, attnops
        >>> from attnops.distributed import context_attend
        >>> q, k, v = torch.randn(3, 2, 8, 16)                                      # [H, N, D]
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        ...     out = context_attend(q, k, v, pattern=attnops.Causal(), order="zigzag")
        ...     dist.destroy_process_group()
        >>> torch.allclose(out, attnops.attend(q, k, v, pattern=attnops.Causal()), atol=1e-5)
        True
    """
    group = process_group(mesh)
    try:
        require_method(method)
        require_order(order)
        require_flag(return_lse=return_lse)
        priors = Priors.of(pattern, bias, score)
    except (ValueError, TypeError) as error:  # raised here, once the others know
        agree("context_attend", {}, group, refusal=error, device=meeting_place(query, group))
        raise
    division = divide(group, order, query, key, value, priors, coords, scale, dropout, method, backend)
    return divided_attend(
        division, query, key, value, priors,
        method=method, scale=scale, dropout=dropout, return_lse=return_lse, backend=backend,
    )  # fmt: skip


def require_method(method: str) -> None:
    """Raise `ValueError` on a method that is none."""
    if method not in METHODS:
        raise ValueError(f"method is {method!r}; it must be one of {', '.join(map(repr, METHODS))}")


def divided_attend(
    division: Division,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    priors: Priors,
    *,
    method: str = "ring",
    scale: float | None = None,
    dropout: float = 0.0,
    return_lse: bool = False,
    backend: str = "auto",
) -> Tensor | AttentionOutput:
    """Attention over what is already divided and agreed on."""
    dtype, device = query.dtype, query.device.type
    heads = query.shape[-3]
    sizes = division.batch_shape, heads, division.queries.total, division.key_layout.total, query.device
    priors.pattern.check(*sizes)
    for term in () if priors.bias is None else priors.bias.terms:
        if isinstance(term, TensorBias):
            _check_table(term.values, (*division.batch_shape, *sizes[1:4]))
    if device != "meta" and torch.is_autocast_enabled(device):
        lower = torch.get_autocast_dtype(device)
        query, key, value = (x if x.dtype == torch.float64 else x.to(lower) for x in (query, key, value))
    with torch.autocast(device, enabled=False):
        query, key = _rotate(division, priors, query, key)
        run = _ring if method == "ring" else _all_to_all
        out, lse = run(division, query, key, value, priors, scale, dropout, backend)
        for sink in priors.sinks:
            alive = torch.isfinite(lse)
            logit = torch.where(alive, sink.weight.to(lse.dtype).unsqueeze(-1), float("-inf"))
            joined = merge([AttentionOutput(out, lse), AttentionOutput(torch.zeros_like(out), logit)])
            assert joined.lse is not None
            out, lse = joined.out, joined.lse
    return AttentionOutput(out.to(dtype), lse) if return_lse else out.to(dtype)


def _check_table(values: Tensor, want: tuple[int, ...]) -> None:
    sizes = tuple(values.shape)
    if len(sizes) > len(want) or any(a not in (1, b) for a, b in zip(reversed(sizes), reversed(want), strict=False)):
        raise ValueError(
            f"bias has shape {list(sizes)}; it must broadcast to [*B, H, Nq, Nk] of the whole sequence, {list(want)}"
        )


def _rotate(division: Division, priors: Priors, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
    """Turn this rank's own vectors once, before they are sent."""
    if not priors.rotations:
        return query, key
    rank, batch = division.group.rank(), division.batch_shape
    sides = division.local, division.keys[rank]
    flat = resolve_coords(sides, batch, query.shape[-2], key.shape[-2], query.device)
    shapes = query.shape, key.shape
    query, key = (x.reshape(math.prod(batch), *x.shape[-3:]) for x in (query, key))  # a rank may hold no tokens
    for term in priors.rotations:
        if isinstance(term, Rotary) and term.depends_on_length:
            length = _longest(division, query.shape[0])
            query, key = (
                term.turn(x, side.data["position"], length) for x, side in zip((query, key), flat, strict=True)
            )
        else:
            query, key = term.rotate(query, key, flat)
    return query.reshape(shapes[0]), key.reshape(shapes[1])


def _longest(division: Division, batch: int) -> Tensor:
    """`[B]`: 1 + the largest position of each batch row, on any rank."""
    positions = [division.local.data["position"], *(side.data["position"] for side in division.keys)]
    flat = [p.reshape(-1, p.shape[-1]) if p.ndim > 1 else p.unsqueeze(0) for p in positions]
    held = [p.expand(batch, -1) for p in flat if p.shape[-1]]
    length = longest(*held).float() if held else torch.zeros(batch, device=division.device)
    if division.group.size() > 1:
        dist.all_reduce(length, dist.ReduceOp.MAX, group=division.group)
    return length


def _ring(
    division: Division,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    priors: Priors,
    scale: float | None,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    rank = division.group.rank()
    visits, wanted = division.routes(priors.pattern)
    captured = _captured(division, query, key, value, priors, scale) if torch.is_grad_enabled() else {}
    key_rows = [division.key_layout.rows(source).to(query.device) for source in range(division.group.size())]
    ring = Ring(
        division.group, visits, wanted,
        division.queries.rows(rank).to(query.device), key_rows,
        *_detached(division, captured), priors.pattern, priors.bias, priors.score, scale, dropout, backend,
        [inner for _, inner in captured.values()],
    )  # fmt: skip
    return ring_attend(ring, query, key, value, [outer for outer, _ in captured.values()])


def _captured(
    division: Division, query: Tensor, key: Tensor, value: Tensor, priors: Priors, scale: float | None
) -> dict[int, tuple[Tensor, Tensor]]:
    """Tensors of bias, score and coords that gradients flow into, by id, each with the one that blocks read.

    Blocks read coords as leaves of their own: those of the keys came from those of the queries, and a gradient must not
    go both ways.
    """
    if priors.bias is None and priors.score is None:
        return {}
    part = division.part(division.group.rank())
    whole = priors.bias, priors.score
    bias, score = place_bias(whole[0], part), place_score(whole[1], part)
    found: dict[int, tuple[Tensor, Tensor]] = {}
    for owner in whole:
        for module in () if owner is None else owner.modules():
            for tensor in (*module.parameters(recurse=False), *vars(module).values()):
                if isinstance(tensor, Tensor) and tensor.requires_grad:
                    found[id(tensor)] = tensor, tensor
    for side in (division.local, *division.keys):
        found.update({id(x): (x, x.detach().requires_grad_()) for x in side.data.values() if x.requires_grad})
    if query.shape[-2] and key.shape[-2] and not (bias is not None and bias.binds):  # what closures reach
        coords = division.local, division.keys[division.group.rank()]
        a = read_arguments(query, key, value, None, bias, score, scale, coords, 0.0, True, False, DEFAULT_BUDGET, False)
        q, k, v = (x.reshape(a.problem.batch, *x.shape[-3:]) for x in (a.query, a.key, a.value))
        call = Call(q, k, v, a.pattern, a.bias, a.score, a.scale, a.coords, 0.0, a.batch_shape, a.problem)
        for tensor in captured_tensors(call):
            if tensor.is_leaf:
                found[id(tensor)] = tensor, tensor
    return found


def _detached(division: Division, captured: dict[int, tuple[Tensor, Tensor]]) -> tuple[Coords, list[Coords]]:
    """The coords of this rank's queries and of each rank's keys, as blocks read them."""
    sides = [
        Coords(**{name: captured[id(x)][1] if id(x) in captured else x.detach() for name, x in side.data.items()})
        for side in (division.local, *division.keys)
    ]
    return sides[0], sides[1:]


def _all_to_all(
    division: Division,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    priors: Priors,
    scale: float | None,
    dropout: float,
    backend: str,
) -> tuple[Tensor, Tensor]:
    """All tokens of this rank's heads, in the order of the whole, attended to as one process would."""
    group, queries, keys = division.group, division.queries, division.key_layout
    require_shares(query.shape[-3], key.shape[-3], group.size(), priors)
    own = heads_of(query.shape[-3], group.rank(), group.size())
    seed = int(torch.randint(2**62, ()).item()) if dropout > 0 else 0
    query = _in_order(to_heads(query, group, queries), queries)
    key, value = (_in_order(to_heads(x, group, keys), keys) for x in (key, value))
    part = Part(heads=own)
    coords = _whole_coords(division)
    with torch.random.fork_rng(on_gpu(query), enabled=dropout > 0):
        if dropout > 0:  # ranks may have drawn the same seed, and their heads must not drop the same pairs
            torch.manual_seed(seed + group.rank())
        out = attend(
            query, key, value,
            pattern=place_pattern(priors.pattern, part), bias=place_bias(priors.bias, part),
            score=place_score(priors.score, part), scale=scale, coords=coords,
            dropout=dropout, return_lse=True, backend=backend,
        )  # fmt: skip
    assert isinstance(out, AttentionOutput) and out.lse is not None
    order = _by_rank(queries).to(query.device)
    both = [to_tokens(x.index_select(-2, order), group, queries) for x in (out.out, out.lse.unsqueeze(-1))]
    return both[0], both[1].squeeze(-1)


def _in_order(tensor: Tensor, layout: Layout) -> Tensor:
    return join([tensor], layout, tensor.ndim - 2)


def _by_rank(layout: Layout) -> Tensor:
    return torch.cat([layout.rows(rank) for rank in range(len(layout.lengths))])


def _whole_coords(division: Division) -> tuple[Coords, Coords] | None:
    """Coords of all tokens; None where they are the positions that `attend` fills in itself."""
    group, sides = division.group, []
    locals_: list[Coords] = division.keys
    keys = {name: join([x.data[name] for x in locals_], division.key_layout, -1) for name in locals_[0].names}
    queries: dict[str, Tensor] = {}
    for name, data in division.local.data.items():
        queries[name] = join(gather(data, group, division.queries, data.ndim - 1), division.queries, -1)
    for data_of in (queries, keys):
        sides.append(Coords(**data_of))
    return sides[0], sides[1]
