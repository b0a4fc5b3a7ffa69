"""Torch's own fused attention kernel for the CPU, with the log-sum-exp it returns made differentiable."""

from __future__ import annotations

import torch
from torch import Tensor

ROWS = 256  # queries of a block where the backward is written out


@torch.library.custom_op("attnops::flash", mutates_args=(), device_types="cpu")
def flash(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    """`out` and `lse` of `[B, H, Nq, D]` against `[B, Hkv, Nk, D]`; `mask` is added to the logits and -inf forbids."""
    out, lse = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        query, key, value, 0.0, causal, attn_mask=mask, scale=scale
    )
    if mask is not None:  # the kernel gives a row of -inf the lse 0
        lse = torch.where((mask == float("-inf")).all(-1), float("-inf"), lse)
    return out.contiguous(), lse.contiguous()  # the kernel's strides follow the query's, and differ between releases


@flash.register_fake
def _(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, scale: float, causal: bool
) -> tuple[Tensor, Tensor]:
    dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
    return query.new_empty(query.shape), query.new_empty(query.shape[:-1], dtype=dtype)


@torch.library.custom_op("attnops::flash_backward", mutates_args=(), device_types="cpu")
def flash_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value and mask (empty where not asked for)."""
    if grad_lse is None and not mask_grad:
        finite = torch.where(lse == float("-inf"), 0, lse)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_out, query, key, value, out, finite, 0.0, causal, attn_mask=mask, scale=scale
        )
        return (*(grad.contiguous() for grad in grads), query.new_empty(0))
    return _written_out(grad_out, grad_lse, query, key, value, mask, out, lse, scale, causal, mask_grad)


def _written_out(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """dS = P ∘ (dO Vᵀ − rowsum(dO ∘ O) + dlse), in blocks of rows."""
    dtype = lse.dtype
    q, k, v, do = (x.to(dtype) for x in (query, key, value, grad_out))
    groups, heads = key.shape[1], query.shape[1]
    if groups != heads:
        k, v = (x.repeat_interleave(heads // groups, 1) for x in (k, v))
    delta = (do * out.to(dtype)).sum(-1)
    if grad_lse is not None:
        delta = delta - grad_lse.to(dtype)
    dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
    dmask = torch.zeros(mask.shape if mask_grad and mask is not None else (0,), dtype=dtype)
    keys = torch.arange(key.shape[2])
    for start in range(0, query.shape[2], ROWS):
        rows = slice(start, min(query.shape[2], start + ROWS))
        logits = (q[:, :, rows] @ k.transpose(-1, -2)) * scale
        if mask is not None:
            logits = logits + (mask[..., rows, :] if mask.shape[-2] > 1 else mask)
        if causal:
            logits = logits.masked_fill(keys > torch.arange(rows.start, rows.stop).unsqueeze(-1), float("-inf"))
        top = lse[:, :, rows].unsqueeze(-1)
        weights = torch.where(top == float("-inf"), 0, (logits - top).exp())
        dlogits = weights * (do[:, :, rows] @ v.transpose(-1, -2) - delta[:, :, rows].unsqueeze(-1))
        dq[:, :, rows] = dlogits @ k * scale
        dk += dlogits.transpose(-1, -2) @ q[:, :, rows] * scale
        dv += weights.transpose(-1, -2) @ do[:, :, rows]
        if mask_grad and mask is not None:
            part = dmask[..., rows, :] if mask.shape[-2] > 1 else dmask
            part += dlogits.sum_to_size(part.shape)
    if groups != heads:
        dk, dv = (x.view(x.shape[0], groups, -1, *x.shape[2:]).sum(2) for x in (dk, dv))
    return (
        dq.to(query.dtype),
        dk.to(key.dtype),
        dv.to(value.dtype),
        dmask.to(query.dtype if mask is None else mask.dtype),
    )


@flash_backward.register_fake
def _(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scale: float,
    causal: bool,
    mask_grad: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    dmask = query.new_empty(0) if mask is None or not mask_grad else torch.empty_like(mask)
    return (
        query.new_empty(query.shape),
        key.new_empty(key.shape),
        value.new_empty(value.shape),
        dmask,
    )


def _save(ctx: torch.autograd.function.FunctionCtx, inputs: tuple, output: tuple[Tensor, Tensor]) -> None:  # type: ignore[type-arg]
    query, key, value, mask, scale, causal = inputs
    ctx.save_for_backward(query, key, value, mask, *output)
    ctx.scale, ctx.causal = scale, causal  # type: ignore[attr-defined]
    ctx.set_materialize_grads(False)


def _backward(ctx, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:  # type: ignore[no-untyped-def]
    query, key, value, mask, out, lse = ctx.saved_tensors
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    mask_grad = mask is not None and ctx.needs_input_grad[3]
    dq, dk, dv, dmask = flash_backward(
        grad_out, grad_lse, query, key, value, mask, out, lse, ctx.scale, ctx.causal, mask_grad
    )
    return dq, dk, dv, dmask if mask_grad else None, None, None


flash.register_autograd(_backward, setup_context=_save)
