"""Who may interact with whom: the `Pattern` protocol and its algebra `&`, `|`, `~`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from attnops.coords import Coords
from attnops.pairs import Pairs
from attnops.patterns.rows import complement, exact_ranges, intersect, one_range, unite

if TYPE_CHECKING:
    from attnops.patterns.edges import Edges

Ranges = list[tuple[int, int]]
"""Sorted, disjoint, half-open ranges of key rows."""


class Pattern:
    """The pairs (i, j) that may interact; write `allows`, and every backend can run it.

    A pattern is also the bias that is 0 where it allows and -inf elsewhere. Combine patterns by `&`, `|` and `~`.

    Example:
        >>> import torch, attnops
        >>> class Even(attnops.Pattern):
        ...     def allows(self, pairs):
        ...         return pairs.key.index % 2 == 0
        >>> Even() & attnops.Causal()
        Even() & Causal()
    """

    def __init_subclass__(cls, **options: object) -> None:
        """A class that writes `allows` anew does not inherit what was said of another one."""
        super().__init_subclass__(**options)
        if "allows" in vars(cls):
            if "key_ranges" not in vars(cls) and "reach" not in vars(cls):
                cls.key_ranges = Pattern.key_ranges  # type: ignore[method-assign]
            if "most_pairs" not in vars(cls):
                cls.most_pairs = Pattern.most_pairs  # type: ignore[method-assign]

    def allows(self, pairs: Pairs) -> Tensor:
        """Bool tensor that broadcasts over the pairs: may this query attend this key?"""
        raise NotImplementedError(f"{type(self).__name__} must define allows(pairs) -> bool tensor")

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        """Key rows outside of which these queries may attend nothing; a pattern that knows no better returns all."""
        return [(0, num_keys)]

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        """Exactly the keys that each query may attend, as integer ranges `[B|1, Nq|1, R, 2]`; None where it cannot say.

        Whoever writes `allows` anew writes this anew too, or it is not asked for.
        """
        return None

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        """A bound on the pairs allowed, from sizes alone; `aligned` says that positions are the end-aligned default."""
        return num_queries * num_keys

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        """Raise `ValueError` where this pattern does not fit a problem of these sizes."""

    @property
    def edges(self) -> Edges | None:
        """The edge list whose order, duplicates and data this pattern keeps, if it is one."""
        return None

    @property
    def filter(self) -> Pattern | None:
        """What else a pair of `edges` must satisfy."""
        return None

    @property
    def leaves(self) -> tuple[Pattern, ...]:
        """The patterns that this one is combined from."""
        return (self,)

    @property
    def constants(self) -> tuple[object, ...] | None:
        """What determines the pattern where it is a function of positions and numbers alone; None where it is not."""
        return None

    def __and__(self, other: Pattern) -> Pattern:
        _require_pattern(other, "&")
        return Intersection.of(self, other)

    def __or__(self, other: Pattern) -> Pattern:
        _require_pattern(other, "|")
        return Union.of(self, other)

    def __bool__(self) -> bool:
        raise TypeError(f"{self} is neither true nor false; patterns combine by &, | and ~, not by and, or and not")

    def __invert__(self) -> Pattern:
        return Complement(self)

    def __add__(self, other: Pattern) -> Pattern:
        """As biases, 0 or -inf, two patterns add to their intersection."""
        if not isinstance(other, Pattern):
            return NotImplemented
        return Intersection.of(self, other)

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"


def _require_pattern(other: object, sign: str) -> None:
    if isinstance(other, Tensor):
        raise TypeError(f"a tensor stands beside {sign}; a bool mask joins patterns as Mask(mask)")
    if not isinstance(other, Pattern):
        raise TypeError(f"{other!r} stands beside {sign}; it must be a Pattern")


class Full(Pattern):
    """Every pair. The unit of `&`.

    Example:
        >>> import attnops
        >>> attnops.Full() & attnops.Causal()
        Causal()
    """

    def allows(self, pairs: Pairs) -> Tensor:
        return torch.ones((1,) * len(pairs.shape), dtype=torch.bool, device=pairs.device)

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        return one_range(0, num_keys)

    @property
    def constants(self) -> tuple[object, ...]:
        return (Full,)

    def __and__(self, other: Pattern) -> Pattern:
        return other

    def __or__(self, other: Pattern) -> Pattern:
        return self


class Intersection(Pattern):
    """Pairs that every term allows."""

    def __init__(self, *terms: Pattern) -> None:
        self.terms = terms

    @property
    def constants(self) -> tuple[object, ...] | None:
        terms = tuple(term.constants for term in self.terms)
        return None if None in terms else (Intersection, *terms)

    @classmethod
    def of(cls, left: Pattern, right: Pattern) -> Pattern:
        """`left & right`, flat, without `Full`."""
        terms: list[Pattern] = []
        for side in (left, right):
            terms += side.terms if isinstance(side, Intersection) else [side]
        terms = [term for term in terms if type(term) is not Full]
        return cls(*terms) if len(terms) > 1 else terms[0] if terms else Full()

    def allows(self, pairs: Pairs) -> Tensor:
        allowed = self.terms[0].allows(pairs)
        for term in self.terms[1:]:
            allowed = allowed & term.allows(pairs)
        return allowed

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        ranges: Ranges = [(0, num_keys)]
        for term in self.terms:
            ranges = intersect_ranges(ranges, term.key_ranges(coords, queries, num_keys))
        return ranges

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        ranges = exact_ranges(self.terms[0], coords, batch_shape, num_queries, num_keys)
        for term in self.terms[1:]:
            others = exact_ranges(term, coords, batch_shape, num_queries, num_keys)
            if ranges is None or others is None:
                return None
            ranges = intersect(ranges, others)
        return ranges

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        return min(term.most_pairs(num_queries, num_keys, aligned) for term in self.terms)

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        for term in self.terms:
            term.check(batch_shape, heads, num_queries, num_keys, device)

    @property
    def edges(self) -> Edges | None:
        lists = [term.edges for term in self.terms if term.edges is not None]
        return lists[0] if len(lists) == 1 else None  # two edge lists intersect as sets of pairs

    @property
    def filter(self) -> Pattern | None:
        if self.edges is None:
            return None
        rest: Pattern = Full()
        for term in self.terms:
            if term.edges is None:
                rest = rest & term
            elif term.filter is not None:
                rest = rest & term.filter
        return rest

    @property
    def leaves(self) -> tuple[Pattern, ...]:
        return tuple(leaf for term in self.terms for leaf in term.leaves)

    def __repr__(self) -> str:
        return " & ".join(f"({term})" if isinstance(term, Union) else str(term) for term in self.terms)


class Union(Pattern):
    """Pairs that some term allows."""

    def __init__(self, *terms: Pattern) -> None:
        self.terms = terms

    @classmethod
    def of(cls, left: Pattern, right: Pattern) -> Pattern:
        """`left | right`, flat; anything with `Full` is `Full`."""
        if type(left) is Full or type(right) is Full:
            return Full()
        terms: list[Pattern] = []
        for side in (left, right):
            terms += side.terms if isinstance(side, Union) else [side]
        return cls(*terms)

    def allows(self, pairs: Pairs) -> Tensor:
        allowed = self.terms[0].allows(pairs)
        for term in self.terms[1:]:
            allowed = allowed | term.allows(pairs)
        return allowed

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        ranges: Ranges = []
        for term in self.terms:
            ranges = unite_ranges(ranges, term.key_ranges(coords, queries, num_keys))
        return ranges

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        ranges = exact_ranges(self.terms[0], coords, batch_shape, num_queries, num_keys)
        for term in self.terms[1:]:
            others = exact_ranges(term, coords, batch_shape, num_queries, num_keys)
            if ranges is None or others is None:
                return None
            ranges = unite(ranges, others)
        return ranges

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        return min(num_queries * num_keys, sum(term.most_pairs(num_queries, num_keys, aligned) for term in self.terms))

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        for term in self.terms:
            term.check(batch_shape, heads, num_queries, num_keys, device)

    @property
    def leaves(self) -> tuple[Pattern, ...]:
        return tuple(leaf for term in self.terms for leaf in term.leaves)

    def __repr__(self) -> str:
        return " | ".join(f"({term})" if isinstance(term, Intersection) else str(term) for term in self.terms)


class Complement(Pattern):
    """Pairs that the term forbids."""

    def __init__(self, term: Pattern) -> None:
        self.term = term

    def allows(self, pairs: Pairs) -> Tensor:
        return ~self.term.allows(pairs)

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        ranges = exact_ranges(self.term, coords, batch_shape, num_queries, num_keys)
        return None if ranges is None else complement(ranges, num_keys)

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        self.term.check(batch_shape, heads, num_queries, num_keys, device)

    @property
    def leaves(self) -> tuple[Pattern, ...]:
        return self.term.leaves

    def __invert__(self) -> Pattern:
        return self.term

    def __repr__(self) -> str:
        return f"~({self.term})" if isinstance(self.term, Intersection | Union) else f"~{self.term}"


def intersect_ranges(left: Ranges, right: Ranges) -> Ranges:
    """The rows in both."""
    both = [(max(a, c), min(b, d)) for a, b in left for c, d in right]
    return sorted((low, high) for low, high in both if low < high)


def unite_ranges(left: Ranges, right: Ranges) -> Ranges:
    """The rows in either, ranges that touch joined."""
    united: Ranges = []
    for low, high in sorted(left + right):
        if low >= high:
            continue
        if united and low <= united[-1][1]:
            united[-1] = (united[-1][0], max(united[-1][1], high))
        else:
            united.append((low, high))
    return united
