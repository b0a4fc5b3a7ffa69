"""Attention over an edge list by the compiled kernel, forward and backward."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from attnops.kernels import library
from attnops.kernels.edge_operator import EdgeOperator
from attnops.kernels.edge_walk import Walk, gradients, results
from attnops.kernels.library import Rows, address, pointer, readable_rows

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
        *((name, ctypes.c_void_p) for name in ("lse", "rest", "scores", "weights")),
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
    walk: Walk,
    out: Tensor,
    lse: Tensor,
    rest: Tensor,
    scores: Tensor | None,
) -> EdgeAttention:
    """The call without what it returns."""
    batch, heads, num_queries, dim = query.shape
    value_dim = value.shape[3]
    return EdgeAttention(
        batch,
        heads,
        key.shape[1],
        value.shape[1],
        num_queries,
        key.shape[2],
        walk.source.shape[0],
        dim,
        value_dim,
        query.dtype == torch.float64,
        library.threads(),
        max(FEWEST, WORK // (heads * (dim + value_dim) + 1)),
        address(walk.pointer),
        address(walk.source),
        address(walk.target),
        address(walk.source_pointer),
        address(walk.source_order),
        Rows.of(query),
        Rows.of(key),
        Rows.of(value),
        SCORES.index(walk.score),
        0,
        walk.scale,
        walk.softcap,
        walk.slope,
        pointer(a),
        Rows.of(term),
        address(walk.term_order),
        Rows.of(bias),
        walk.dropout,
        pointer(walk.seed),
        Rows.of(out),
        address(lse),
        pointer(rest),
        pointer(scores),
    )


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    walk: Walk,
    with_weights: bool,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Out, lse, weights, scores and rest, as `results` makes room for them; no gradient passes."""
    query, key, value = (readable_rows(x) for x in (query, key, value))
    term = None if term is None else readable_rows(term)
    a = None if a is None else a.contiguous()
    made = out, lse, weights, scores, rest = results(query, value, walk.source.shape[0], with_weights, learns)
    call = _call(query, key, value, bias, a, term, walk, out, lse, rest, scores if learns or with_weights else None)
    call.weights = address(weights) if with_weights else None
    library.call("attnops_edge_attention", call)
    return made


def run_backward(
    grad_out: Tensor,
    delta: Tensor | None,
    grad_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    walk: Walk,
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    rest: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients as `gradients` makes room for them; `delta [B, H, Nq]` is what `delta_of` gives."""
    query, key, value, grad_out = (readable_rows(x) for x in (query, key, value, grad_out))
    term = None if term is None else readable_rows(term)
    a = None if a is None else a.contiguous()
    delta = None if delta is None else delta.contiguous()
    grad_weights = None if grad_weights is None else grad_weights.contiguous()
    num_edges = walk.source.shape[0]
    grads = gradients(query, key, value, num_edges, wanted)
    shares = query.new_empty(query.shape[0], num_edges, query.shape[1], 2)
    call = _call(query, key, value, bias, a, term, walk, out, lse, rest, scores)
    call.grad_out = Rows.of(grad_out)
    call.delta, call.grad_weights = pointer(delta), pointer(grad_weights)
    call.grad_query, call.grad_key, call.grad_value = (Rows.of(grad) for grad in grads[:3])
    call.grad_bias = address(grads[3]) if wanted[0] else None
    call.grad_a = address(grads[4]) if wanted[1] else None
    call.grad_term = Rows.of(grads[5] if wanted[2] else None)
    call.shares = address(shares)
    library.call("attnops_edge_attention_backward", call)
    return grads


library.require_size("attnops_edge_attention", EdgeAttention)
native_edges = EdgeOperator("native", "attnops::edge_attention", "cpu", run_forward, run_backward)
