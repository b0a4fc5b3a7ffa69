"""Attention in 8-bit floats, emulated: where the error comes from, and how a random rotation keeps outliers from it."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.checks import require_positive
from attnops.operator import attend
from attnops.patterns.base import Pattern
from attnops.states import AttentionOutput


def fp8_attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    block_size: int | None = 64,
    rotate: bool = True,
    seed: int = 0,
    dtype: torch.dtype = torch.float8_e4m3fn,
    **options: Any,
) -> Tensor:
    """What `attend` gives where queries, keys, weights and values are rounded to 8 bits before each product.

        q, k ← q M, k M      M = diag(±1) · Hadamard / √D, drawn once: q·k is the same, and no channel sticks out
        q, k, v ← fp8        one scale a block of rows: the largest of a block meets the largest 8-bit number
        w ← fp8(exp(logit - largest of its row))          sums in the caller's dtype

    An experiment on errors, not on speed: rounded numbers in the caller's dtype, with every weight laid out.

    Args:
        query, key, value: as `attend` takes them, the last axis a power of two where `rotate`.
        block_size: rows that share a scale; None: all of a head.
        rotate: whether to rotate queries and keys. seed: of the signs.
        dtype: torch.float8_e4m3fn or torch.float8_e5m2.
        **options: `pattern`, `bias`, `scale`, `coords`, `score` of `attend`.

    Raises:
        ValueError: D that is no power of two; a bias that turns the vectors (turn them before: a rotation of channels
            does not commute with it); a pattern of edges.

    Source: Shah et al. 2024 (FlashAttention-3), arXiv:2407.08608, section 3.3; the rotation: Chee et al. 2023 (QuIP),
    arXiv:2307.13304.

    Example:
        >>> import torch, attnops
        >>> from attnops.seq import fp8_attend
        >>> q, k, v = torch.randn(3, 2, 256, 64)                                            # [H, N, D]
        >>> q[..., 7] *= 30                                                                 # a channel sticks out
        >>> exact = attnops.attend(q, k, v)
        >>> rotated, plain = ((fp8_attend(q, k, v, rotate=r) - exact).square().mean() for r in (True, False))
        >>> bool(rotated < plain)
        True
    """
    bias = options.get("bias")
    pattern = options.get("pattern")
    if isinstance(pattern, Pattern) and pattern.edges is not None:
        raise ValueError(f"pattern is {pattern}, an edge list; weights are laid out here, so it must be another")
    if isinstance(bias, Bias) and bias.rotates:
        raise ValueError(f"bias is {bias}, which turns queries and keys; turn them before, and leave it out")
    heard = _heard(query, key, value, options)
    key, value = torch.where(heard, key, 0), torch.where(heard, value, 0)  # nor may what nobody hears set a scale
    if rotate:
        query, key = (random_hadamard(x, seed) for x in (query, key))
    query, key, value = (round_to_fp8(x, block_size, dtype) for x in (query, key, value))
    result = attend(query, key, value, return_weights=True, backend="reference", **options)
    assert isinstance(result, AttentionOutput) and result.weights is not None
    largest = result.weights.amax(-1, keepdim=True).clamp(min=torch.finfo(result.weights.dtype).tiny)
    shares = result.weights / largest  # exp(logit - largest), in (0, 1]
    value = value.repeat_interleave(query.shape[-3] // value.shape[-3], -3).to(shares.dtype)
    out = shares.to(dtype).to(shares.dtype) @ value
    return (out * largest).to(query.dtype)


def _heard(query: Tensor, key: Tensor, value: Tensor, options: dict[str, Any]) -> Tensor:
    """Which keys weigh anything for some query that reads them, bool `[*B, Hkv, Nk, 1]`."""
    result = attend(query, key, value, return_weights=True, backend="reference", **options)
    assert isinstance(result, AttentionOutput) and result.weights is not None
    by_head = (result.weights != 0).any(-2)  # [*B, H, Nk]
    return torch.unflatten(by_head, -2, (key.shape[-3], -1)).any(-2).unsqueeze(-1)


def round_to_fp8(x: Tensor, block_size: int | None = None, dtype: torch.dtype = torch.float8_e4m3fn) -> Tensor:
    """`x [..., N, D]` as 8-bit floats can hold it, in its own dtype: one scale for each `block_size` rows.

    Raises:
        TypeError: a dtype that is no 8-bit float.

    Example:
        >>> import torch
        >>> from attnops.seq import round_to_fp8
        >>> round_to_fp8(torch.tensor([[448.0, 1.1], [0.448, 0.0011]]), block_size=1)
        tensor([[4.4800e+02, 1.1250e+00], [4.4800e-01, 1.1250e-03]])
    """
    if dtype not in (torch.float8_e4m3fn, torch.float8_e5m2):
        raise TypeError(f"dtype is {dtype}; it must be torch.float8_e4m3fn or torch.float8_e5m2")
    rows = x.shape[-2]
    size = rows if block_size is None else block_size
    require_positive(block_size=size if rows else 1)
    largest_of_dtype = torch.finfo(dtype).max
    blocks = torch.unflatten(torch.nn.functional.pad(x, (0, 0, 0, -rows % max(size, 1))), -2, (-1, max(size, 1)))
    scale = blocks.abs().amax((-1, -2), keepdim=True) / largest_of_dtype
    scale = torch.where(scale == 0, 1, scale)
    rounded = (blocks / scale).clamp(-largest_of_dtype, largest_of_dtype).to(dtype).to(x.dtype) * scale
    return torch.flatten(rounded, -3, -2)[..., :rows, :]


def random_hadamard(x: Tensor, seed: int = 0) -> Tensor:
    """`x [..., D] · diag(±1) · Hadamard / √D`: an orthogonal map that spreads each channel over all, in D log D steps.

    Raises:
        ValueError: D that is no power of two.

    Example:
        >>> import torch
        >>> from attnops.seq import random_hadamard
        >>> random_hadamard(torch.tensor([8.0, 0.0, 0.0, 0.0])).abs()
        tensor([4., 4., 4., 4.])
    """
    dim = x.shape[-1]
    if dim < 1 or dim & (dim - 1):
        raise ValueError(f"D is {dim}; a Hadamard rotation needs a power of two (pad with zeros: q·k stays the same)")
    signs = torch.randint(2, (dim,), generator=torch.Generator().manual_seed(seed)) * 2 - 1
    x = x * signs.to(x)
    half = 1
    while half < dim:
        pairs = torch.unflatten(x, -1, (-1, 2, half))
        first, second = pairs[..., 0, :], pairs[..., 1, :]
        x = torch.stack((first + second, first - second), -2).flatten(-3)
        half *= 2
    return x / math.sqrt(dim)
