"""Linear layers, quick where few tokens pass through them."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.coords import is_concrete, is_traced, is_transformed
from attnops.kernels import library
from attnops.kernels.linear_rows import linear_rows

MOST_ROWS = 32  # beyond, torch's product is as quick
FEWEST_WEIGHTS = 1 << 16  # below, the call costs more than the product


class Linear(nn.Linear):
    """x Wᵀ + b: `nn.Linear`, but that a step of decoding reads W as quickly as memory gives it.

    Up to 32 rows of float32 or float64 that ask for no gradient, on a CPU, are multiplied by a compiled kernel, which
    gives a row the same bits whichever rows stand beside it; everything else is `nn.Linear`'s.

    Example:
        >>> import torch
        >>> from attnops.seq import Linear
        >>> Linear(8, 4)(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 4])
    """

    def forward(self, x: Tensor) -> Tensor:
        return linear(x, self.weight, self.bias)


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x [*, in]` to `x Wᵀ + b [*, out]`, with `weight [out, in]` and `bias [out]`."""
    unwatched = not (torch.is_grad_enabled() or is_traced())
    if unwatched and _has_few_rows(x, weight, bias) and _is_plain(x, weight, bias):
        return linear_rows(x, weight, bias)
    return F.linear(x, weight, bias)


def _has_few_rows(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel is the quicker way, and the shapes are right: it reads what it is told to."""
    return (
        weight.ndim == 2
        and weight.numel() >= FEWEST_WEIGHTS
        and weight.stride(1) == 1
        and x.ndim > 0
        and x.shape[-1] == weight.shape[1]
        and 0 < x.numel() <= MOST_ROWS * weight.shape[1]
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def _is_plain(*given: Tensor | None) -> bool:
    """Whether these are plain numbers in memory: no transform, mode, autocast or subclass stands between."""
    tensors = [each for each in given if each is not None]
    dtype = tensors[0].dtype
    return (
        library.unavailable() is None
        and dtype in (torch.float32, torch.float64)
        and all(is_concrete(each) and each.device.type == "cpu" and each.dtype == dtype for each in tensors)
        and all(each.layout == torch.strided and not each.is_neg() for each in tensors)
        and not is_transformed("cpu")
        and torch._C._len_torch_dispatch_stack() == 0
        and torch._C._len_torch_function_stack() == 0
    )
