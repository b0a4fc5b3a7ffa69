"""Priors that edges carry: features through a learned linear map, and a learned logit a type."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.precision import no_autocast
from attnops.biases.tables import edge_data, edge_scalar, read_table, require_in_range, require_integer, zeros
from attnops.checks import require_positive
from attnops.coords import Coords
from attnops.pairs import Pairs

CHUNK = 512  # edges whose features meet the weight in one product


class EdgeBias(Bias):
    """b_ij = weight_h · attr_ij: edge features through a linear map without an offset.

    Args:
        edge_dim: F, the features of an edge. heads: H.

    Reads `edge.attr`, real or integer `[E, F]` (`[E]` where F is 1). Parameter: `weight [heads, edge_dim]`, 0 at the
    start.

    Raises:
        ValueError: edge.attr with another number of features.

    Source: edge features as attention biases, as in Graphormer (Ying et al. 2021, arXiv:2106.05234).

    Example:
        >>> import torch, attnops
        >>> graph = attnops.Edges(torch.tensor([[0, 1, 2], [1, 2, 2]]), 3, 3, attr=torch.randn(3, 4))
        >>> x = torch.randn(2, 3, 8)                                              # [H, N, D]
        >>> attnops.attend(x, x, x, pattern=graph, bias=attnops.EdgeBias(4, 2)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, edge_dim: int, heads: int) -> None:
        super().__init__()
        require_positive(edge_dim=edge_dim, heads=heads)
        self.heads: int = heads
        self.edge_dim = edge_dim
        self.weight = zeros(heads, edge_dim)

    def forward(self, pairs: Pairs) -> Tensor:
        attr = self._features(pairs)
        weight = self.weight.to(pairs.dtype)
        if not pairs.shape:
            total = attr[0] * weight[pairs.head, 0]
            for feature in range(1, self.edge_dim):
                total = total + attr[feature] * weight[pairs.head, feature]
            return total
        with no_autocast(pairs.device):
            if len(pairs.shape) == 3:
                return _in_chunks(attr[0, 0], weight).t().unsqueeze(0)
            return torch.matmul(attr.squeeze(1), weight.t()).movedim(-1, 1)  # [1, …, F] → [1, …, H] → [1, H, …]

    def _features(self, pairs: Pairs) -> Tensor:
        attr = edge_data(pairs, "attr").to(pairs.dtype)
        if attr.ndim == len(pairs.shape) and self.edge_dim == 1:
            attr = attr.unsqueeze(-1)
        if attr.ndim != len(pairs.shape) + 1 or attr.shape[-1] != self.edge_dim:
            shape, wanted = ["E", *attr.shape[len(pairs.shape) :]], ["E", self.edge_dim]
            raise ValueError(f"edge.attr is {shape}; EdgeBias has edge_dim={self.edge_dim}, so it must be {wanted}")
        return attr

    def extra_repr(self) -> str:
        return f"edge_dim={self.edge_dim}, heads={self.heads}"


def _in_chunks(attr: Tensor, weight: Tensor) -> Tensor:
    """`attr [E, F] @ weightᵀ` in chunks of one size: the weight's gradient adds up in one order on any threads."""
    num_edges, edge_dim = attr.shape
    chunks = -(-num_edges // CHUNK)
    padded = F.pad(attr, (0, 0, 0, chunks * CHUNK - num_edges)).view(chunks, CHUNK, edge_dim)
    return torch.bmm(padded, weight.t().expand(chunks, -1, -1)).flatten(0, 1)[:num_edges]


class EdgeTypePrior(Bias):
    """b_ij = weight[type_ij, h]: a learned logit for each type of edge.

    Args:
        num_types: how many types. heads: H.

    Reads `edge.type`, integer `[E]`. Parameter: `weight [num_types, heads]`, 0 at the start.

    Raises:
        ValueError: a type that is negative or not below num_types.
        TypeError: types that are not integers.

    Source: a relation's prior in the softmax, as μ in HGT (Hu et al. 2020, arXiv:2003.01332), here as its logarithm.

    Example:
        >>> import torch, attnops
        >>> graph = attnops.Edges(torch.tensor([[0, 1, 2], [1, 2, 2]]), 3, 3, type=torch.tensor([0, 1, 1]))
        >>> x = torch.randn(2, 3, 8)                                              # [H, N, D]
        >>> attnops.attend(x, x, x, pattern=graph, bias=attnops.EdgeTypePrior(2, 2)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, num_types: int, heads: int) -> None:
        super().__init__()
        require_positive(num_types=num_types, heads=heads)
        self.heads: int = heads
        self.num_types = num_types
        self.weight = zeros(num_types, heads)

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        meaning = f"EdgeTypePrior has {self.num_types} types, 0 … {self.num_types - 1}"
        require_in_range(edge_bounds.get("type"), 0, self.num_types - 1, "edge.type", meaning)

    def forward(self, pairs: Pairs) -> Tensor:
        types = edge_scalar(pairs, "type", "EdgeTypePrior")
        return read_table(self.weight, require_integer(types, "edge.type", "EdgeTypePrior"), pairs)

    def extra_repr(self) -> str:
        return f"num_types={self.num_types}, heads={self.heads}"
