"""Sums over the edges of a row, without a copy of every key and value to every edge.

Edges come grouped by row: those of row r are `pointer[r] … pointer[r+1]`. Sums run over a row's edges in their order,
so their bits do not depend on the number of threads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

CHUNK = 1 << 18  # numbers gathered at once by edge_dot: what stays in a core's cache
ENTRIES = 1 << 22  # entries of one embedding_bag call


def _table(x: Tensor) -> tuple[Tensor, tuple[int, int, int]]:
    """`[B, H, N, D]` as rows of D in place, with the row steps of b, h and n (a copy only where strides forbid it)."""
    dim = max(1, x.shape[-1])
    if (x.shape[-1] > 1 and x.stride(-1) != 1) or any(step % dim for step in x.stride()[:3]):
        x = x.contiguous()
    steps = tuple(step // dim for step in x.stride()[:3])
    rows = 1 + sum(step * (size - 1) for step, size in zip(steps, x.shape[:3], strict=True)) if x.numel() else 0
    return x.as_strided((rows, x.shape[-1]), (dim, 1)), steps  # type: ignore[return-value]


class Graph(NamedTuple):
    """Edges in the order of their rows, and how they group by column: what a sum and its transpose need."""

    row: Tensor  # [E], ascending
    column: Tensor  # [E]
    pointer: Tensor  # [R + 1]
    column_pointer: Tensor  # [C + 1]
    column_order: Tensor  # [E], the edges by column
    column_place: Tensor  # [E], the inverse of column_order

    def turned(self) -> Graph:
        """The same edges in the order of their columns, rows and columns exchanged."""
        order = self.column_order
        return Graph(self.column[order], self.row[order], self.column_pointer, self.pointer, self.column_place, order)


# ---------------------------------------------------------------------------------------------------------- gather_sum
@torch.library.custom_op("attnops::gather_sum", mutates_args=())
def gather_sum(
    weights: Tensor | None,
    x: Tensor,
    row: Tensor,
    column: Tensor,
    pointer: Tensor,
    column_pointer: Tensor,
    column_order: Tensor,
    column_place: Tensor,
    heads: int,
) -> Tensor:
    """`out[b, h, r] = Σ_e weights[b, h, e] · x[b, h // group, column[e]]` over the edges e of row r.

    `weights [B, H, E]` (None: 1), `x [B, Hx, C, D]`; the edges are a `Graph`, field by field.
    """
    batch, groups, _, dim = x.shape
    num_edges, num_rows = column.shape[0], pointer.shape[0] - 1
    if num_edges == 0 or batch * heads * num_rows * dim == 0:
        return x.new_zeros(batch, heads, num_rows, dim)
    table, (step_b, step_h, step_n) = _table(x)
    entries = column * step_n
    members = [b * step_b + h // (heads // groups) * step_h for b in range(batch) for h in range(heads)]
    scale = None if weights is None else weights.reshape(batch * heads, num_edges)
    at_once = max(1, ENTRIES // num_edges)
    parts = []
    for start in range(0, len(members), at_once):
        part = torch.tensor(members[start : start + at_once], device=x.device).unsqueeze(1)
        firsts = torch.arange(0, part.shape[0] * num_edges, num_edges, device=x.device).unsqueeze(1)
        bags = F.embedding_bag(
            (part + entries).flatten(),
            table,
            (firsts + pointer[:-1]).flatten(),
            mode="sum",
            per_sample_weights=None if scale is None else scale[start : start + at_once].flatten(),
        )
        parts.append(bags)
    return (parts[0] if len(parts) == 1 else torch.cat(parts)).view(batch, heads, num_rows, dim)


@gather_sum.register_fake
def _(
    weights: Tensor | None,
    x: Tensor,
    row: Tensor,
    column: Tensor,
    pointer: Tensor,
    column_pointer: Tensor,
    column_order: Tensor,
    column_place: Tensor,
    heads: int,
) -> Tensor:
    return x.new_empty(x.shape[0], heads, pointer.shape[0] - 1, x.shape[3])


def _gather_sum_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[:-1])
    ctx.heads = inputs[-1]


def _gather_sum_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    weights, x, *fields = ctx.saved_tensors
    graph = Graph(*fields)
    dweights = edge_dot(grad, x, *graph) if ctx.needs_input_grad[0] else None
    dx = None
    if ctx.needs_input_grad[1]:
        turned = None if weights is None else weights[:, :, graph.column_order]
        dx = _over_group(gather_sum(turned, grad, *graph.turned(), ctx.heads), x.shape[1])
    return (dweights, dx, *(None for _ in range(7)))


def _over_group(grad: Tensor, groups: int) -> Tensor:
    """The gradient of a key head: the sum over the query heads that read it."""
    batch, heads, rows, dim = grad.shape
    return grad if heads == groups else grad.view(batch, groups, heads // groups, rows, dim).sum(2)


gather_sum.register_autograd(_gather_sum_backward, setup_context=_gather_sum_save)


# ------------------------------------------------------------------------------------------------------------ edge_dot
@torch.library.custom_op("attnops::edge_dot", mutates_args=())
def edge_dot(
    left: Tensor,
    right: Tensor,
    row: Tensor,
    column: Tensor,
    pointer: Tensor,
    column_pointer: Tensor,
    column_order: Tensor,
    column_place: Tensor,
) -> Tensor:
    """`out[b, h, e] = left[b, h, row[e]] · right[b, h // group, column[e]]`; the edges are a `Graph`, by field."""
    batch, heads, _, dim = left.shape
    groups, num_edges = right.shape[1], row.shape[0]
    out = left.new_zeros(batch, num_edges, groups, heads // groups)
    if num_edges and dim:
        chunk = max(1, CHUNK // (heads * dim))
        for b in range(batch):
            lefts, rights = _wide_rows(left[b]), _wide_rows(right[b])
            for start in range(0, num_edges, chunk):
                edges = slice(start, min(num_edges, start + chunk))
                i = lefts.index_select(0, row[edges]).view(-1, groups, heads // groups, dim)
                j = rights.index_select(0, column[edges]).view(-1, groups, 1, dim)
                torch.sum(i.mul_(j), -1, out=out[b, edges])
    return out.view(batch, num_edges, heads).transpose(1, 2).contiguous()


def _wide_rows(x: Tensor) -> Tensor:
    """`[H, N, D]` as `[N, H·D]`, in place where a node's heads lie side by side."""
    return x.transpose(0, 1).reshape(x.shape[1], x.shape[0] * x.shape[2])


