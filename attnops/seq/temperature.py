"""Attention temperature: queries far into a text are made larger, so that attention stays sharp over many keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from attnops.checks import require_number


@dataclass(frozen=True)
class AttentionTemperature:
    """q_i ← q_i · (1 + scale · log(1 + ⌊(p_i + 1) / floor⌋)).

    Source: Llama 4 (Meta 2025), on its layers without positions; the motive: Nakanishi 2025, arXiv:2501.19399.

    Example:
        >>> import torch
        >>> from attnops.seq import AttentionTemperature
        >>> AttentionTemperature(scale=0.1, floor=8192).factor(torch.tensor([0, 8191])).tolist()
        [1.0, 1.06931471824646]
    """

    scale: float = 0.1
    floor: float = 8192.0

    def __post_init__(self) -> None:
        require_number(scale=self.scale, floor=self.floor)
        if not self.floor > 0:
            raise ValueError(f"floor is {self.floor}; it must be positive")

    def factor(self, position: Tensor) -> Tensor:
        """What the query at each position is multiplied by, float32."""
        return torch.log1p(torch.floor((position.float() + 1) / self.floor)) * self.scale + 1
