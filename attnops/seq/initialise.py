"""Weights at the start, as GPT-2 has them."""

from __future__ import annotations

import math

from torch import nn

from attnops.seq.config import TransformerConfig


def initialise(model: nn.Module, config: TransformerConfig) -> None:
    """Normal with deviation 0.02, biases 0; what writes to the stream is smaller by √(2·layers), for they add up."""
    for name, parameter in model.named_parameters():
        experts = parameter.ndim == 3 and name.endswith(("feedforward.up", "feedforward.down"))
        if experts or (parameter.ndim == 2 and not name.endswith("relative.weight")):
            writes = name.endswith(("out.weight", "down.weight", "down"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.layers) if writes else 0.02)
        elif name.endswith((".bias", "_bias")):
            nn.init.zeros_(parameter)
