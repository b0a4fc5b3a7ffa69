"""Which tokens of a sequence each rank holds, and how they get there and back."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from attnops.coords import Coords
from attnops.distributed.agreement import agree
from attnops.distributed.faults import lost_ranks

ORDERS = ("contiguous", "zigzag")
Group = dist.ProcessGroup | DeviceMesh | None


@dataclass(frozen=True)
class Layout:
    """How many tokens each rank holds, and which.

    `order` "contiguous": rank 0 holds the first `lengths[0]` tokens, rank 1 the next. "zigzag": of 2W chunks as even as
    can be, rank r holds chunks r and 2W - 1 - r, so that under `Causal` all ranks have the same work.

    Example:
        >>> from attnops.distributed.layout import Layout
        >>> [Layout.of(8, 2, "zigzag").rows(rank).tolist() for rank in range(2)]
        [[0, 1, 6, 7], [2, 3, 4, 5]]
    """

    lengths: tuple[int, ...]
    order: str

    @staticmethod
    def of(length: int, world: int, order: str) -> Layout:
        """`length` tokens divided as evenly as can be; where it does not divide, the first ranks hold one more."""
        if order == "zigzag":
            chunks = _chunks(length, 2 * world)
            return Layout(tuple(chunks[rank] + chunks[2 * world - 1 - rank] for rank in range(world)), order)
        return Layout(tuple(_chunks(length, world)), order)

    @property
    def total(self) -> int:
        """Tokens of the whole sequence."""
        return sum(self.lengths)

    def rows(self, rank: int) -> Tensor:
        """Where the tokens of a rank stand in the whole sequence, int64 and ascending."""
        if self.order == "zigzag":
            world = len(self.lengths)
            chunks = _chunks(self.total, 2 * world)
            starts = [sum(chunks[:chunk]) for chunk in (rank, 2 * world - 1 - rank)]
            sizes = (chunks[rank], chunks[2 * world - 1 - rank])
            return torch.cat([torch.arange(start, start + size) for start, size in zip(starts, sizes, strict=True)])
        start = sum(self.lengths[:rank])
        return torch.arange(start, start + self.lengths[rank])

    def check(self, what: str) -> None:
        """Raise `ValueError` where ranks hold other numbers of tokens than the order says."""
        if self.order == "zigzag":
            want = Layout.of(self.total, len(self.lengths), "zigzag").lengths
            if want != self.lengths:
                raise ValueError(
                    f"{what}: ranks hold {list(self.lengths)} tokens; {self.total} in zigzag order are divided as "
                    f"{list(want)} (shard_sequence divides them)"
                )


def _chunks(length: int, count: int) -> list[int]:
    return [length // count + (place < length % count) for place in range(count)]


def process_group(mesh: Group) -> dist.ProcessGroup:
    """The group of a one-dimensional mesh, of itself, or the default one.

    Raises:
        TypeError: what is neither.
        ValueError: a mesh of several dimensions; torch.distributed not initialised.
    """
    if not isinstance(mesh, DeviceMesh | dist.ProcessGroup | None):
        raise TypeError(f"mesh is {type(mesh).__name__}; it must be a DeviceMesh, a process group or None")
    if isinstance(mesh, DeviceMesh):
        if mesh.ndim != 1:
            raise ValueError(
                f"mesh has dimensions {mesh.mesh_dim_names}; it must be one of them, such as mesh['context']"
            )
        return mesh.get_group()
    if not dist.is_initialized():
        raise ValueError("torch.distributed is not initialised; call torch.distributed.init_process_group first")
    if mesh is None:
        return dist.group.WORLD  # type: ignore[return-value]
    return mesh


def meeting_place(tensor: object, group: dist.ProcessGroup) -> torch.device | str:
    """Where a message of the group may lie: beside the tensor, if it is one that holds numbers."""
    if isinstance(tensor, Tensor) and tensor.device.type != "meta":
        return tensor.device
    return torch.device("cuda", torch.cuda.current_device()) if "nccl" in dist.get_backend(group) else "cpu"


def require_order(order: str) -> None:
    """Raise `ValueError` on an order that is none."""
    if order not in ORDERS:
        raise ValueError(f"order is {order!r}; it must be one of {', '.join(map(repr, ORDERS))}")


def shard_sequence(tensor: Tensor, mesh: Group = None, *, dim: int = -1, order: str = "contiguous") -> Tensor:
    """This rank's tokens of a tensor that every rank holds whole.

    Args:
        tensor: any shape; `dim` is its axis of tokens.
        mesh: a one-dimensional `DeviceMesh`, a process group, or None for all ranks.
        order: "contiguous" or "zigzag"; see `context_attend`.

    Raises:
        ValueError: an order that is none, a mesh of several dimensions, a `dim` that the tensor lacks.

    Example:
        One rank alone holds all:

        >>> import tempfile, torch, torch.distributed as dist
        >>> from attnops.distributed import shard_sequence
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        ...     ids = shard_sequence(torch.arange(6).view(1, 6), dim=1, order="zigzag")
        ...     dist.destroy_process_group()
        >>> ids
        tensor([[0, 1, 2, 3, 4, 5]])
    """
    require_order(order)
    group = process_group(mesh)
    _require_dim(tensor, dim)
    layout = Layout.of(tensor.shape[dim], group.size(), order)
    return tensor.index_select(dim, layout.rows(group.rank()).to(tensor.device))


def _require_dim(tensor: Tensor, dim: int) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"tensor is {type(tensor).__name__}; it must be a tensor")
    if isinstance(dim, bool) or not isinstance(dim, int) or not -tensor.ndim <= dim < tensor.ndim:
        raise ValueError(f"dim is {dim!r}; it must be an axis of tensor, which has shape {list(tensor.shape)}")


def shard_coords(coords: Coords, mesh: Group = None, *, order: str = "contiguous") -> Coords:
    """This rank's coords of a sequence whose coords every rank holds whole."""
    if not isinstance(coords, Coords):
        raise TypeError(f"coords is {type(coords).__name__}; it must be a Coords")
    return Coords(**{name: shard_sequence(data, mesh, order=order) for name, data in coords.data.items()})


