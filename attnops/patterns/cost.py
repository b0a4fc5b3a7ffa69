"""How many pairs a pattern allows: counted block by block, never on the whole grid at once."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from attnops.coords import Coords
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern

BLOCK = 512


class Cost(NamedTuple):
    """Pairs allowed over batch and heads, their share of all pairs, and the rows that may attend nothing."""

    pairs: int
    density: float
    empty_rows: int


def count_pairs(
    pattern: Pattern,
    coords: tuple[Coords, Coords],
    batch_shape: tuple[int, ...],
    heads: int,
    num_queries: int,
    num_keys: int,
    device: Any,
) -> Cost:
    """Count the pairs that `pattern` allows, in blocks of queries against the keys that they can reach."""
    batch = 1
    for size in batch_shape:
        batch *= size
    total = batch * heads * num_queries * num_keys
    if pattern.edges is not None and total:
        return _count_edges(pattern, coords, batch_shape, heads, num_queries, num_keys, device)
    allowed, empty = 0, 0
    for start in range(0, num_queries, BLOCK):
        queries = slice(start, min(num_queries, start + BLOCK))
        rows = torch.zeros(1, 1, queries.stop - start, dtype=torch.long, device=device)
        for low, high in pattern.key_ranges(coords, queries, num_keys):
            keys = slice(low, high)
            pairs = Pairs.grid(coords, batch_shape, heads, queries, keys, dtype=torch.float32, device=device)
            found = pattern.allows(pairs)  # batch and heads counted once where the pattern does not tell them apart
            found = found.reshape((1,) * (4 - found.ndim) + tuple(found.shape))
            rows = rows + found.expand(*found.shape[:-2], *pairs.shape[2:]).sum(-1)
        rows = rows.expand(batch, heads, -1)
        allowed += int(rows.sum())
        empty += int((rows == 0).sum())
    return Cost(allowed, allowed / total if total else 0.0, empty)


def _count_edges(
    pattern: Pattern,
    coords: tuple[Coords, Coords],
    batch_shape: tuple[int, ...],
    heads: int,
    num_queries: int,
    num_keys: int,
    device: Any,
) -> Cost:
    edges = pattern.edges
    assert edges is not None
    queries, keys = edges.target.long(), edges.source.long()
    pairs = Pairs.listed(
        coords, batch_shape, heads, queries, keys, dtype=torch.float32, device=device, edge_data=edges.data
    )
    kept = torch.ones(pairs.shape, dtype=torch.bool, device=device)
    if pattern.filter is not None:
        kept = pattern.filter.allows(pairs).expand(pairs.shape)
    rows = torch.zeros(*pairs.shape[:2], num_queries, dtype=torch.long, device=device).index_add(
        2, queries, kept.long()
    )
    allowed = int(rows.sum())
    total = pairs.shape[0] * heads * num_queries * num_keys
    return Cost(allowed, allowed / total, int((rows == 0).sum()))
