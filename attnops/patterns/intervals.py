"""Patterns over positions: causal, windows, chunks, prefixes, dilation."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnops.checks import require_number, require_positive
from attnops.coords import Coords, is_concrete
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern, Ranges
from attnops.patterns.rows import SortedKeys, one_range, sorted_positions


class PositionPattern(Pattern):
    """A pattern of positions p_i, p_j that can bound the key positions which a range of query positions reaches."""

    def reach(self, low: float, high: float) -> tuple[float, float]:
        """The least and largest key position that a query at a position in [low, high] may attend."""
        raise NotImplementedError(f"{type(self).__name__} must define reach(low, high)")

    @property
    def constants(self) -> tuple[object, ...] | None:
        return (type(self), *vars(self).values()) if type(self).__module__ == __name__ else None

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        query, key = coords
        if "position" in query:
            positions = query.data["position"][:, queries]
            if not is_concrete(positions) or positions.numel() == 0:
                return [(0, num_keys)]
            low, high = (float(value) for value in torch.aminmax(positions))
        else:
            low, high = queries.start + query.offset, queries.stop - 1 + query.offset
        least, largest = self.reach(low, high)
        if "position" not in key:
            start, stop = max(0, least - key.offset), min(num_keys - 1, largest - key.offset) + 1
            return [(int(start), int(stop))] if start < stop else []
        positions = key.data["position"]
        if not is_concrete(positions):
            return [(0, num_keys)]
        return hull(((positions >= least) & (positions <= largest)).any(0))


def hull(reached: Tensor) -> Ranges:
    """The one range from the first to the last True."""
    rows = reached.nonzero()
    return [(int(rows[0]), int(rows[-1]) + 1)] if rows.numel() else []


class Causal(PositionPattern):
    """p_j ≤ p_i: no key from the future.

    Positions are end-aligned by default, so 2 queries over 5 keys are the last two rows of a 5 × 5 triangle. With
    timestamps as positions a node hears only from the past.

    Example:
        >>> import torch, attnops
        >>> zeros, ramp = torch.zeros(1, 5, 1), torch.arange(5.0).view(1, 5, 1)
        >>> attnops.attend(zeros[:, :2], zeros, ramp, pattern=attnops.Causal()).flatten()
        tensor([1.5000, 2.0000])
    """

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.key.position <= pairs.query.position

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        sides = sorted_positions(coords, num_queries, num_keys)
        if sides is None:
            return None
        query, keys = sides
        return one_range(0, keys.below(query, or_at=True))

    def reach(self, low: float, high: float) -> tuple[float, float]:
        return float("-inf"), high

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        if not aligned:
            return num_queries * num_keys
        rows = min(num_queries, num_keys)  # those before see nothing
        return rows * num_keys - rows * (rows - 1) // 2


class SlidingWindow(PositionPattern):
    """p_i − left ≤ p_j ≤ p_i + right: left + right + 1 keys, its own position among them.

    A model whose window counts W keys, the query's own included, has left = W − 1.

    Args:
        left: how far back a query sees; `right`: how far ahead. In the unit of `position`.

    Raises:
        ValueError: a negative reach.

    Example:
        >>> import attnops
        >>> attnops.SlidingWindow(left=3)
        SlidingWindow(left=3, right=0)
    """

    def __init__(self, left: float, right: float = 0) -> None:
        require_number(left=left, right=right)
        for name, reach in (("left", left), ("right", right)):
            if not reach >= 0:
                raise ValueError(f"{name} is {reach}; a window must reach 0 or more")
        self.left, self.right = left, right

    def allows(self, pairs: Pairs) -> Tensor:
        back = pairs.query.position - pairs.key.position
        return (back <= self.left) & (back >= -self.right)

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        sides = sorted_positions(coords, num_queries, num_keys)
        if sides is None:
            return None
        query, keys = sides
        if query.is_floating_point() or keys.data.is_floating_point():
            return None  # their difference is rounded before it is compared
        left, right = (min(math.floor(reach), 2**61) for reach in (self.left, self.right))
        return one_range(keys.below(query - left, or_at=False), keys.below(query + right, or_at=True))

    def reach(self, low: float, high: float) -> tuple[float, float]:
        return low - self.left, high + self.right

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        width = (
            min(num_keys, int(self.left + self.right + 1))
            if aligned and self.left + self.right < num_keys
            else num_keys
        )
        return num_queries * width

    def __repr__(self) -> str:
        return f"SlidingWindow(left={self.left}, right={self.right})"


class Dilated(Pattern):
    """(p_i − p_j) mod step = 0: every step-th position, to both sides.

    Raises:
        ValueError: a step below 1.

    Example:
        >>> import attnops
        >>> attnops.SlidingWindow(8) & attnops.Dilated(2)
        SlidingWindow(left=8, right=0) & Dilated(step=2)
    """

    def __init__(self, step: int) -> None:
        require_positive(step=step)
        self.step = step

    def allows(self, pairs: Pairs) -> Tensor:
        return torch.remainder(pairs.query.position - pairs.key.position, self.step) == 0

    def __repr__(self) -> str:
        return f"Dilated(step={self.step})"


class Chunked(PositionPattern):
    """⌊p_i / size⌋ = ⌊p_j / size⌋: attention inside chunks of `size` positions (Llama 4's local layers, with `Causal`).

    Raises:
        ValueError: a size that is not positive.

    Example:
        >>> import attnops
        >>> attnops.Chunked(8192) & attnops.Causal()
        Chunked(size=8192) & Causal()
    """

    def __init__(self, size: int) -> None:
        require_number(size=size)
        if not size > 0:
            raise ValueError(f"size is {size}; it must be positive")
        self.size = size

    def allows(self, pairs: Pairs) -> Tensor:
        query = torch.div(pairs.query.position, self.size, rounding_mode="floor")
        return query == torch.div(pairs.key.position, self.size, rounding_mode="floor")

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        sides = sorted_positions(coords, num_queries, num_keys)
        if sides is None:
            return None
        query, keys = sides
        query, chunks = (torch.div(x, self.size, rounding_mode="floor") for x in (query, keys.data))
        keys = SortedKeys(chunks)
        return one_range(keys.below(query, or_at=False), keys.below(query, or_at=True))

    def reach(self, low: float, high: float) -> tuple[float, float]:
        return low // self.size * self.size, high // self.size * self.size + self.size

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        return num_queries * (min(num_keys, self.size) if aligned else num_keys)

    def __repr__(self) -> str:
        return f"Chunked(size={self.size})"


class PrefixLM(PositionPattern):
    """p_j ≤ p_i or p_j < length: a prefix that all see, then causal (T5's and UniLM's prefix language model).

    Raises:
        ValueError: a negative length.

    Example:
        >>> import attnops
        >>> attnops.PrefixLM(16)
        PrefixLM(length=16)
    """

    def __init__(self, length: float) -> None:
        require_number(length=length)
        if not length >= 0:
            raise ValueError(f"length is {length}; it must be 0 or more")
        self.length = length

    def allows(self, pairs: Pairs) -> Tensor:
        return (pairs.key.position <= pairs.query.position) | (pairs.key.position < self.length)

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        sides = sorted_positions(coords, num_queries, num_keys)
        if sides is None:
            return None
        query, keys = sides
        length = self.length if keys.data.is_floating_point() else min(math.ceil(self.length), 2**61)
        prefix = keys.below(torch.full((1, 1), length, dtype=keys.data.dtype), or_at=False)
        return one_range(0, torch.maximum(keys.below(query, or_at=True), prefix))

    def reach(self, low: float, high: float) -> tuple[float, float]:
        return float("-inf"), max(high, self.length)

    def __repr__(self) -> str:
        return f"PrefixLM(length={self.length})"
