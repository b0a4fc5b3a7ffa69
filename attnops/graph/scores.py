"""The core's additive scores on vectors that a layer holds, with a term that edges carry."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from attnops.pairs import Pairs
from attnops.scores import Additive, Score, SeparableAdditive


class GATv2Score(Additive):
    """aᵀ LeakyReLU(q_i + k_j), the vector a `[heads, dim]` given."""

    def __init__(self, a: Tensor, negative_slope: float) -> None:
        super(Additive, self).__init__()  # past the parameter that Additive would draw
        self.heads, self.dim = a.shape
        self.a, self.activation, self.negative_slope = a, "leaky_relu", negative_slope  # type: ignore[assignment]


class GATv2EdgeScore(GATv2Score):
    """aᵀ LeakyReLU(q_i + k_j + e_ij), with e_ij read from `edge.projected [E, heads · dim]`."""

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        return super().forward(query + edge_vectors(pairs, self.dim).to(query.dtype), key, pairs)


class GATScore(SeparableAdditive):
    """LeakyReLU(a_q·q_i + a_k·k_j), both vectors `[heads, dim]` given."""

    def __init__(self, a_q: Tensor, a_k: Tensor, negative_slope: float) -> None:
        super(SeparableAdditive, self).__init__()  # past the parameters that it would draw
        self.heads, self.dim = a_q.shape
        self.a_q, self.a_k, self.negative_slope = a_q, a_k, negative_slope  # type: ignore[assignment]


class GATEdgeScore(GATScore):
    """LeakyReLU(a_q·q_i + a_k·k_j + t_ij), with t_ij read from `edge.projected [E, heads]`."""

    def bind(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Score]:
        left, right, _ = super().bind(query, key)
        return left, right, _LeakySumWithEdge(self.negative_slope)


class _LeakySumWithEdge(Score):
    """LeakyReLU(s_i + r_j + t_ij) over scalars that are already summed for each row."""

    def __init__(self, negative_slope: float) -> None:
        super().__init__()
        self.negative_slope = negative_slope

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        term = edge_vectors(pairs, 1).to(query.dtype)
        return F.leaky_relu((query + key + term).squeeze(-1), self.negative_slope)


def edge_vectors(pairs: Pairs, dim: int) -> Tensor:
    """`edge.projected [E, H · dim]` at the pairs, heads where vectors have them: `[1, H, …pairs, dim]`."""
    projected: Tensor = pairs.edge.projected  # [1, 1, …, H · dim] on a list or a grid, [H · dim] for one pair
    vectors = projected.view(*projected.shape[:-1], projected.shape[-1] // dim, dim)
    return vectors.squeeze(1).movedim(-2, 1) if pairs.shape else vectors[pairs.head]
