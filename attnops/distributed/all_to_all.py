"""Attention over a divided sequence by exchanging heads: each rank attends over the whole sequence with its heads."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnops.distributed.faults import lost_ranks
from attnops.distributed.layout import Layout
from attnops.distributed.priors import Priors


def heads_of(heads: int, rank: int, world: int) -> slice:
    """The heads that a rank attends with."""
    return slice(rank * heads // world, (rank + 1) * heads // world)


def require_shares(heads: int, kv_heads: int, world: int, priors: Priors) -> None:
    """Raise `ValueError` where heads cannot be shared out.

    Raises:
        ValueError: heads that ranks do not divide; a bias or score that does work on all heads at once.
    """
    for name, count in (("query", heads), ("key", kv_heads)):
        if count % world:
            raise ValueError(
                f"{name} has {count} heads, which {world} ranks cannot share out; with method='all_to_all' they must "
                "divide, method='ring' takes any number"
            )
    for prior in (priors.bias, priors.score):
        if prior is not None and prior.binds:
            raise ValueError(
                f"{prior} does work on all heads at once, which method='all_to_all' divides; method='ring' takes it"
            )


def to_heads(tensor: Tensor, group: dist.ProcessGroup, layout: Layout) -> Tensor:
    """This rank's tokens of all heads, `[*B, H, N/W, D]`, to all tokens of its heads, `[*B, H/W, N, D]`."""
    world = group.size()
    sent = list(torch.unflatten(tensor, -3, (world, -1)).movedim(-4, 0).unbind(0))
    shapes = [(*tensor.shape[:-3], tensor.shape[-3] // world, count, tensor.shape[-1]) for count in layout.lengths]
    return torch.cat(_exchange(sent, shapes, group), -2)


def to_tokens(tensor: Tensor, group: dist.ProcessGroup, layout: Layout) -> Tensor:
    """The way back: all tokens of this rank's heads, `[*B, H/W, N, …]`, to its tokens of all heads."""
    sent = list(torch.split(tensor, list(layout.lengths), -2))
    own = (*tensor.shape[:-2], layout.lengths[group.rank()], tensor.shape[-1])
    return torch.cat(_exchange(sent, [own] * group.size(), group), -3)


def _exchange(sent: list[Tensor], shapes: list[tuple[int, ...]], group: dist.ProcessGroup) -> tuple[Tensor, ...]:
    """One all-to-all: `sent[r]` to rank r, a tensor of `shapes[r]` from it; differentiable, by the way back."""
    received: tuple[Tensor, ...] = _AllToAll.apply(group, shapes, *sent)  # type: ignore[no-untyped-call]
    return received


class _AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, group: dist.ProcessGroup, shapes: list[tuple[int, ...]], *sent: Tensor) -> tuple[Tensor, ...]:
        ctx.group, ctx.shapes = group, [tuple(x.shape) for x in sent]
        return _all_to_all(group, shapes, sent)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        return (None, None, *_all_to_all(ctx.group, ctx.shapes, grads))


def _all_to_all(
    group: dist.ProcessGroup, shapes: list[tuple[int, ...]], sent: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    flat = torch.cat([x.reshape(-1) for x in sent])
    sizes = [torch.Size(shape).numel() for shape in shapes]
    received = flat.new_empty(sum(sizes))
    with lost_ranks("context_attend"):
        dist.all_to_all_single(received, flat, sizes, [x.numel() for x in sent], group=group)
    return tuple(part.view(shape) for part, shape in zip(torch.split(received, sizes), shapes, strict=True))
