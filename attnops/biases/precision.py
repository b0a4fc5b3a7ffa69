"""Arithmetic of priors that mixed precision must not lower."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor


def accumulation_dtype(vectors: Tensor) -> torch.dtype:
    """float64 for float64 vectors, else float32."""
    return torch.float64 if vectors.dtype == torch.float64 else torch.float32


def no_autocast(device: torch.device) -> AbstractContextManager[object]:
    """A context in which autocast lowers nothing."""
    if not torch.amp.is_autocast_available(device.type):
        return nullcontext()
    return torch.autocast(device.type, enabled=False)
