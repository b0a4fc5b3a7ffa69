"""ALiBi with slopes of a model's own."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops.biases.alibi import ALiBi


class SlopedALiBi(ALiBi):
    """b_ij = -slope_h · |p_i - p_j| with given slopes: MPT orders them otherwise, Falcon divides them by √D.

    Example:
        >>> import torch
        >>> from attnops.seq import SlopedALiBi
        >>> SlopedALiBi([0.5, 0.25]).slopes(torch.arange(2), torch.float32)
        tensor([0.5000, 0.2500])
    """

    def __init__(self, slopes: Sequence[float]) -> None:
        super().__init__(len(slopes))
        self.values = tuple(float(slope) for slope in slopes)

    @property
    def constants(self) -> tuple[object, ...] | None:
        return (SlopedALiBi, self.values) if type(self) is SlopedALiBi else None

    def slopes(self, head: Tensor, dtype: torch.dtype) -> Tensor:
        """The slope of each head in `head`."""
        return torch.tensor(self.values, dtype=dtype, device=head.device)[head]


def make_alibi(heads: int, slopes: Sequence[float] | None) -> ALiBi:
    """ALiBi with its own slopes, or with those given."""
    return ALiBi(heads) if slopes is None else SlopedALiBi(slopes)
