"""What backends do not lay out: masks where none is needed, and copies of keys that heads share."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnops
from tests.laws.test_memory import Largest

N = 64


def largest(backend: str, heads: int, kv_heads: int, queries: int, keys: int, dim: int, **arguments: Any) -> int:
    query = torch.randn(1, heads, queries, dim)
    key, value = (torch.randn(1, kv_heads, keys, dim) for _ in range(2))
    with Largest() as seen, torch.no_grad():
        attnops.attend(query, key, value, backend=backend, **arguments)
    return seen.numbers


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("pattern", [None, attnops.Causal()], ids=str)
def test_sdpa_lays_out_no_mask_where_the_kernel_needs_none(pattern: attnops.Pattern | None, lse: bool) -> None:
    assert largest("sdpa", 1, 1, N, N, 4, pattern=pattern, return_lse=lse) < N * N
    assert largest("sdpa", 1, 1, 1, N, 4, pattern=attnops.Causal(), return_lse=lse) < 4 * N  # decoding
    other = attnops.Mask(torch.rand(N, N) < 0.5)
    assert largest("sdpa", 1, 1, N, N, 4, pattern=other, return_lse=lse) >= N * N  # the measure sees masks


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("backend", ["sdpa", "reference", "blockwise"])
def test_grouped_heads_copy_no_key(backend: str, lse: bool) -> None:
    """Eight query heads on one key head: nothing as large as eight copies of the keys is made."""
    dim, keys = 64, 256
    for pattern in (None, attnops.Causal(), attnops.SlidingWindow(300)):
        assert largest(backend, 8, 1, 2, keys, dim, pattern=pattern, return_lse=lse) <= 8 * 2 * keys < 8 * keys * dim


@pytest.mark.parametrize("backend", ["sdpa", "reference", "blockwise", "scatter"])
def test_transposed_features_of_a_graph_are_read_where_they_lie(backend: str) -> None:
    """`[N, H, D]` as a view; nothing of the keys' size is made."""
    heads, dim = 4, 64
    query = torch.randn(2, heads, dim).transpose(0, 1)
    key, value = (torch.randn(512, heads, dim).transpose(0, 1) for _ in range(2))
    ends = torch.stack([torch.arange(512), torch.arange(512) % 2])
    pattern = attnops.Edges(ends, 2, 512) if backend == "scatter" else None
    with Largest() as seen, torch.no_grad():
        attnops.attend(query, key, value, pattern=pattern, backend=backend)
    assert seen.numbers < 512 * heads * dim, f"{backend} made a tensor of {seen.numbers} numbers"