@edge_dot.register_fake
def _(
    left: Tensor,
    right: Tensor,
    row: Tensor,
    column: Tensor,
    pointer: Tensor,
    column_pointer: Tensor,
    column_order: Tensor,
    column_place: Tensor,
) -> Tensor:
    return left.new_empty(left.shape[0], left.shape[1], row.shape[0])


def _edge_dot_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _edge_dot_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    left, right, *fields = ctx.saved_tensors
    graph, heads = Graph(*fields), left.shape[1]
    dleft = gather_sum(grad, right, *graph, heads) if ctx.needs_input_grad[0] else None
    dright = None
    if ctx.needs_input_grad[1]:
        turned = grad[:, :, graph.column_order]
        dright = _over_group(gather_sum(turned, left, *graph.turned(), heads), right.shape[1])
    return (dleft, dright, *(None for _ in range(6)))


edge_dot.register_autograd(_edge_dot_backward, setup_context=_edge_dot_save)


# --------------------------------------------------------------------------------------------------------- gather_rows
@torch.library.custom_op("attnops::gather_rows", mutates_args=())
def gather_rows(x: Tensor, index: Tensor, pointer: Tensor, order: Tensor, place: Tensor) -> Tensor:
    """`out[b, h, e] = x[b, h, index[e]]`; `pointer`, `order`, `place` group the edges by `index`, for the backward."""
    batch, heads, _, dim = x.shape
    out = x.new_empty(batch, index.shape[0], heads * dim)
    for b in range(batch):
        torch.index_select(_wide_rows(x[b]), 0, index, out=out[b])
    return out.view(batch, index.shape[0], heads, dim).transpose(1, 2)


@gather_rows.register_fake
def _(x: Tensor, index: Tensor, pointer: Tensor, order: Tensor, place: Tensor) -> Tensor:
    return x.new_empty(x.shape[0], index.shape[0], x.shape[1], x.shape[3]).transpose(1, 2)


def _gather_rows_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _gather_rows_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    index, pointer, order, place = ctx.saved_tensors
    each = torch.arange(index.shape[0] + 1, device=index.device)
    back = gather_sum(None, grad, index[order], order, pointer, each, place, order, grad.shape[1])
    return back, None, None, None, None


gather_rows.register_autograd(_gather_rows_backward, setup_context=_gather_rows_save)


# ------------------------------------------------------------------------------------------------------ softmax
def _torch_reduce(flat: Tensor, pointer: Tensor, how: str) -> Tensor:
    return torch.segment_reduce(flat, how, offsets=pointer, unsafe=True, initial=float("-inf") if how == "max" else 0.0)


def _scatter_reduce(flat: Tensor, pointer: Tensor, how: str) -> Tensor:
    import torch_scatter

    reduced: Tensor = torch_scatter.segment_csr(flat, pointer, reduce=how)
    return torch.where(pointer.diff() > 0, reduced, float("-inf")) if how == "max" else reduced


