"""A model as it is in evaluation, for a while."""

from __future__ import annotations

from torch import nn


class Evaluating:
    """The model without dropout inside of the block, and each of its modules as it was after."""

    def __init__(self, model: nn.Module) -> None:
        self.training = [module for module in model.modules() if module.training]

    def __enter__(self) -> None:
        for module in self.training:
            module.training = False

    def __exit__(self, *_: object) -> None:
        for module in self.training:
            module.training = True
