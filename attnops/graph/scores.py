"""The core's additive scores on vectors that a layer holds, with a term that edges carry."""

from __future__ import annotations

from torch import Tensor

from attnops.scores import Additive, SeparableAdditive


class GATv2Score(Additive):
    """aᵀ LeakyReLU(q_i + k_j), the vector a `[heads, dim]` given."""

    def __init__(self, a: Tensor, negative_slope: float) -> None:
        super(Additive, self).__init__()  # past the parameter that Additive would draw
        self.heads, self.dim = a.shape
        self.a, self.activation, self.negative_slope = a, "leaky_relu", negative_slope  # type: ignore[assignment]


class GATv2EdgeScore(GATv2Score):
    """aᵀ LeakyReLU(q_i + k_j + e_ij), with e_ij read from `edge.projected [E, heads · dim]`."""

    edge_term = "projected"


class GATScore(SeparableAdditive):
    """LeakyReLU(a_q·q_i + a_k·k_j), both vectors `[heads, dim]` given."""

    def __init__(self, a_q: Tensor, a_k: Tensor, negative_slope: float) -> None:
        super(SeparableAdditive, self).__init__()  # past the parameters that it would draw
        self.heads, self.dim = a_q.shape
        self.a_q, self.a_k, self.negative_slope = a_q, a_k, negative_slope  # type: ignore[assignment]


class GATEdgeScore(GATScore):
    """LeakyReLU(a_q·q_i + a_k·k_j + t_ij), with t_ij read from `edge.projected [E, heads]`."""

    edge_term = "projected"