def _reduction(device: torch.device) -> Callable[[Tensor, Tensor, str], Tensor]:
    """Torch-scatter's segment kernels on an accelerator where it is installed; on a CPU torch's own are faster."""
    if device.type == "cpu":
        return _torch_reduce
    try:
        import torch_scatter  # noqa: F401
    except ImportError:
        return _torch_reduce
    return _scatter_reduce


@torch.library.custom_op("attnops::segment_reduce", mutates_args=())
def segment_reduce(values: Tensor, pointer: Tensor, row: Tensor, how: str) -> Tensor:
    """Sum or max of `values [B, H, E]` over the edges of each row, `[B, H, R]`; an empty row has 0, or -inf."""
    batch, heads, num_edges = values.shape
    num_rows = pointer.shape[0] - 1
    if values.numel() == 0:
        return values.new_full((batch, heads, num_rows), float("-inf") if how == "max" else 0.0)
    starts = torch.arange(batch * heads, device=values.device).unsqueeze(1) * num_edges
    bounds = torch.cat([(starts + pointer[:-1]).flatten(), starts[-1] + num_edges])
    reduced = _reduction(values.device)(values.reshape(-1), bounds, how)
    return reduced.view(batch, heads, num_rows)


@segment_reduce.register_fake
def _(values: Tensor, pointer: Tensor, row: Tensor, how: str) -> Tensor:
    return values.new_empty(values.shape[0], values.shape[1], pointer.shape[0] - 1)


def _segment_reduce_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    _, pointer, row, how = inputs
    ctx.save_for_backward(pointer, row)
    ctx.how = how


def _segment_reduce_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    pointer, row = ctx.saved_tensors
    if ctx.how != "sum":
        raise NotImplementedError("the maximum of a segment is a constant of the softmax; it has no gradient")
    return spread(grad, pointer, row), None, None, None


segment_reduce.register_autograd(_segment_reduce_backward, setup_context=_segment_reduce_save)


@torch.library.custom_op("attnops::spread", mutates_args=())
def spread(values: Tensor, pointer: Tensor, row: Tensor) -> Tensor:
    """`values [B, H, R]` at the edges of each row, `[B, H, E]`: the transpose of `segment_reduce`'s sum."""
    return values.gather(2, row.expand(values.shape[0], values.shape[1], -1))


@spread.register_fake
def _(values: Tensor, pointer: Tensor, row: Tensor) -> Tensor:
    return values.new_empty(values.shape[0], values.shape[1], row.shape[0])


def _spread_save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs[1:])


def _spread_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    return segment_reduce(grad, *ctx.saved_tensors, "sum"), None, None


spread.register_autograd(_spread_backward, setup_context=_spread_save)


def segment_exponentials(logits: Tensor, pointer: Tensor, row: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The softmax of each row's edges, undivided: exp(logit − top) `[B, H, E]`, its sum and the lse `[B, H, R]`.

    A logit of -inf is a forbidden edge; a row without an allowed edge has the sum 1 and the lse -inf.
    """
    top = segment_reduce(logits.detach(), pointer, row, "max")
    top = torch.where(top == float("-inf"), 0, top)
    exponentials = (logits - spread(top, pointer, row)).exp()
    total = segment_reduce(exponentials, pointer, row, "sum")
    empty = total == 0
    total = torch.where(empty, 1, total)
    return exponentials, total, torch.where(empty, float("-inf"), total.log() + top)


# ---------------------------------------------------------------------------------------------------------------- vmap
def _merged(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A vmapped axis joined with the batch axis."""
    if tensor is None:
        return None
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(size, *tensor.shape)
    return tensor.flatten(0, 1)


def _batching(operation: Any, vectors: int) -> Callable[..., tuple[Tensor, int]]:
    """The vmap rule of an operation whose first `vectors` arguments have a batch axis; the others are the graph."""

    def rule(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        if any(dim is not None for dim in in_dims[vectors:]):
            raise NotImplementedError("edge lists cannot be vmapped over; give each graph its own call, or pack them")
        size = info.batch_size
        merged = [_merged(x, dim, size) for x, dim in zip(inputs[:vectors], in_dims, strict=False)]
        out = operation(*merged, *inputs[vectors:])
        return out.view(size, -1, *out.shape[1:]), 0

    return rule


for _operation, _vectors in ((gather_sum, 2), (edge_dot, 2), (gather_rows, 1), (segment_reduce, 1), (spread, 1)):
    torch.library.register_vmap(_operation, _batching(_operation, _vectors))
