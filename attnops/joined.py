"""Rows that some allowed edge joins: what another row holds may be garbage, and must not be multiplied even by 0."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.patterns.sorting import Sorted


def keep_joined(
    query: Tensor, key: Tensor, value: Tensor, csr: Sorted, allowed: Tensor | None, bias: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Query, key and value with zeros in the rows that no edge joins.

    An edge joins its ends where it is `allowed` and its `bias` is not -inf; both are `[B|1, H|1, E]` by place.
    """
    joined = torch.ones((1, 1, 1), dtype=torch.bool, device=key.device) if allowed is None else allowed
    if bias is not None:
        joined = joined & (bias.detach() != float("-inf"))
    joined = joined.expand(*joined.shape[:2], csr.target.shape[0]).to(torch.float32)
    attended = _any(joined, csr.source, key.shape[2], key.shape[1])
    attends = _any(joined, csr.target, query.shape[2], query.shape[1])
    return torch.where(attends, query, 0), torch.where(attended, key, 0), torch.where(attended, value, 0)


def _any(joined: Tensor, ends: Tensor, size: int, heads: int) -> Tensor:
    """`[B|1, heads|1, size, 1]`: whether some joined edge has this end."""
    counts = torch.zeros(*joined.shape[:2], size, device=joined.device).index_add(2, ends, joined)
    if counts.shape[1] > 1 and counts.shape[1] != heads:
        counts = counts.view(counts.shape[0], heads, -1, size).sum(2)
    return (counts > 0).unsqueeze(-1)
