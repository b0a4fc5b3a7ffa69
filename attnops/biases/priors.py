"""Priors from measurement: a known probability, a gap in time, a distance in the graph."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.gaps import gap
from attnops.biases.tables import edge_scalar, read_table, require_in_range, require_integer, zeros
from attnops.biases.terms import Term, by_gap
from attnops.checks import require_count, require_positive
from attnops.coords import Coords
from attnops.pairs import Pairs


class LogPrior(Bias):
    """b_ij = log prior_ij, so that softmax multiplies by the prior; 0 forbids the pair.

    Reads `edge.prior`, real `[E]`, 0 or more; it need not be normalised. At 0 its gradient is exactly 0.

    Raises:
        ValueError: a prior that is negative, NaN or infinite.

    Source: Bayes' rule; logits are log-likelihoods up to a constant a row.

    Example:
        >>> import torch, attnops
        >>> graph = attnops.Edges(torch.tensor([[0, 1, 2], [0, 0, 0]]), 1, 3, prior=torch.tensor([3.0, 1.0, 0.0]))
        >>> query, key, value = torch.zeros(1, 1, 3), torch.zeros(1, 3, 3), torch.eye(3).unsqueeze(0)
        >>> attnops.attend(query, key, value, pattern=graph, bias=attnops.LogPrior())
        tensor([[[0.7500, 0.2500, 0.0000]]])
    """

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        bounds = edge_bounds.get("prior")
        require_in_range(bounds, 0, None, "edge.prior", "LogPrior reads numbers of 0 or more")
        if bounds is not None and bounds[1] == math.inf:
            raise ValueError("edge.prior holds inf; LogPrior reads finite numbers of 0 or more")

    def forward(self, pairs: Pairs) -> Tensor:
        prior = edge_scalar(pairs, "prior", "LogPrior")
        prior = prior.to(torch.promote_types(prior.dtype, pairs.dtype))  # a float64 prior may be too small for float32
        possible = prior > 0
        return torch.where(possible, torch.where(possible, prior, 1).log(), -math.inf).to(pairs.dtype)


class TimeGap(Bias):
    """b_ij = -exp(log_rate_h) · |t_i - t_j|: a learned decay over time, one rate a head.

    Args:
        heads: H.

    Reads the coord `time` of both sides, integer or real, in any unit; the rate is in 1/unit. Parameter:
    `log_rate [heads]`, 0 at the start, so a rate of 1.

    Source: exponential decay of the weight with the gap, as in Hawkes processes (Hawkes 1971).

    Example:
        >>> import torch, attnops
        >>> x, seen = torch.randn(2, 3, 8), attnops.Coords(time=torch.tensor([0.0, 0.5, 9.0]))
        >>> attnops.attend(x, x, x, bias=attnops.TimeGap(2), coords=seen).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        require_positive(heads=heads)
        self.heads: int = heads
        self.log_rate = zeros(heads)

    def forward(self, pairs: Pairs) -> Tensor:
        rate = self.log_rate.to(pairs.dtype).exp()
        return -rate[pairs.head] * gap(pairs.query.time, pairs.key.time, pairs.dtype).abs()

    def term(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Term | None:
        return by_gap(-self.log_rate.exp(), "time", coords, num_queries, num_keys)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"


class Distance(Bias):
    """b_ij = weight[min(d_ij, max_distance), h], the last row for d_ij = -1: Graphormer's spatial encoding.

    Args:
        heads: H. max_distance: larger distances share its row.

    Reads `edge.distance`, integer `[E]`, -1 where no path leads. Parameter: `weight [max_distance + 2, heads]`, 0 at
    the start.

    Raises:
        ValueError: a distance below -1. TypeError: distances that are not integers.

    Source: Ying et al. 2021, arXiv:2106.05234.

    Example:
        >>> import torch, attnops
        >>> pairs = torch.cartesian_prod(torch.arange(3), torch.arange(3)).t()
        >>> graph = attnops.Edges(pairs, 3, 3, distance=torch.tensor([0, 1, -1, 1, 0, -1, -1, -1, 0]))
        >>> x = torch.randn(2, 3, 8)                                              # [H, N, D]
        >>> attnops.attend(x, x, x, pattern=graph, bias=attnops.Distance(2, max_distance=4)).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, heads: int, max_distance: int) -> None:
        super().__init__()
        require_positive(heads=heads)
        require_count(max_distance=max_distance)
        self.heads: int = heads
        self.max_distance = max_distance
        self.weight = zeros(max_distance + 2, heads)

    def check(self, coords: tuple[Coords, Coords], edge_bounds: dict[str, tuple[float, float]]) -> None:
        meaning = "Distance reads numbers of hops, 0 or more, and -1 where no path leads"
        require_in_range(edge_bounds.get("distance"), -1, None, "edge.distance", meaning)

    def forward(self, pairs: Pairs) -> Tensor:
        hops = require_integer(edge_scalar(pairs, "distance", "Distance"), "edge.distance", "Distance").long()
        row = torch.where(hops < 0, self.max_distance + 1, hops.clamp(max=self.max_distance))
        return read_table(self.weight, row, pairs)

    def extra_repr(self) -> str:
        return f"heads={self.heads}, max_distance={self.max_distance}"
