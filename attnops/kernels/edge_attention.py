"""Attention over an edge list by the compiled kernel, forward and backward, as custom operators of torch."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from attnops.kernels import library
from attnops.kernels.library import Rows, pointer, readable_rows

WORK, FEWEST = 1 << 18, 128  # numbers read by one task, about, and edges that it takes at least
SCORES = ("dot", "leaky_relu", "tanh")  # as csrc/interface.h counts them


class EdgeAttention(ctypes.Structure):
    """The call, as csrc/interface.h has it."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batches", "heads", "key_heads", "value_heads", "queries", "keys")),
        *((name, ctypes.c_int64) for name in ("edges", "dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("is_double", "threads")),
        ("piece", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("pointer", "source", "target", "source_pointer", "source_order")),
        *((name, Rows) for name in ("query", "key", "value")),
        *((name, ctypes.c_int32) for name in ("score", "pad")),
        *((name, ctypes.c_double) for name in ("scale", "softcap", "slope")),
        ("a", ctypes.c_void_p),
        ("term", Rows),
        ("term_order", ctypes.c_void_p),
        ("bias", Rows),
        ("dropout", ctypes.c_double),
        ("seed", ctypes.c_void_p),
        ("out", Rows),
        *((name, ctypes.c_void_p) for name in ("lse", "scores", "weights")),
        ("grad_out", Rows),
        *((name, ctypes.c_void_p) for name in ("delta", "grad_weights")),
        *((name, Rows) for name in ("grad_query", "grad_key", "grad_value", "grad_term")),
        *((name, ctypes.c_void_p) for name in ("grad_bias", "grad_a", "shares")),
    )


def _call(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    graph: tuple[Tensor, ...],
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    out: Tensor,
    lse: Tensor,
    scores: Tensor | None,
) -> EdgeAttention:
    """The call without what it returns."""
    pointers, source, target, source_pointer, source_order, term_order = graph
    return EdgeAttention(
        *query.shape[:2],
        key.shape[1],
        value.shape[1],
        query.shape[2],
        key.shape[2],
        source.shape[0],
        query.shape[3],
        value.shape[3],
        query.dtype == torch.float64,
        library.threads(),
        max(FEWEST, WORK // (query.shape[1] * (query.shape[3] + value.shape[3]) + 1)),
        pointers.data_ptr(),
        source.data_ptr(),
        target.data_ptr(),
        source_pointer.data_ptr(),
        source_order.data_ptr(),
        Rows.of(query),
        Rows.of(key),
        Rows.of(value),
        SCORES.index(score),
        0,
        scale,
        softcap,
        slope,
        pointer(a),
        Rows.of(term),
        term_order.data_ptr(),
        Rows.of(bias),
        dropout,
        pointer(seed),
        Rows.of(out),
        lse.data_ptr(),
        pointer(scores),
    )


def _rows_like(x: Tensor, heads: int, rows: int, dim: int) -> Tensor:
    """An empty `[B, heads, rows, dim]` whose rows hold all heads side by side, as a graph's features do."""
    return x.new_empty(x.shape[0], rows, heads, dim).transpose(1, 2)


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
    """`out`, `lse`, the weights after dropout and the scores before the bias (both `[B, H, E]` by place, or empty).

    `query [B, H, Nq, D]`, `key`, `value` with Hkv heads; float32 or float64, any strides. The edges are those of a
    `Sorted`; `bias [B, H, E]` by place, -inf forbids; with the scores "leaky_relu" and "tanh", aᵀσ(q + k + term), with
    `a [H, D]` and `term [B, H, E, D]`, that of a place in row `term_order[place]`.
    """
    query, key, value = (readable_rows(x) for x in (query, key, value))
    term = None if term is None else readable_rows(term)
    a = None if a is None else a.contiguous()
    batch, heads, num_queries, _ = query.shape
    num_edges = source.shape[0]
    out = _rows_like(query, heads, num_queries, value.shape[3])
    lse = query.new_empty(batch, heads, num_queries)
    kept = num_edges if learns or with_weights else 0
    scores = query.new_empty(batch, heads, kept)
    weights = query.new_empty(batch, heads, num_edges if with_weights else 0)
    graph = (pointer, source, target, source_pointer, source_order, term_order)
    call = _call(
        query, key, value, bias, a, term, graph, score, scale, softcap, slope, dropout, seed, out, lse,
        scores if kept else None,
    )  # fmt: skip
    call.weights = weights.data_ptr() if with_weights else None
    library.call("attnops_edge_attention", call)
    return out, lse, weights, scores


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
    batch, heads, num_queries, _ = query.shape
    num_edges = source.shape[0]
    return (
        _rows_like(query, heads, num_queries, value.shape[3]),
        query.new_empty(batch, heads, num_queries),
        query.new_empty(batch, heads, num_edges if with_weights else 0),
        query.new_empty(batch, heads, num_edges if learns or with_weights else 0),
    )


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
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, and of bias, a and term, which are empty where not `wanted` (three of them).

    `delta [B, H, Nq]` is Σ weights · grad_weights - grad_lse; `grad_weights [B, H, E]` by place.
    """
    query, key, value, grad_out = (readable_rows(x) for x in (query, key, value, grad_out))
    term = None if term is None else readable_rows(term)
    a = None if a is None else a.contiguous()
    batch, heads, num_queries, dim = query.shape
    num_edges = source.shape[0]
    bias_wanted, a_wanted, term_wanted = wanted
    grads = (
        _rows_like(query, heads, num_queries, dim),
        _rows_like(key, key.shape[1], key.shape[2], dim),
        _rows_like(value, value.shape[1], value.shape[2], value.shape[3]),
        query.new_empty(batch, heads, num_edges if bias_wanted else 0),
        query.new_empty(heads, dim if a_wanted else 0),
        _rows_like(query, heads, num_edges if term_wanted else 0, dim),
    )
    graph = (pointer, source, target, source_pointer, source_order, term_order)
    call = _call(
        query, key, value, bias, a, term, graph, score, scale, softcap, slope, dropout, seed, out, lse, scores
    )  # fmt: skip
    shares = query.new_empty(batch, num_edges, heads, 2)
    delta = None if delta is None else delta.contiguous()
    grad_weights = None if grad_weights is None else grad_weights.contiguous()
    call.grad_out = Rows.of(grad_out)
    call.delta, call.grad_weights = library.pointer(delta), library.pointer(grad_weights)
    call.grad_query, call.grad_key, call.grad_value = (Rows.of(grad) for grad in grads[:3])
    call.grad_bias = grads[3].data_ptr() if bias_wanted else None
    call.grad_a = grads[4].data_ptr() if a_wanted else None
    call.grad_term = Rows.of(grads[5] if term_wanted else None)
    call.shares = shares.data_ptr()
    library.call("attnops_edge_attention_backward", call)
    return grads


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
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    score: str,
    scale: float,
    softcap: float,
    slope: float,
    dropout: float,
    seed: Tensor | None,
    wanted: list[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    batch, heads, num_queries, dim = query.shape
    num_edges = source.shape[0]
    bias_wanted, a_wanted, term_wanted = wanted
    return (
        _rows_like(query, heads, num_queries, dim),
        _rows_like(key, key.shape[1], key.shape[2], dim),
        _rows_like(value, value.shape[1], value.shape[2], value.shape[3]),
        query.new_empty(batch, heads, num_edges if bias_wanted else 0),
        query.new_empty(heads, dim if a_wanted else 0),
        _rows_like(query, heads, num_edges if term_wanted else 0, dim),
    )


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    *tensors, score, scale, softcap, slope, dropout, seed, _, learns = inputs
    out, lse, weights, scores = output
    ctx.save_for_backward(*tensors, seed, out, lse, weights, scores)
    ctx.options = (score, scale, softcap, slope, dropout)
    ctx.mark_non_differentiable(scores)
    ctx.set_materialize_grads(False)


def _backward(
    ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, grad_weights: Tensor | None, _: Tensor | None
) -> tuple[Tensor | None, ...]:
    *tensors, seed, out, lse, weights, scores = ctx.saved_tensors
    bias, a, term, pointer = tensors[3:7]
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    delta = None if grad_lse is None else grad_lse.neg()
    if grad_weights is not None:
        sums = torch.segment_reduce(
            (weights * grad_weights).flatten(0, 1), "sum", offsets=_offsets(pointer, weights), axis=1, unsafe=True
        ).view_as(lse)
        delta = sums if delta is None else delta + sums
    wanted = [x is not None and ctx.needs_input_grad[place] for place, x in ((3, bias), (4, a), (5, term))]
    dq, dk, dv, dbias, da, dterm = edge_attention_backward(
        grad_out, delta, grad_weights, *tensors, out, lse, scores, *ctx.options, seed, wanted
    )
    parameters = (grad if want else None for grad, want in zip((dbias, da, dterm), wanted, strict=True))
    return (dq, dk, dv, *parameters, *(None for _ in range(14)))


def _offsets(pointer: Tensor, weights: Tensor) -> Tensor:
    return pointer.expand(weights.shape[0] * weights.shape[1], -1)


edge_attention.register_autograd(_backward, setup_context=_save)


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
    return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0, 0, 0, 0)


torch.library.register_vmap(edge_attention, _vmap)
