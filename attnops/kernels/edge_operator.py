"""The compiled kernel for edge lists as an operator of torch: for autograd, tracers and vmap."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnops.kernels.edge_attention import (
    EdgeAttentionFunction,
    Walk,
    delta_of,
    gradients,
    results,
    run_backward,
    run_forward,
)


def attend_edges(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    walk: Walk,
    with_weights: bool,
    learns: bool,
    eager: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """`out [B, H, Nq, Dv]`, `lse [B, H, Nq]`, and the weights after dropout `[B, H, E]` by place (or empty).

    `query [B, H, Nq, D]`, `key`, `value` with fewer heads or as many; float32 or float64, any strides. `bias
    [B, H, E]` by place, -inf forbids; with the scores "leaky_relu" and "tanh", aᵀσ(q + k + term), with `a [H, D]` and
    `term [B, H, E, D]`. `eager`: real tensors outside of any tracer and transform, which spare the dispatcher's way.
    """
    if eager:
        out, lse, weights, _ = EdgeAttentionFunction.apply(query, key, value, bias, a, term, walk, with_weights, learns)  # type: ignore[no-untyped-call]
    else:
        out, lse, weights, _ = edge_attention(query, key, value, bias, a, term, *walk, with_weights, learns)
    return out, lse, weights


@torch.library.custom_op("attnops::edge_attention", mutates_args=(), device_types="cpu")
def edge_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    source_pointer: Tensor,
    source_order: Tensor,
    term_order: Tensor,
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    with_weights: bool,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """`attend_edges` as an operator of torch, with the fields of the walk and, last of the results, the scores."""
    walk = Walk(
        pointer, source, target, source_pointer, source_order, term_order, score, scale, softcap, slope, dropout, seed
    )
    return run_forward(query, key, value, bias, a, term, walk, with_weights, learns)


@edge_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    source_pointer: Tensor,
    source_order: Tensor,
    term_order: Tensor,
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    with_weights: bool,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return results(query, value, source.shape[0], with_weights, learns)


@torch.library.custom_op("attnops::edge_attention_backward", mutates_args=(), device_types="cpu")
def edge_attention_backward(
    grad_out: Tensor,
    delta: Tensor | None,
    grad_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    source_pointer: Tensor,
    source_order: Tensor,
    term_order: Tensor,
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, and of bias, a and term, which are empty where not `wanted`."""
    walk = Walk(
        pointer, source, target, source_pointer, source_order, term_order, score, scale, softcap, slope, dropout, seed
    )
    return run_backward(grad_out, delta, grad_weights, query, key, value, bias, a, term, walk, out, lse, scores, wanted)


@edge_attention_backward.register_fake
def _(
    grad_out: Tensor,
    delta: Tensor | None,
    grad_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    pointer: Tensor,
    source: Tensor,
    target: Tensor,
    source_pointer: Tensor,
    source_order: Tensor,
    term_order: Tensor,
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    return gradients(query, key, value, source.shape[0], wanted)


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, score, scale, softcap, slope, dropout, seed, _with_weights, _learns = inputs
    ctx.save_for_backward(*tensors, seed, *output)
    ctx.options = (score, scale, softcap, slope, dropout)
    ctx.mark_non_differentiable(output[3])
    ctx.set_materialize_grads(False)


def _traced_backward(
    ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, grad_weights: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    *tensors, seed, out, lse, weights, scores = ctx.saved_tensors
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    delta = delta_of(grad_lse, grad_weights, weights, tensors[6])
    wanted = [tensors[place] is not None and ctx.needs_input_grad[place] for place in (3, 4, 5)]
    grads = edge_attention_backward(
        grad_out, delta, grad_weights, *tensors, *ctx.options, seed, out, lse, scores, wanted
    )
    parameters = (grad if want else None for grad, want in zip(grads[3:], wanted, strict=True))
    return (*grads[:3], *parameters, *(None for _ in range(14)))


edge_attention.register_autograd(_traced_backward, setup_context=_save)


def _merged(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A vmapped axis joined with the batch axis."""
    if tensor is None:
        return None
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(size, *tensor.shape)
    return tensor.flatten(0, 1)


def _vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    if any(dim is not None for dim in in_dims[4:]):
        raise NotImplementedError("backend 'native' cannot be vmapped over an edge list or a score's parameters")
    size = info.batch_size
    merged = [_merged(x, dim, size) for x, dim in zip(inputs[:4], in_dims, strict=False)]
    results: Callable[..., tuple[Tensor, ...]] = edge_attention
    outputs = results(*merged, *inputs[4:])
    return tuple(x.view(size, x.shape[0] // size, *x.shape[1:]) for x in outputs), (0, 0, 0, 0)


torch.library.register_vmap(edge_attention, _vmap)