def unshard_sequence(tensor: Tensor, mesh: Group = None, *, dim: int = -1, order: str = "contiguous") -> Tensor:
    """The whole sequence on every rank, from what each rank holds: the inverse of `shard_sequence`.

    Every rank calls it. Ranks may hold different numbers of tokens, also none. Differentiable: the gradient of a token
    is the sum of what all ranks have for it.

    Raises:
        ValueError: an order that is none, a `dim` that the tensor lacks; lengths that do not fit the order.
        DisagreementError: ranks whose tensors differ in anything but the number of tokens, on every rank.
    """
    group = process_group(mesh)
    refusal: Exception | None = None
    same: dict[str, object] = {}
    length = 0
    try:
        require_order(order)
        _require_dim(tensor, dim)
        dim = dim % tensor.ndim
        length = tensor.shape[dim]
        same = {
            "order": order, "dim": dim, "dtype": tensor.dtype, "device": tensor.device.type,
            "shape beside dim": [*tensor.shape[:dim], *tensor.shape[dim + 1 :]],
            "requires_grad": torch.is_grad_enabled() and tensor.requires_grad,
        }  # fmt: skip
    except (ValueError, TypeError) as error:
        refusal = error
    told = agree(
        "unshard_sequence", same, group, numbers=(length,), refusal=refusal, device=meeting_place(tensor, group)
    )
    layout = Layout(tuple(row[0] for row in told), order)
    layout.check("unshard_sequence")
    return join(gather(tensor, group, layout, dim), layout, dim)


def join(parts: Sequence[Tensor], layout: Layout, dim: int) -> Tensor:
    """The whole sequence in its own order, from the tokens of each rank."""
    together = torch.cat(list(parts), dim)
    if layout.order == "contiguous":
        return together
    rows = torch.cat([layout.rows(rank) for rank in range(len(layout.lengths))])
    return together.index_select(dim, rows.argsort().to(together.device))


def gather(tensor: Tensor, group: dist.ProcessGroup, layout: Layout, dim: int) -> tuple[Tensor, ...]:
    """What each rank holds, on every rank; differentiable."""
    parts: tuple[Tensor, ...] = _Gather.apply(tensor, group, layout, dim)  # type: ignore[no-untyped-call]
    return parts


class _Gather(torch.autograd.Function):
    """All-gather of tensors padded to the longest; backward, each rank sums what all have for its tokens.

    Tokens travel as bytes: gloo refuses some dtypes, such as int16.
    """

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, group: dist.ProcessGroup, layout: Layout, dim: int) -> tuple[Tensor, ...]:
        ctx.group, ctx.layout, ctx.dim = group, layout, dim
        rows = tensor.movedim(dim, 0).contiguous()
        width = rows.shape[1:].numel() * rows.element_size()
        padded = torch.zeros(max(layout.lengths), width, dtype=torch.uint8, device=rows.device)
        if rows.numel():
            padded[: rows.shape[0]] = rows.view(rows.shape[0], -1).view(torch.uint8)
        received = [torch.empty_like(padded) for _ in layout.lengths]
        if padded.numel():
            with lost_ranks("an exchange of tokens"):
                dist.all_gather(received, padded, group=group)
        parts = []
        for part, length in zip(received, layout.lengths, strict=True):
            whole = rows.new_empty(length, *rows.shape[1:])
            if whole.numel():
                whole.view(length, -1).view(torch.uint8).copy_(part[:length])
            parts.append(whole.movedim(0, dim).contiguous())
        return tuple(parts)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        sizes = [grad.shape[ctx.dim] for grad in grads]
        total = torch.cat(grads, ctx.dim).contiguous()
        with lost_ranks("an exchange of gradients"):
            dist.all_reduce(total, group=ctx.group)
        return torch.split(total, sizes, ctx.dim)[ctx.group.rank()].contiguous(), None, None, None
