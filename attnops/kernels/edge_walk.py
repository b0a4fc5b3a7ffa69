"""What is done at the edges of a graph, and room for what comes of it: the same for every kernel."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor


class Walk(NamedTuple):
    """The graph, as a `Sorted` has it, and what is done at each of its edges."""

    pointer: Tensor  # [Nq + 1]
    source: Tensor  # [E], by place
    target: Tensor  # [E], by place
    source_pointer: Tensor  # [Nk + 1]
    source_order: Tensor  # [E], places by source
    term_order: Tensor  # [E]: the row of `term` that belongs to each place
    score: str
    scale: float
    softcap: float  # 0: none
    slope: float
    dropout: float
    seed: Tensor | None


def accumulated(dtype: torch.dtype) -> torch.dtype:
    """What kernels compute in: float32, or float64 for float64."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def _rows_like(x: Tensor, heads: int, rows: int, dim: int, dtype: torch.dtype | None = None) -> Tensor:
    """An empty `[B, heads, rows, dim]` whose rows hold all heads side by side, as a graph's features do."""
    return x.new_empty(x.shape[0], rows, heads, dim, dtype=dtype).transpose(1, 2)


def results(
    query: Tensor, value: Tensor, num_edges: int, with_weights: bool, learns: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for out, in the query's dtype, and lse, weights, scores and rest, in float32 at least.

    `rest [B, H, Nq]` is what rounding took off lse: where logits are huge, all of the denominator's logarithm.
    """
    batch, heads, num_queries, _ = query.shape
    wide = accumulated(query.dtype)
    return (
        _rows_like(query, heads, num_queries, value.shape[3]),
        query.new_empty(batch, heads, num_queries, dtype=wide),
        query.new_empty(batch, heads, num_edges if with_weights else 0, dtype=wide),
        query.new_empty(batch, heads, num_edges if learns or with_weights else 0, dtype=wide),
        query.new_empty(batch, heads, num_queries if learns or with_weights else 0, dtype=wide),
    )


def gradients(
    query: Tensor, key: Tensor, value: Tensor, num_edges: int, wanted: Sequence[bool]
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Room for the gradients of query, key and value, and, in float32 at least, of bias, a and term where wanted."""
    batch, heads, num_queries, dim = query.shape
    wide = accumulated(query.dtype)
    bias_wanted, a_wanted, term_wanted = wanted
    return (
        _rows_like(query, heads, num_queries, dim),
        _rows_like(key, key.shape[1], key.shape[2], dim),
        _rows_like(value, value.shape[1], value.shape[2], value.shape[3]),
        query.new_empty(batch, heads, num_edges if bias_wanted else 0, dtype=wide),
        query.new_empty(heads, dim if a_wanted else 0, dtype=wide),
        _rows_like(query, heads, num_edges if term_wanted else 0, dim, wide),
    )


def delta_of(grad_lse: Tensor | None, grad_weights: Tensor | None, weights: Tensor, pointer: Tensor) -> Tensor | None:
    """Σ weights · their gradients over the edges of a query, less the gradient of its lse: `[B, H, Nq]`."""
    delta = None if grad_lse is None else grad_lse.neg()
    if grad_weights is None:
        return delta
    batch, heads, _ = weights.shape
    sums = torch.segment_reduce(
        (weights * grad_weights).flatten(0, 1),
        "sum",
        offsets=pointer.expand(batch * heads, -1),
        axis=1,
        unsafe=True,
    ).view(batch, heads, -1)
    return sums if delta is None else delta + sums
