"""The halo exchange: rows to the ranks that need them, and their gradients home."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor

from attnops.distributed.agreement import agree
from attnops.distributed.faults import lost_ranks
from attnops.distributed.halo import Halo, HaloPlan, require_parts


def halo_exchange(rows: Tensor, plan: HaloPlan | Halo) -> Tensor:
    """The rows that a rank's edges need: its own, and behind them those that other ranks hold.

    Each rank sends every row once to each rank that needs it (all-to-all). Backward, the gradient of a row that was
    sent comes home and is added to its own, in float32 at least and in the order of ranks, so that the same run gives
    the same bits; every rank of the group takes part in the backward pass, whatever its loss. Differentiable any number
    of times.

    Args:
        rows: `[n, …]`, one a key that this rank holds (`plan.keys.own`); any dtype.
        plan: from `plan_halo`.

    Returns:
        `[n + h, …]`, one a row of `plan.keys.held`.

    Raises:
        ValueError: rows of another number; a group of another size than the plan's.
        DisagreementError: other dtypes, widths or plans on other ranks; some require a gradient and some do not.
        LostRankError: another rank ended or did not join in time.

    Example:
        >>> import attnops, torch
        >>> from attnops.distributed import halo_exchange, partition, plan_halo
        >>> ring = attnops.Edges(torch.stack([torch.arange(6), torch.arange(6).roll(-1)]), 6, 6)
        >>> plan = plan_halo(ring, partition(ring, parts=1, method="range"))        # alone: nothing to exchange
        >>> halo_exchange(torch.randn(6, 8), plan).shape
        torch.Size([6, 8])
    """
    halo = plan.keys if isinstance(plan, HaloPlan) else plan
    if not isinstance(halo, Halo):
        refuse("halo_exchange", TypeError(f"plan is {type(plan).__name__}; it must be from plan_halo"))
    refusal = _refusal(rows, halo)
    same: dict[str, object] = {"plan": halo.name}
    if refusal is None:
        same |= {"dtype": rows.dtype, "width": list(rows.shape[1:]), "gradient": needs_gradient(rows)}
    with lost_ranks("halo_exchange"):
        agree("halo_exchange", same, halo.group, refusal=refusal, device=_device(rows))
    return exchange(halo, rows)[0]


def exchange(halo: Halo, *rows: Tensor) -> tuple[Tensor, ...]:
    """`halo_exchange` of several tensors at once, on which the ranks agree."""
    return exchange_each((halo,) * len(rows), rows)


def exchange_each(halos: Sequence[Halo], rows: Sequence[Tensor]) -> tuple[Tensor, ...]:
    """As `exchange`, each tensor of the nodes of its own halo; neighbours in the list of one halo go in one message.

    What is exchanged together has one place in the backward pass, so that no rank skips it where its own edges happen
    to give one of the tensors no gradient.
    """
    if not rows or len(halos[0].send_counts) == 1:
        return tuple(rows)
    held: tuple[Tensor, ...] = _Exchange.apply(tuple(halos), *rows)  # type: ignore[no-untyped-call]
    return held


def needs_gradient(*tensors: Tensor) -> list[bool]:
    """Which of them will have a backward pass."""
    return [torch.is_grad_enabled() and tensor.requires_grad for tensor in tensors]


class _Exchange(torch.autograd.Function):
    """Own rows to held rows."""

    @staticmethod
    def forward(ctx: Any, halos: tuple[Halo, ...], *rows: Tensor) -> tuple[Tensor, ...]:
        ctx.halos = halos
        sent = [each.index_select(0, halo.send_rows) for halo, each in zip(halos, rows, strict=True)]
        received = _all_to_all(halos, sent)
        held = tuple(torch.cat([own, others]) for own, others in zip(rows, received, strict=True))
        exact = (each for each in held if not each.is_floating_point() and not each.is_complex())
        ctx.mark_non_differentiable(*exact)
        return held

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        needed = ctx.needs_input_grad[1:]
        halos = tuple(halo for halo, need in zip(ctx.halos, needed, strict=True) if need)
        wanted = [gradient for gradient, need in zip(gradients, needed, strict=True) if need]
        home = iter(_BringHome.apply(halos, *wanted))  # type: ignore[no-untyped-call]
        return None, *(next(home) if need else None for need in needed)


class _BringHome(torch.autograd.Function):
    """Held rows to own rows: what others hold of a row is added to it. The transpose of the exchange."""

    @staticmethod
    def forward(ctx: Any, halos: tuple[Halo, ...], *held: Tensor) -> tuple[Tensor, ...]:
        ctx.halos = halos
        home = _all_to_all(halos, [each[halo.num_own :] for halo, each in zip(halos, held, strict=True)], home=True)
        own = [each[: halo.num_own] for halo, each in zip(halos, held, strict=True)]
        return tuple(_added(*each) for each in zip(own, home, halos, strict=True))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        return None, *_Exchange.apply(ctx.halos, *gradients)  # type: ignore[no-untyped-call]


def _added(own: Tensor, others: Tensor, halo: Halo) -> Tensor:
    """What came home, added to the rows that were sent: a rank at a time, so that the order of the sum is fixed."""
    total = own.to(torch.promote_types(own.dtype, torch.float32), copy=True)
    counts = list(halo.send_counts)
    parts = torch.split(others.to(total.dtype), counts)
    for rows, part in zip(torch.split(halo.send_rows, counts), parts, strict=True):
        total.index_add_(0, rows, part)  # no row comes twice from one rank
    return total.to(own.dtype)


def _all_to_all(halos: Sequence[Halo], rows: Sequence[Tensor], home: bool = False) -> list[Tensor]:
    """`rows`, by the rank that receives them, to what the ranks sent here, by rank; or the same way home."""
    received: list[Tensor] = []
    for halo, run in groupby(zip(halos, rows, strict=True), key=lambda pair: pair[0]):
        to, of = (halo.receive_counts, halo.send_counts) if home else (halo.send_counts, halo.receive_counts)
        received += _message([each for _, each in run], list(to), list(of), halo)
    return received


def _message(rows: list[Tensor], to: list[int], of: list[int], halo: Halo) -> list[Tensor]:
    """One message a pair of ranks: all that one node has lies in one row of bytes, whatever the dtypes."""
    flat = [each.reshape(len(each), each.shape[1:].numel()).contiguous().view(torch.uint8) for each in rows]
    widths = [each.shape[1] for each in flat]
    sent = torch.cat(flat, dim=1)
    received = sent.new_empty(sum(of), sum(widths))
    with lost_ranks("halo exchange"):
        dist.all_to_all_single(received, sent, of, to, group=halo.group)
    parts = torch.split(received, widths, dim=1)
    return [_read(part, like) for part, like in zip(parts, rows, strict=True)]


def _read(row_bytes: Tensor, like: Tensor) -> Tensor:
    """Rows of bytes as rows of that dtype and shape."""
    shape = (len(row_bytes), *like.shape[1:])
    return row_bytes.contiguous().view(like.dtype).view(shape) if row_bytes.numel() else like.new_empty(shape)


def refuse(call: str, error: Exception) -> NoReturn:
    """Raise where there is no plan, which would say with whom; those who wait in the default group are told."""
    with lost_ranks(call):
        agree(call, {"plan": None}, refusal=error, device=_meeting_place())
    raise error


def _meeting_place() -> torch.device | str:
    """Where a message of the default group may lie."""
    gpus = dist.is_initialized() and torch.cuda.is_available() and "nccl" in dist.get_backend()
    return torch.device("cuda", torch.cuda.current_device()) if gpus else "cpu"


def _device(rows: object) -> torch.device | str:
    return rows.device if isinstance(rows, Tensor) else "cpu"


def _refusal(rows: Tensor, halo: Halo) -> Exception | None:
    """Why these rows cannot be exchanged, to be raised on all ranks together."""
    if not isinstance(rows, Tensor):
        return TypeError(f"rows is {type(rows).__name__}; it must be a tensor [n, …]")
    if rows.layout != torch.strided:
        return TypeError(f"rows is {rows.layout}; it must be strided")
    if rows.ndim == 0 or rows.shape[0] != halo.num_own:
        return ValueError(f"rows has shape {list(rows.shape)}; it must be [n = {halo.num_own}, …], one a row of own")
    return group_refusal(halo)


def group_refusal(halo: Halo) -> Exception | None:
    """Why this process cannot follow the plan."""
    try:
        require_parts(len(halo.send_counts), None, halo.group)
    except ValueError as error:
        return error
    rank = dist.get_rank(halo.group) if dist.is_initialized() else 0
    return None if rank == halo.rank else ValueError(f"plan is of rank {halo.rank}; this process is rank {rank}")
