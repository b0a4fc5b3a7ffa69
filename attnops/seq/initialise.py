"""Weights at the start, as GPT-2 has them."""

from __future__ import annotations

import math

from torch import nn

from attnops.seq.config import TransformerConfig


def initialise(model: nn.Module, config: TransformerConfig) -> None:
    """Normal with deviation 0.02, biases 0; what writes to the stream is smaller by √(2·layers), for they add up."""
    for name, parameter in model.named_parameters():
        if parameter.ndim == 2 and not name.endswith("relative.weight"):
            writes = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if writes else 0.02)
        elif name.endswith(".bias"):
            nn.init.zeros_(parameter)
