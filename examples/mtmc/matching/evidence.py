"""The terms of the logits: GATv2's (or GAT's) score with the likeness of two looks, and biases read from edge data."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import attnops

SLOPE = 10.0  # log-odds per unit of cosine, before training
TINY = 1e-30  # below it a weight is as good as forbidden


class Evidence(attnops.Bias):
    """b_ij = w_h · (a log ratio of densities, read from the edge datum ``name``); w starts at 1, and stays positive."""

    def __init__(self, name: str, heads: int = 1) -> None:
        super().__init__()
        self.name = name
        self.log_weight = nn.Parameter(torch.zeros(heads))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        """The weighted log ratio at the pairs."""
        ratio: Tensor = getattr(pairs.edge, self.name)
        return self.log_weight.exp()[pairs.head] * ratio


class Apart(attnops.Bias):
    """b_ij = −rate · (seconds by which two delays differ, the edge datum ``apart``)."""

    def __init__(self) -> None:
        super().__init__()
        self.log_rate = nn.Parameter(torch.zeros(1))

    def forward(self, pairs: attnops.Pairs) -> Tensor:
        """Minus the weighted difference at the pairs."""
        return -self.log_rate.exp()[pairs.head] * pairs.edge.apart


class GATv2Looks(attnops.Additive):
    """aᵀ LeakyReLU(q + k + W · alike): GATv2 with an edge feature, ``alike [E, F]``, projected once for all edges."""

    edge_term = "looks"

    def __init__(self, dim: int, features: int) -> None:
        super().__init__(1, dim, activation="leaky_relu")
        with torch.no_grad():
            start = SLOPE / 0.6 * self.a / self.a.square().sum(1, keepdim=True)  # 0.6: LeakyReLU's mean slope
        self.weight = nn.Parameter(start.repeat(features, 1))

    def project(self, alike: Tensor) -> Tensor:
        """W · alike, ``[E, dim]``."""
        return alike @ self.weight


class GATLooks(attnops.SeparableAdditive):
    """LeakyReLU(a_q·q + a_k·k + w·alike): GAT's score with the same edge feature."""

    edge_term = "looks"

    def __init__(self, dim: int, features: int) -> None:
        super().__init__(1, dim)
        self.weight = nn.Parameter(torch.full((features, 1), SLOPE))

    def project(self, alike: Tensor) -> Tensor:
        """w · alike, ``[E, 1]``."""
        return alike @ self.weight


def bias_of(terms: tuple[str, ...], kinds: int) -> attnops.Bias | None:
    """The sum of the named biases, None for none: link, travel, zone, place, kind."""
    made: dict[str, attnops.Bias] = {"link": attnops.LogPrior(), "kind": attnops.EdgeTypePrior(kinds, 1)}
    parts = [made[name] if name in made else Evidence(name) for name in terms]
    if len(parts) < 2:
        return parts[0] if parts else None
    total: attnops.Bias = parts[0]
    for part in parts[1:]:
        total = total + part
    return total
