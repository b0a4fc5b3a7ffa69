"""ALiBi: attention decays linearly with distance, at a fixed slope a head."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.gaps import gap
from attnops.biases.terms import Term, by_gap
from attnops.checks import require_positive
from attnops.coords import Coords
from attnops.pairs import Pairs


class ALiBi(Bias):
    """b_ij = -slope_h · |p_i - p_j|, without parameters.

    With P the largest power of two that is at most H, head h < P has slope 2^(-8(h+1)/P); the others take every second
    slope of 2P heads, as published. Positions may be integers or times; slopes are computed in the dtype of the logits,
    so casting the module to half precision rounds none.

    Args:
        heads: H.

    Raises:
        ValueError: heads below 1.

    Source: Press, Smith, Lewis 2022, arXiv:2108.12409.

    Example:
        >>> import torch, attnops
        >>> zeros, eye = torch.zeros(1, 3, 2), torch.eye(3).unsqueeze(0)          # [H, N, D], [H, N, Dv]
        >>> weights = attnops.attend(zeros, zeros, eye, bias=attnops.ALiBi(1))
        >>> ((weights[0, 0].log() - weights[0, 0, 0].log()) * 256).round().tolist()    # slope 1/256
        [0.0, -1.0, -2.0]
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        require_positive(heads=heads)
        self.heads: int = heads

    @property
    def reach(self) -> float | None:
        return math.inf

    @property
    def constants(self) -> tuple[object, ...] | None:
        return (ALiBi, self.heads) if type(self) is ALiBi else None

    def slopes(self, head: Tensor, dtype: torch.dtype) -> Tensor:
        """The slope of each head in `head`."""
        power = 1 << (self.heads.bit_length() - 1)
        head = head.to(dtype)
        exponent = torch.where(head < power, (head + 1) * (8 / power), (2 * (head - power) + 1) * (4 / power))
        return torch.exp2(-exponent)

    def forward(self, pairs: Pairs) -> Tensor:
        distance = gap(pairs.query.position, pairs.key.position, pairs.dtype).abs()
        return -self.slopes(pairs.head, pairs.dtype) * distance

    def term(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Term | None:
        slopes = self.slopes(torch.arange(self.heads), torch.float64)
        return by_gap(-slopes, "position", coords, num_queries, num_keys)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"
