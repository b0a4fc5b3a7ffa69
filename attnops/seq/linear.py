"""Linear layers, quick where few tokens pass through them."""

from __future__ import annotations

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules import module as torch_modules

from attnops.checks import has_memory
from attnops.coords import is_traced, is_transformed
from attnops.kernels import library
from attnops.kernels.linear_rows import linear_rows

MOST_ROWS = 16  # beyond, torch's product is about as quick
FEWEST_WEIGHTS = 1 << 16  # below, the call costs more than the product
NARROWEST = 128  # below, a row of weights is too short to stream


def apply_linear(layer: nn.Module, x: Tensor) -> Tensor:
    """`layer(x)`; a step of decoding reads the weights of an `nn.Linear` as quickly as memory gives them.

    Under `torch.no_grad`, up to 16 rows of float32 or float64 on a CPU are multiplied by a compiled kernel, which
    gives a row the same bits whichever rows stand beside it. The layers stay torch's own, so that what knows
    `nn.Linear` (quantisation, adapters, hooks, `parallelize_module`) finds them; one that was changed or replaced is
    called as it is.
    """
    asks_torch = torch.is_grad_enabled() or type(x) is not Tensor or type(layer) is not nn.Linear or _is_changed(layer)
    if asks_torch or not _suits_kernel(x, layer.weight, layer.bias):  # type: ignore[arg-type]
        return layer(x)  # type: ignore[no-any-return]
    return linear_rows(x, layer.weight, layer.bias)  # type: ignore[arg-type]


def linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """`x [*, in]` to `x Wᵀ + b [*, out]`, with `weight [out, in]` and `bias [out]`, likewise."""
    return linear_rows(x, weight, bias) if _suits_kernel(x, weight, bias) else F.linear(x, weight, bias)


def _suits_kernel(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the kernel may run and is the quicker way; it reads the memory that it is told of, unasked."""
    if torch.is_grad_enabled() or type(x) is not Tensor or weight.numel() < FEWEST_WEIGHTS:
        return False  # nearly always, and at once
    if is_traced() or library.unavailable() is not None:
        return False
    given = (x, weight) if bias is None else (x, weight, bias)
    return all(_is_plain(each, x.dtype) for each in given) and not _is_watched() and _fits(x, weight, bias)


def _is_plain(tensor: Tensor, dtype: torch.dtype) -> bool:
    """Whether it is numbers in memory and nothing else: no subclass, no lazy, sparse, nested or negated view."""
    return (
        type(tensor) in (Tensor, nn.Parameter)
        and torch._C._dispatch_keys(tensor).raw_repr() in _plain_keys()
        and tensor.dtype == dtype
        and dtype in (torch.float32, torch.float64)
        and has_memory(tensor)
    )


def _is_watched() -> bool:
    """Whether autocast, a transform or a mode of torch must see the call."""
    return is_transformed("cpu") or torch._C._len_torch_dispatch_stack() > 0 or torch._C._len_torch_function_stack() > 0


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None) -> bool:
    """Whether the shapes are right, and the rows few."""
    return (
        weight.ndim == 2
        and weight.shape[1] >= NARROWEST
        and weight.stride(1) == 1
        and x.ndim > 0
        and x.shape[-1] == weight.shape[1]
        and 0 < x.numel() <= MOST_ROWS * weight.shape[1]
        and (bias is None or (bias.shape == weight.shape[:1] and bias.is_contiguous()))
    )


def _is_changed(layer: nn.Module) -> bool:
    """Whether calling it does more than its product: hooks, or a forward of its own."""
    hooks = (
        layer._forward_hooks,
        layer._forward_pre_hooks,
        torch_modules._global_forward_hooks,
        torch_modules._global_forward_pre_hooks,
    )
    return any(hooks) or "forward" in vars(layer)


@cache
def _plain_keys() -> frozenset[int]:
    """How torch dispatches a plain tensor of the CPU, made in inference mode and out of it."""
    keys = []
    for inside in (False, True):
        with torch.inference_mode(inside):
            keys.append(torch._C._dispatch_keys(torch.empty(0, device="cpu")).raw_repr())
    return frozenset(keys)
