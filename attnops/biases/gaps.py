"""Differences between the positions or times of a pair, without loss in any dtype."""

from __future__ import annotations

import torch
from torch import Tensor


def gap(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """left - right in `dtype`; the difference comes first, exact for integers and in their own precision for reals."""
    return (wide(left, dtype) - wide(right, dtype)).to(dtype)


def clipped_gap(left: Tensor, right: Tensor, most: int, dtype: torch.dtype) -> Tensor:
    """left - right as int64 in [-most, most]; a real difference is cut toward 0."""
    difference = (wide(left, dtype) - wide(right, dtype)).clamp(-most, most)
    return difference.long().clamp(-most, most) if difference.is_floating_point() else difference  # NaN.long() is any


def wide(data: Tensor, dtype: torch.dtype) -> Tensor:
    """`data` so that sums and differences are exact: integers as int64, reals in `dtype` at least."""
    if not data.is_floating_point():
        return data.long()  # bool and uint8 would wrap
    return data.to(torch.promote_types(data.dtype, dtype))  # half precision would round the difference
