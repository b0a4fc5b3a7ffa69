"""A prior between the types of two nodes."""

from __future__ import annotations

from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.tables import read_table, require_in_range, require_integer, zeros
from attnops.biases.terms import Table, Term
from attnops.checks import require_positive
from attnops.coords import Coords
from attnops.pairs import Pairs


class TypePrior(Bias):
    """b_ij = weight[type_i, type_j, h]: a learned logit for each pair of node types.

    Args:
        query_types, key_types: how many types each side has. heads: H.

    Reads the coord `type` of both sides, integer. Parameter: `weight [query_types, key_types, heads]`, 0 at the start.

    Raises:
        ValueError: a type that is negative or not below the number of its side.
        TypeError: types that are not integers.

    Source: a prior a pair of node types, as μ in HGT (Hu et al. 2020, arXiv:2003.01332), here as its logarithm.

    Example:
        >>> import torch, attnops
        >>> x, nodes = torch.randn(2, 3, 8), attnops.Coords(type=torch.tensor([0, 1, 1]))
        >>> attnops.attend(x, x, x, bias=attnops.TypePrior(2, 2, heads=2), coords=nodes).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, query_types: int, key_types: int, heads: int) -> None:
        super().__init__()
        require_positive(query_types=query_types, key_types=key_types, heads=heads)
        self.heads: int = heads
        self.query_types, self.key_types = query_types, key_types
        self.weight = zeros(query_types, key_types, heads)

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        for side, tokens, count in (("query", coords[0], self.query_types), ("key", coords[1], self.key_types)):
            name, meaning = f"coords.type of the {side} side", f"TypePrior has {count} {side} types, 0 … {count - 1}"
            require_in_range(tokens.bounds("type"), 0, count - 1, name, meaning)

    def forward(self, pairs: Pairs) -> Tensor:
        query = require_integer(pairs.query.type, "coords.type of the query side", "TypePrior").long()
        key = require_integer(pairs.key.type, "coords.type of the key side", "TypePrior").long()
        row = query.clamp(0, self.query_types - 1) * self.key_types + key.clamp(0, self.key_types - 1)
        return read_table(self.weight.flatten(0, 1), row, pairs)

    def term(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Term | None:
        kinds = [side.data.get("type") for side in coords]
        if any(kind is None or kind.is_floating_point() for kind in kinds):
            return None  # `forward` says what is missing
        query, key = (kind.long() for kind in kinds if kind is not None)
        row, column = query.clamp(0, self.query_types - 1), key.clamp(0, self.key_types - 1)
        return Table(self.weight.permute(2, 0, 1).unsqueeze(0), 0, row=row, column=column)

    def extra_repr(self) -> str:
        return f"query_types={self.query_types}, key_types={self.key_types}, heads={self.heads}"
