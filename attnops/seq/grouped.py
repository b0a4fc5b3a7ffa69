"""Grouped products: rows sorted by group, each group met by a matrix of its own.

Two operators that are each other's gradient. They are custom operators so that a traced graph holds one node, however
many rows a group has; torch's own `grouped_mm` takes neither float64 nor, while traced, float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def grouped_linear(rows: Tensor, weight: Tensor, ends: Tensor, bias: Tensor | None = None) -> Tensor:
    """y_r = W_g x_r (+ b_g) for the rows r of group g: one product a group, over its contiguous slice.

    Args:
        rows: `[R, in]`, sorted by group.
        weight: `[G, out, in]`, a group's matrix laid out as in `nn.Linear`; `bias`: `[G, out]`.
        ends: integer `[G]`, where each group ends; the last one is R.

    Returns:
        `[R, out]`; under autocast in its dtype.

    Example:
        >>> import torch
        >>> from attnops.seq.grouped import grouped_linear
        >>> rows, weight = torch.ones(3, 4), torch.tensor([1.0, 10.0]).view(2, 1, 1).expand(2, 1, 4)
        >>> grouped_linear(rows, weight, torch.tensor([1, 3])).flatten()
        tensor([ 4., 40., 40.])
    """
    dtype = rows.dtype
    if torch.is_autocast_enabled(rows.device.type):
        dtype = torch.get_autocast_dtype(rows.device.type)
    out: Tensor = grouped_product(rows.to(dtype), weight.to(dtype), ends)
    if bias is None:
        return out
    group = torch.searchsorted(ends, torch.arange(rows.shape[0], dtype=ends.dtype, device=ends.device), right=True)
    return out + bias.to(dtype).index_select(0, group)


def _slices(ends: Tensor) -> Iterator[tuple[int, slice]]:
    """The groups that have rows."""
    start = 0
    for group, end in enumerate(ends.tolist()):
        if end > start:
            yield group, slice(start, end)
        start = end


@torch.library.custom_op("attnops::grouped_product", mutates_args=())
def grouped_product(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    """`out[r] = weight[g] @ rows[r]` for the rows r of group g."""
    out = rows.new_empty(rows.shape[0], weight.shape[1])
    for group, own in _slices(ends):
        torch.mm(rows[own], weight[group].t(), out=out[own])
    return out


@torch.library.custom_op("attnops::grouped_outer", mutates_args=())
def grouped_outer(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    """`out[g] = Σ_r left[r] right[r]ᵀ` over the rows r of group g."""
    out = left.new_zeros(ends.shape[0], left.shape[1], right.shape[1])
    for group, own in _slices(ends):
        torch.mm(left[own].t(), right[own], out=out[group])
    return out


@grouped_product.register_fake
def _(rows: Tensor, weight: Tensor, ends: Tensor) -> Tensor:
    return rows.new_empty(rows.shape[0], weight.shape[1])


@grouped_outer.register_fake
def _(left: Tensor, right: Tensor, ends: Tensor) -> Tensor:
    return left.new_empty(ends.shape[0], left.shape[1], right.shape[1])


def _save(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    ctx.save_for_backward(*inputs)


def _product_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    rows, weight, ends = ctx.saved_tensors
    drows = grouped_product(grad, weight.transpose(1, 2), ends) if ctx.needs_input_grad[0] else None
    dweight = grouped_outer(grad, rows, ends) if ctx.needs_input_grad[1] else None
    return drows, dweight, None


def _outer_backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
    left, right, ends = ctx.saved_tensors
    dleft = grouped_product(right, grad, ends) if ctx.needs_input_grad[0] else None
    dright = grouped_product(left, grad.transpose(1, 2), ends) if ctx.needs_input_grad[1] else None
    return dleft, dright, None


grouped_product.register_autograd(_product_backward, setup_context=_save)
grouped_outer.register_autograd(_outer_backward, setup_context=_save)
