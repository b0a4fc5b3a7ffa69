"""gpt-oss: sinks, windows in every other layer, experts with biases and a clamped gate."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.moe import ExpertsConfig
from attnops.seq.pretrained import llama
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Made, Names, transposed

_MLP = "model.layers.{}.mlp."


def _apart(rows: Tensor) -> Tensor:
    """Gates and values, which lie in turn, as gates above values."""
    return torch.cat((rows[:, 0::2], rows[:, 1::2]), 1)


NAMES: Names = {
    **llama.STREAM,
    **llama.ATTENTION,
    "blocks.{}.attention.bias.weight": "model.layers.{}.self_attn.sinks",
    "blocks.{}.feedforward.router.weight": _MLP + "router.weight",
    "blocks.{}.feedforward.router.bias": _MLP + "router.bias",
    "blocks.{}.feedforward.up": Made((_MLP + "experts.gate_up_proj",), lambda w: _apart(w.transpose(1, 2))),
    "blocks.{}.feedforward.up_bias": Made((_MLP + "experts.gate_up_proj_bias",), _apart),
    "blocks.{}.feedforward.down": transposed(_MLP + "experts.down_proj"),
    "blocks.{}.feedforward.down_bias": _MLP + "experts.down_proj_bias",
}


def _config(settings: Settings) -> TransformerConfig:
    settings.only(swiglu_alpha=1.702, hidden_act="silu")
    bias = settings["attention_bias"]
    experts = ExpertsConfig(
        settings["num_local_experts"],
        settings["num_experts_per_tok"],
        bias=True,
        activation="clamped_swiglu",
        limit=settings["swiglu_limit"],
    )
    return llama.read(
        settings,
        pattern=settings.patterns(settings["num_hidden_layers"]),
        sinks=True,
        experts=experts,
        attention_bias=bias,
        output_bias=bias,
    )


GPT_OSS = Family(Decoder, ("GptOssForCausalLM",), _config, lambda config: NAMES)
