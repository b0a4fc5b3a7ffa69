"""Where a training that was stopped goes on, with the same result as one that was not."""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from examples.mtmc.kept import keep, recall


@dataclass
class Progress:
    """The steps that were taken, and the best state so far with its loss."""

    step: int = 0
    best: float = float("inf")
    best_state: dict[str, Tensor] = field(default_factory=dict)

    def better(self, loss: float, model: nn.Module) -> None:
        """Keep the model's state if its loss is the least so far."""
        if loss < self.best:
            self.best, self.best_state = loss, copy.deepcopy(model.state_dict())


@dataclass(frozen=True)
class Checkpoint:
    """A file that holds the state of a training; ``key`` tells settings and code apart."""

    path: Path
    key: str

    def save(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
        progress: Progress,
    ) -> None:
        """Write the state; the file appears whole or not at all."""
        parts = [model.state_dict(), optimizer.state_dict(), schedule.state_dict()]
        keep(self.path, {"key": self.key, "parts": [dict(part) for part in parts], "progress": progress})

    def load(
        self,
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        schedule: torch.optim.lr_scheduler.LRScheduler,
    ) -> Progress | None:
        """Put the state back; None where there is none, or it is damaged or of other settings."""
        try:
            found: Any = recall(self.path)
            if found["key"] != self.key:
                return None
            progress: Progress = found["progress"]
            whole: tuple[Any, ...] = (model, optimizer, schedule)
            for part, state in zip(whole, found["parts"], strict=True):
                part.load_state_dict(state)
        except (FileNotFoundError, ValueError):
            return None
        return progress

    def remove(self) -> None:
        """The training is done."""
        self.path.unlink(missing_ok=True)
