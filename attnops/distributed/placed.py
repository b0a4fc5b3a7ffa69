"""Patterns, biases and scores of a whole problem, seen by a part of it: some queries, some keys, some heads.

What reads positions and other coords is the same for any part, since coords travel with their tokens. What reads
storage rows (`index`), whole tables or `head` is told here where the part lies in the whole.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor

from attnops.biases.base import Bias, BiasSum, TensorBias
from attnops.coords import Coords
from attnops.pairs import Pairs, Rows
from attnops.patterns.base import Complement, Intersection, Pattern, Union
from attnops.patterns.blocks import BlockMask, Mask
from attnops.patterns.segments import Padding, SameSegment
from attnops.scores.base import Score
from attnops.scores.dot import DotProduct


@dataclass(frozen=True, eq=False)
class Part:
    """A part of a problem: the rows of its queries and keys in the whole, and its first head; None where it has all."""

    queries: Tensor | None = None
    keys: Tensor | None = None
    heads: slice | None = None

    def pairs(self, pairs: Pairs) -> Pairs:
        """The same pairs, by the rows and heads of the whole."""
        seen = copy.copy(pairs)
        if self.queries is not None:
            seen.query = _Side(pairs.query, self.queries)  # type: ignore[assignment]
            seen.queries = self.queries[pairs.queries]
        if self.keys is not None:
            seen.key = _Side(pairs.key, self.keys)  # type: ignore[assignment]
            seen.keys = self.keys[pairs.keys]
        if self.heads is not None:
            seen.head = pairs.head + self.heads.start
        return seen

    def cut(self, table: Tensor) -> Tensor:
        """The part of a tensor that broadcasts to `[*B, H, Nq, Nk]` of the whole."""
        if self.keys is not None and table.ndim > 0 and table.shape[-1] > 1:
            table = table.index_select(-1, self.keys.to(table.device))
        if self.queries is not None and table.ndim > 1 and table.shape[-2] > 1:
            table = table.index_select(-2, self.queries.to(table.device))
        if self.heads is not None and table.ndim > 2 and table.shape[-3] > 1:
            table = table[..., self.heads, :, :]
        return table


class _Side:
    """One side of the pairs whose `index` is the row in the whole."""

    def __init__(self, rows: Rows, whole: Tensor) -> None:
        self._rows, self._whole = rows, whole

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name == "index":
            return self._whole[self._rows.index]
        value: Tensor = getattr(self._rows, name)
        return value


def place_pattern(pattern: Pattern, part: Part) -> Pattern:
    """The pattern of the whole, as the part sees it."""
    if isinstance(pattern, Intersection):
        placed = place_pattern(pattern.terms[0], part)
        for term in pattern.terms[1:]:
            placed = placed & place_pattern(term, part)
        return placed
    if isinstance(pattern, Union):
        placed = place_pattern(pattern.terms[0], part)
        for term in pattern.terms[1:]:
            placed = placed | place_pattern(term, part)
        return placed
    if isinstance(pattern, Complement):
        return ~place_pattern(pattern.term, part)
    if pattern.constants is not None or type(pattern) is SameSegment:
        return pattern
    if type(pattern) is Mask:
        return Mask(part.cut(pattern.mask))
    if (
        type(pattern) is BlockMask
        and part.heads is not None
        and pattern.blocks.ndim > 2
        and pattern.blocks.shape[-3] > 1
    ):
        return place_pattern(
            BlockMask(pattern.blocks[..., part.heads, :, :], pattern.block_size), Part(part.queries, part.keys)
        )
    if type(pattern) is Padding and part.keys is not None:
        lengths = pattern.key_lengths
        if lengths.dtype == torch.bool:
            return Padding(lengths.index_select(-1, part.keys.to(lengths.device)))
        return Padding(part.keys.to(lengths.device) < lengths.unsqueeze(-1))
    return PlacedPattern(pattern, part)


def on_cpu(pattern: Pattern) -> Pattern:
    """The pattern with what its ranges are read from on the CPU, where visits are planned."""
    if isinstance(pattern, Intersection | Union):
        return type(pattern)(*(on_cpu(term) for term in pattern.terms))
    if isinstance(pattern, Complement):
        return Complement(on_cpu(pattern.term))
    return Padding(pattern.key_lengths.cpu()) if type(pattern) is Padding else pattern


class PlacedPattern(Pattern):
    """A pattern that may read rows and heads, given those of the whole."""

    def __init__(self, whole: Pattern, part: Part) -> None:
        self.whole, self.part = whole, part

    def allows(self, pairs: Pairs) -> Tensor:
        return self.whole.allows(self.part.pairs(pairs))

    def __repr__(self) -> str:
        return repr(self.whole)


def place_bias(bias: Bias | None, part: Part) -> Bias | None:
    """The bias of the whole, as the part sees it; its parameters are those of the whole."""
    if bias is None:
        return None
    placed = tuple(_place_term(term, part) for term in bias.terms)
    return placed[0] if len(placed) == 1 else BiasSum(placed, None)


def _place_term(term: Bias, part: Part) -> Bias:
    if type(term) is TensorBias:
        return TensorBias(part.cut(term.values), per_edge=False)
    library = type(term).__module__.startswith("attnops.")
    if library and part.heads is None:
        return term
    return PlacedBias(term, part)


def own_heads(heads: int | None, part: Part) -> int | None:
    """How many of the whole's heads a part sees; None where any number will do."""
    return heads if heads is None or part.heads is None else part.heads.stop - part.heads.start


class PlacedBias(Bias):
    """A bias that may read rows and heads, given those of the whole."""

    def __init__(self, whole: Bias, part: Part) -> None:
        super().__init__()
        self.whole, self.part = whole, part
        self.heads = own_heads(whole.heads, part)

    @property
    def adds(self) -> bool:
        return self.whole.adds

    @property
    def rotates(self) -> bool:
        return self.whole.rotates

    @property
    def binds(self) -> bool:
        return self.whole.binds

    def forward(self, pairs: Pairs) -> Tensor:
        out: Tensor = self.whole(self.part.pairs(pairs))
        own = self.part.heads
        if own is not None and len(pairs.shape) and out.ndim == len(pairs.shape) and out.shape[1] == self.whole.heads:
            return out[:, own]  # laid out for all heads, without asking which
        return out

    def rotate(self, query: Tensor, key: Tensor, coords: tuple[Coords, Coords]) -> tuple[Tensor, Tensor]:
        return self.whole.rotate(query, key, coords)

    def bind(self, query: Tensor, key: Tensor) -> Bias:
        return PlacedBias(self.whole.bind(query, key), self.part)

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        self.whole.check(coords, edge_bounds)


def place_score(score: Score | None, part: Part) -> Score | None:
    """The score of the whole, as the part sees it."""
    if score is None or type(score) is DotProduct:
        return score
    if type(score).__module__.startswith("attnops.") and part.heads is None:
        return score
    return PlacedScore(score, part)


class PlacedScore(Score):
    """A score that may read rows and heads, given those of the whole."""

    def __init__(self, whole: Score, part: Part) -> None:
        super().__init__()
        self.whole, self.part = whole, part
        self.heads = own_heads(whole.heads, part)

    @property
    def binds(self) -> bool:
        return self.whole.binds

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        out: Tensor = self.whole(query, key, self.part.pairs(pairs))
        return out

    def bind(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Score]:
        query, key, bound = self.whole.bind(query, key)
        return query, key, PlacedScore(bound, self.part)

    def check(self, dim: int) -> None:
        self.whole.check(dim)
