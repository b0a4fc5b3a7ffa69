"""The keys that each query may attend, as ranges of key rows: integers `[B|1, Nq|1, R, 2]`, half open, in any order.

A range whose end is not above its start is empty; ranges may overlap.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnops.coords import Coords, is_concrete
from attnops.overrides import speaks_for

if TYPE_CHECKING:
    from attnops.patterns.base import Pattern

MOST_RANGES = 4  # of one query; a pattern that needs more is not told by ranges


def exact_ranges(
    pattern: Pattern, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
) -> Tensor | None:
    """A pattern's `row_ranges`, None where it has none or where a subclass has written `allows` anew."""
    if not speaks_for(type(pattern), "row_ranges", "allows"):
        return None
    return pattern.row_ranges(coords, batch_shape, num_queries, num_keys)


def intersect(left: Tensor, right: Tensor) -> Tensor | None:
    """The keys in both."""
    if left.shape[2] * right.shape[2] > MOST_RANGES:
        return None
    left, right = left.unsqueeze(3), right.unsqueeze(2)
    low, high = torch.maximum(left[..., 0], right[..., 0]), torch.minimum(left[..., 1], right[..., 1])
    return torch.stack([low, high], -1).flatten(2, 3)


def unite(left: Tensor, right: Tensor) -> Tensor | None:
    """The keys in either."""
    if left.shape[2] + right.shape[2] > MOST_RANGES:
        return None
    batch, queries = (max(a, b) if 0 not in (a, b) else 0 for a, b in zip(left.shape[:2], right.shape[:2], strict=True))
    return torch.cat([side.expand(batch, queries, -1, -1) for side in (left, right)], 2)


def complement(ranges: Tensor, num_keys: int) -> Tensor | None:
    """The keys in none; of one range, those before and those behind."""
    if ranges.shape[2] != 1:
        return None
    low, high = ranges.unbind(-1)
    return torch.cat([between(torch.zeros_like(low), low), between(high, torch.full_like(high, num_keys))], 2)


def between(low: Tensor, high: Tensor) -> Tensor:
    """Ranges from starts and ends `[B|1, Nq|1, R]`."""
    return torch.stack([low, high], -1)


def one_range(low: Tensor | int, high: Tensor | int) -> Tensor:
    """One range a query, from starts and ends `[B|1, Nq|1]` or the same number for all."""
    first = low if isinstance(low, Tensor) else torch.full((1, 1), low)
    last = high if isinstance(high, Tensor) else torch.full((1, 1), high)
    return between((first + 0 * last).unsqueeze(2), (last + 0 * first).unsqueeze(2))


def runs(mask: Tensor) -> Tensor | None:
    """The runs of True in each row of a concrete bool `[B|1, Nq|1, Nk]`; None where some row has too many."""
    if not is_concrete(mask):
        return None
    padded = torch.nn.functional.pad(mask, (1, 1))
    starts, ends = padded[..., 1:] & ~padded[..., :-1], padded[..., :-1] & ~padded[..., 1:]
    most = int(starts.sum(-1).max()) if starts.numel() else 0
    if most > MOST_RANGES:
        return None
    size = mask.shape[-1]
    places = torch.arange(size + 1, device=mask.device)
    first, last = (torch.where(x, places, size).sort(-1).values[..., : max(1, most)] for x in (starts, ends))
    return between(first, last)


class SortedKeys:
    """The key's data in storage order, where it is known never to fall: then what compares to it forms a range."""

    def __init__(self, data: Tensor) -> None:
        self.data = data  # [B|1, Nk]

    @classmethod
    def of(cls, data: Tensor) -> SortedKeys | None:
        """Of given data, where its values can be read and never fall."""
        data = data.detach().long() if data.dtype == torch.bool else data.detach()
        return cls(data) if is_concrete(data) and bool((data.diff(dim=-1) >= 0).all()) else None

    def below(self, query: Tensor, or_at: bool) -> Tensor:
        """`[B|1, Nq]`: how many keys lie below `query [B|1, Nq]`, or at it."""
        query = query.detach().long() if query.dtype == torch.bool else query.detach()
        dtype = torch.promote_types(self.data.dtype, query.dtype)  # as torch compares them
        batch = max(self.data.shape[0], query.shape[0])
        data, query = (x.to(dtype).expand(batch, -1).contiguous() for x in (self.data, query))
        return torch.searchsorted(data, query, right=or_at)


class CountedKeys(SortedKeys):
    """Positions `offset … offset + Nk - 1`, not given: found by arithmetic, also where no value can be read."""

    def __init__(self, offset: int, num_keys: int) -> None:
        super().__init__(torch.arange(offset, offset + num_keys).unsqueeze(0))
        self.offset, self.num_keys = offset, num_keys

    def below(self, query: Tensor, or_at: bool) -> Tensor:
        if query.is_floating_point():
            return super().below(query, or_at)
        return (query - self.offset + int(or_at)).clamp(0, self.num_keys)


def sorted_positions(
    coords: tuple[Coords, Coords], num_queries: int, num_keys: int
) -> tuple[Tensor, SortedKeys] | None:
    """The queries' positions `[B|1, Nq]` and the keys', where those never fall."""
    query, key = coords
    if "position" in query:
        positions = query.data["position"]
    else:
        positions = torch.arange(query.offset, query.offset + num_queries).unsqueeze(0)
    if "position" not in key:
        return positions, CountedKeys(key.offset, num_keys)
    keys = SortedKeys.of(key.data["position"])
    return None if keys is None else (positions, keys)
