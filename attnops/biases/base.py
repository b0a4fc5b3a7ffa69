"""What is preferred before any content is seen: the `Bias` protocol and its sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from attnops.biases.terms import LaidOut, Term
from attnops.coords import Coords
from attnops.pairs import Pairs, as_four_axes

if TYPE_CHECKING:
    pass


@runtime_checkable
class Allowing(Protocol):
    """A pattern, as a bias sees it: what allows pairs is 0 there and -inf elsewhere."""

    def allows(self, pairs: Pairs) -> Tensor:
        """Bool over the pairs."""

    def __add__(self, other: object) -> object:
        """The sum of two patterns as biases."""


class Bias(nn.Module):
    """A prior b_ij added to the logits; write `forward` over `Pairs`, and every backend can run it.

    Three hooks, each optional:

    - `forward(pairs) -> Tensor`: b_ij, broadcasting over the pairs; -inf forbids a pair.
    - `rotate(query, key, coords) -> (query, key)`: a prior that acts on the vectors (RoPE); `coords` is the pair of
      query and key coords with `position` filled in. Vectors are `[B, H, N, D]` and `[B, Hkv, N, D]`, B flat.
    - `bind(query, key) -> Bias`: once a call, on the vectors before rotation, for priors that need the content (Shaw's
      q·r); returns the bias to use in this call and keeps no state on itself.

    Biases add: `ALiBi(8) + EdgeBias(4, 8)`; a pattern may be added too. Where a bias has `heads`, it must equal H.

    Example:
        >>> import torch, attnops
        >>> class TimeGap(attnops.Bias):
        ...     def __init__(self, heads):
        ...         super().__init__()
        ...         self.log_rate = torch.nn.Parameter(torch.zeros(heads))
        ...     def forward(self, pairs):
        ...         gap = (pairs.query.time - pairs.key.time).abs()
        ...         return -self.log_rate.exp()[pairs.head] * gap
        >>> x, time = torch.randn(2, 5, 4), torch.tensor([0.0, 0.5, 1.0, 4.0, 9.0])
        >>> attnops.attend(x, x, x, bias=TimeGap(2), coords=attnops.Coords(time=time)).shape
        torch.Size([2, 5, 4])
    """

    heads: int | None = None

    def forward(self, pairs: Pairs) -> Tensor:
        """b_ij at the pairs; a bias that only rotates or binds adds 0."""
        return torch.zeros((1,) * len(pairs.shape), dtype=pairs.dtype, device=pairs.device)

    def rotate(self, query: Tensor, key: Tensor, coords: tuple[Coords, Coords]) -> tuple[Tensor, Tensor]:
        """Query and key as the prior turns them."""
        return query, key

    def bind(self, query: Tensor, key: Tensor) -> Bias:
        """The bias to use with these vectors."""
        return self

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        """Raise `ValueError` where coords or edge data hold what this bias cannot read (a table index out of range)."""

    @property
    def reach(self) -> float | None:
        """Where b_ij is a function of the head and p_j − p_i alone: from which difference on it stays as it is (inf: it
        never does). Whoever writes `forward` anew writes this anew too, or it is not asked for."""
        return None

    def term(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Term | None:
        """The bias in a form that a compiled kernel knows; None where there is none. As `reach`, it is bound to
        `forward`."""
        return None

    @property
    def terms(self) -> tuple[Bias, ...]:
        """The biases that this one is the sum of."""
        return (self,)

    @property
    def pattern(self) -> Allowing | None:
        """The pattern that was added to it."""
        return None

    @property
    def constants(self) -> tuple[object, ...] | None:
        """What determines the bias where it is a function of positions and numbers alone; None where it is not."""
        return None

    @property
    def adds(self) -> bool:
        """Whether `forward` adds anything to the logits."""
        return type(self).forward is not Bias.forward

    @property
    def rotates(self) -> bool:
        """Whether `rotate` changes the vectors."""
        return type(self).rotate is not Bias.rotate

    @property
    def binds(self) -> bool:
        """Whether `bind` looks at the vectors."""
        return type(self).bind is not Bias.bind

    def __add__(self, other: object) -> BiasSum:
        return _sum(self, other)

    def __radd__(self, other: object) -> BiasSum:
        return _sum(other, self)


class BiasSum(Bias):
    """The sum of biases, and the pattern that was added to them."""

    def __init__(self, terms: tuple[Bias, ...], pattern: Allowing | None) -> None:
        super().__init__()
        self.parts = nn.ModuleList(terms)
        self._pattern = pattern

    @property
    def terms(self) -> tuple[Bias, ...]:
        return tuple(self.parts)  # type: ignore[arg-type]

    @property
    def pattern(self) -> Allowing | None:
        return self._pattern

    @property
    def adds(self) -> bool:
        return any(term.adds for term in self.terms)

    @property
    def rotates(self) -> bool:
        return any(term.rotates for term in self.terms)

    @property
    def binds(self) -> bool:
        return any(term.binds for term in self.terms)

    def forward(self, pairs: Pairs) -> Tensor:
        total: Tensor | None = None
        for term in self.terms:
            if term.adds:
                total = term(pairs) if total is None else total + term(pairs)
        return super().forward(pairs) if total is None else total

    def rotate(self, query: Tensor, key: Tensor, coords: tuple[Coords, Coords]) -> tuple[Tensor, Tensor]:
        for term in self.terms:
            if term.rotates:
                query, key = term.rotate(query, key, coords)
        return query, key

    def bind(self, query: Tensor, key: Tensor) -> Bias:
        if not self.binds:
            return self
        return BiasSum(tuple(term.bind(query, key) for term in self.terms), self._pattern)

    @property
    def constants(self) -> tuple[object, ...] | None:
        terms = tuple(term.constants for term in self.terms if term.adds)
        return None if None in terms else (BiasSum, *terms)

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        for term in self.terms:
            term.check(coords, edge_bounds)

    def __repr__(self) -> str:
        parts = [str(term) for term in self.terms] + ([str(self._pattern)] if self._pattern is not None else [])
        return " + ".join(parts)


class TensorBias(Bias):
    """A tensor added to the logits: `[*B, H, Nq, Nk]`, or `[*B, H, E]` over edges, broadcastable."""

    def __init__(self, values: Tensor, per_edge: bool) -> None:
        super().__init__()
        self.values, self.per_edge = values, per_edge

    def forward(self, pairs: Pairs) -> Tensor:
        return pairs.read_edges(self.values) if self.per_edge else pairs.read(self.values)

    def term(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Term | None:
        return None if self.per_edge else LaidOut(as_four_axes(self.values, batch_shape))

    def __repr__(self) -> str:
        return f"tensor {list(self.values.shape)}"


def _sum(left: object, right: object) -> BiasSum:
    terms: tuple[Bias, ...] = ()
    pattern: Allowing | None = None
    for side in (left, right):
        if isinstance(side, Bias):
            terms += side.terms
            added = side.pattern
        elif isinstance(side, Allowing) and not isinstance(side, Tensor):
            added = side
        else:
            raise TypeError(f"{type(side).__name__} cannot be added to a Bias; a Bias or a Pattern can")
        if added is not None:
            pattern = added if pattern is None else pattern + added  # type: ignore[assignment]
    return BiasSum(terms, pattern)
