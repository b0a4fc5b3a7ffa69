"""Llama, and what differs from it in a line or two: Mistral, Qwen3, Mixtral."""

from __future__ import annotations

from functools import partial
from typing import Any

from attnops.patterns.intervals import SlidingWindow
from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.moe import ExpertsConfig
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings, rotation
from attnops.seq.pretrained.weights import Names, stack_experts, stacked

_LAYER, _ATTENTION, _MLP = "model.layers.{}.", "model.layers.{}.self_attn.", "model.layers.{}.mlp."

STREAM: Names = {
    "embeddings.token.weight": "model.embed_tokens.weight",
    "blocks.{}.attention_norm.weight": _LAYER + "input_layernorm.weight",
    "blocks.{}.feedforward_norm.weight": _LAYER + "post_attention_layernorm.weight",
    "norm.weight": "model.norm.weight",
    "head.weight": "lm_head.weight",
}
ATTENTION: Names = {
    f"blocks.{{}}.attention.qkv.{part}": stacked(*(f"{_ATTENTION}{x}_proj.{part}" for x in "qkv"))
    for part in ("weight", "bias")
} | {
    "blocks.{}.attention.out.weight": _ATTENTION + "o_proj.weight",
    "blocks.{}.attention.out.bias": _ATTENTION + "o_proj.bias",
    "blocks.{}.attention.query_norm.weight": _ATTENTION + "q_norm.weight",
    "blocks.{}.attention.key_norm.weight": _ATTENTION + "k_norm.weight",
}
FEEDFORWARD: Names = {
    f"blocks.{{}}.feedforward.{ours}.{part}": stacked(*(f"{_MLP}{name}_proj.{part}" for name in theirs))
    for ours, theirs in (("up", ("gate", "up")), ("down", ("down",)))
    for part in ("weight", "bias")
}
EXPERTS: Names = {
    "blocks.{}.feedforward.router.weight": _MLP + "gate.weight",
    "blocks.{}.feedforward.up": _MLP + "experts.gate_up_proj",
    "blocks.{}.feedforward.down": _MLP + "experts.down_proj",
}


def read(settings: Settings, **more: Any) -> TransformerConfig:
    """What all of them share."""
    heads, dim = settings["num_attention_heads"], settings["hidden_size"]
    head_dim = settings["head_dim"] or dim // heads
    if "activation" not in more:
        more["activation"] = settings.activation("hidden_act", gated=True)
    return TransformerConfig(
        **{
            "vocab_size": settings["vocab_size"],
            "dim": dim,
            "layers": settings["num_hidden_layers"],
            "heads": heads,
            "kv_heads": settings["num_key_value_heads"],
            "head_dim": head_dim,
            "ff_dim": settings["intermediate_size"],
            "norm_eps": settings["rms_norm_eps"],
            "tie_embeddings": settings["tie_word_embeddings"],
            **rotation(settings.rotary(head_dim)),
            **more,
        }
    )


def _llama(settings: Settings) -> TransformerConfig:
    bias = settings["attention_bias"]
    return read(settings, attention_bias=bias, output_bias=bias, ff_bias=settings["mlp_bias"])


def _mistral(settings: Settings) -> TransformerConfig:
    return read(settings, pattern=_window(settings))


def _qwen3(settings: Settings) -> TransformerConfig:
    settings.read |= {"use_sliding_window", "max_window_layers"}  # transformers has put both into layer_types
    bias, pattern = settings["attention_bias"], settings.patterns(settings["num_hidden_layers"])
    return read(settings, attention_bias=bias, output_bias=bias, qk_norm=True, pattern=pattern)


def _mixtral(settings: Settings) -> TransformerConfig:
    experts = ExpertsConfig(settings["num_local_experts"], settings["num_experts_per_tok"])
    return read(settings, pattern=_window(settings), experts=experts)


def _window(settings: Settings) -> SlidingWindow | None:
    width = settings["sliding_window"]
    return None if width is None else SlidingWindow(width - 1)


def _dense(config: TransformerConfig) -> Names:
    return {**STREAM, **ATTENTION, **FEEDFORWARD}


def _sparse(config: TransformerConfig) -> Names:
    return {**STREAM, **ATTENTION, **EXPERTS}


def _mixtral_files(tensors: Any) -> Any:
    renamed = {name.replace(".block_sparse_moe.", ".mlp."): tensor for name, tensor in tensors.items()}
    return stack_experts(renamed, gate="w1", up="w3", down="w2")


_decoder = partial(Family, Decoder)

LLAMA = _decoder(("LlamaForCausalLM",), _llama, _dense)
MISTRAL = _decoder(("MistralForCausalLM",), _mistral, _dense)
QWEN3 = _decoder(("Qwen3ForCausalLM",), _qwen3, _dense)
MIXTRAL = _decoder(("MixtralForCausalLM",), _mixtral, _sparse, stored=_mixtral_files)
