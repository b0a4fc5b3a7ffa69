"""Partial results of attention, and how they join."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, eq=False)
class AttentionOutput:
    """What attention returns beside its output; what was not asked for is None.

    A pytree whose leaves are the tensors that are there, so that `vmap`, `torch.compile` and `torch.export` take it in
    and give it out.

    Attributes:
        out: `[*B, H, Nq, Dv]`, in the query's dtype.
        lse: `[*B, H, Nq]`, float32 at least: the log of the sum of exponentials of each row's logits, -inf for a row
            that no key is allowed for.
        weights: after dropout, `[*B, H, Nq, Nk]`, or `[*B, H, E]` in the caller's order of edges where the pattern is
            an `Edges`.
    """

    out: Tensor
    lse: Tensor | None = None
    weights: Tensor | None = None


torch.export.register_dataclass(AttentionOutput)


def merge(parts: Sequence[AttentionOutput]) -> AttentionOutput:
    """Join partial results of attention over disjoint sets of keys into the result over all of them, exactly.

        lse = log Σ_p exp(lse_p)        out = Σ_p exp(lse_p - lse) · out_p

    `(out, lse)` is a commutative monoid with the identity `(0, -inf)`: parts may come in any order and be merged in any
    grouping. A row that is -inf in every part stays `(0, -inf)`, with a gradient of exactly zero; what a part holds in
    `out` where its `lse` is -inf is not read. Differentiable in every `out` and `lse`. Sums are taken in float32 at
    least, and `out` is returned in the parts' dtype. `weights` are None: those of a part are relative to its own keys.
    A `Sink` must have been given to exactly one part.

    Args:
        parts: at least one result of `attend(..., return_lse=True)`, all of one shape and dtype.

    Raises:
        ValueError: no part; a part without lse; shapes or devices that differ.
        TypeError: a part that is not an `AttentionOutput`; dtypes of `out` that differ; an lse that is not real.

    Source: Milakov and Gimelshein, "Online normalizer calculation for softmax", 2018 (arXiv:1805.02867).

    Example:
        >>> import torch, attnops
        >>> query, key, value = torch.randn(2, 3, 4), torch.randn(2, 5, 4), torch.randn(2, 5, 4)    # [H, N, D]
        >>> left = attnops.attend(query, key[:, :2], value[:, :2], return_lse=True)
        >>> right = attnops.attend(query, key[:, 2:], value[:, 2:], return_lse=True)
        >>> torch.allclose(attnops.merge([left, right]).out, attnops.attend(query, key, value), atol=1e-6)
        True
    """
    lses = _check_parts(parts)
    outs = [part.out for part in parts]
    dtype = torch.float32
    for tensor in (*outs, *lses):
        dtype = torch.promote_types(dtype, tensor.dtype)
    lses = [lse.to(dtype) for lse in lses]
    largest = lses[0]
    for lse in lses[1:]:
        largest = torch.maximum(largest, lse)
    none = largest == -torch.inf
    # The shift cancels, so it needs no gradient; 0 instead of -inf keeps -inf - -inf out of forward and backward.
    shift = torch.where(none, 0, largest).detach()

    total, summed = torch.zeros_like(shift), torch.zeros_like(outs[0], dtype=dtype)
    for out, lse in zip(outs, lses, strict=True):
        share = (lse - shift).exp()
        heard = (lse != -torch.inf).unsqueeze(-1)
        total = total + share
        summed = summed + share.unsqueeze(-1) * torch.where(heard, out.to(dtype), 0)
    total = torch.where(none, 1, total)
    lse = torch.where(none, -torch.inf, shift + total.log())
    return AttentionOutput((summed / total.unsqueeze(-1)).to(outs[0].dtype), lse)


def _check_parts(parts: Sequence[AttentionOutput]) -> list[Tensor]:
    """Raise on what cannot be joined; the parts' lse."""
    if isinstance(parts, (AttentionOutput, Tensor)):
        raise TypeError(f"parts is one {type(parts).__name__}; it must be a list of AttentionOutput")
    if not isinstance(parts, Sequence):
        raise TypeError(f"parts is a {type(parts).__name__}; it must be a sequence of AttentionOutput")
    if len(parts) == 0:
        raise ValueError("parts is empty; it must hold at least one AttentionOutput")
    lses = []
    for index, part in enumerate(parts):
        name = f"parts[{index}]"
        if not isinstance(part, AttentionOutput):
            raise TypeError(f"{name} is a {type(part).__name__}; it must be an AttentionOutput")
        out, lse, first = part.out, part.lse, parts[0].out
        if lse is None:
            raise ValueError(f"{name} has no lse; it must come from attend(..., return_lse=True)")
        if out.dtype != first.dtype:
            raise TypeError(f"{name}.out is {out.dtype}; it must be {first.dtype}, as parts[0].out is")
        if not out.is_floating_point() or not lse.is_floating_point():
            raise TypeError(f"{name} holds out in {out.dtype} and lse in {lse.dtype}; both must be real")
        if out.shape != first.shape:
            raise ValueError(f"{name}.out is {list(out.shape)}; it must be {list(first.shape)}, as parts[0].out is")
        if lse.shape != out.shape[:-1]:
            raise ValueError(f"{name}.lse is {list(lse.shape)}; it must be {list(out.shape[:-1])}, one number a row")
        if out.device != first.device or lse.device != first.device:
            raise ValueError(f"{name} lies on {out.device} (lse on {lse.device}); it must lie on {first.device}")
        lses.append(lse)
    return lses
