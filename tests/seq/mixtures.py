"""A mixture of experts to test, small and in float64."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnops.seq.moe import ExpertsConfig, MixtureOfExperts

D, F, E = 16, 24, 8
D64 = torch.float64


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = D64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def experts(**options: Any) -> MixtureOfExperts:
    return MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F, **options)).double()
