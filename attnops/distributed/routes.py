"""Which keys of another rank's block a rank needs, and what remains of the pattern on them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnops.coords import Coords, resolve_coords
from attnops.patterns.base import Full, Pattern
from attnops.patterns.rows import exact_ranges


@dataclass(frozen=True)
class Visit:
    """What one rank's queries do with one block of keys.

    `queries` and `keys` are the rows, of the rank and of the block, outside of which no pair is allowed. On them,
    `kind` is "all" where every pair is, "causal" where the pattern is `Causal` over these rows, end-aligned, so that a
    kernel's own flag serves, "some" where the pattern must be asked.
    """

    queries: slice
    keys: slice
    kind: str


def visit(
    pattern: Pattern,
    coords: tuple[Coords, Coords],
    batch_shape: tuple[int, ...],
    num_queries: int,
    num_keys: int,
) -> Visit | None:
    """What these queries do with these keys; None where no pair is allowed.

    Args:
        pattern: as this part of the whole sees it (`place_pattern`).
        coords: of the queries and of the keys, on the CPU.
    """
    if num_queries == 0 or num_keys == 0:
        return None
    if type(pattern) is Full:
        return Visit(slice(0, num_queries), slice(0, num_keys), "all")
    flat = resolve_coords(coords, batch_shape, num_queries, num_keys, torch.device("cpu"))
    ranges = exact_ranges(pattern, flat, batch_shape, num_queries, num_keys)
    if ranges is None:
        bounds = pattern.key_ranges(flat, slice(0, num_queries), num_keys)
        return Visit(slice(0, num_queries), slice(bounds[0][0], bounds[-1][1]), "some") if bounds else None
    return _of_ranges(ranges, num_queries, num_keys)


def _of_ranges(ranges: Tensor, num_queries: int, num_keys: int) -> Visit | None:
    """From exactly the keys that each query may attend, `[B|1, Nq|1, R, 2]`."""
    low, high = ranges.long().clamp(0, num_keys).unbind(-1)
    some = low < high
    if not bool(some.any()):
        return None
    busy = some.any(-1).any(0).expand(num_queries).nonzero()
    queries = slice(int(busy[0]), int(busy[-1]) + 1)
    keys = slice(int(low[some].min()), int(high[some].max()))
    if low.shape[-1] == 1:
        rows = queries if low.shape[1] > 1 else slice(0, 1)
        first, last = low[:, rows, 0], high[:, rows, 0]
        if bool((first == keys.start).all()):
            if bool((last == keys.stop).all()):
                return Visit(queries, keys, "all")
            count = queries.stop - queries.start
            ends = torch.arange(keys.stop - count + 1, keys.stop + 1)
            if first.shape[1] == count and bool((last == ends).all()):
                return Visit(queries, keys, "causal")
    return Visit(queries, keys, "some")
