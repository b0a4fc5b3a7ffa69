"""Gemma 2: norms before and after, softcaps, windows in every other layer."""

from __future__ import annotations

from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.pretrained import llama
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names, one_more

_LAYER = "model.layers.{}."

NAMES: Names = {
    **llama.STREAM,
    **llama.ATTENTION,
    **llama.FEEDFORWARD,
    "blocks.{}.attention_norm.weight": one_more(_LAYER + "input_layernorm.weight"),
    "blocks.{}.attention_norm2.weight": one_more(_LAYER + "post_attention_layernorm.weight"),
    "blocks.{}.feedforward_norm.weight": one_more(_LAYER + "pre_feedforward_layernorm.weight"),
    "blocks.{}.feedforward_norm2.weight": one_more(_LAYER + "post_feedforward_layernorm.weight"),
    "norm.weight": one_more("model.norm.weight"),
}


def _config(settings: Settings) -> TransformerConfig:
    settings.only(use_bidirectional_attention=None)
    bias = settings["attention_bias"]
    return llama.read(
        settings,
        activation=settings.activation("hidden_activation", gated=True),
        norm_position="both",
        pattern=settings.patterns(settings["num_hidden_layers"]),
        scale=settings["query_pre_attn_scalar"] ** -0.5,
        softcap=settings["attn_logit_softcapping"],
        final_softcap=settings["final_logit_softcapping"],
        embedding_scale=settings["hidden_size"] ** 0.5,
        attention_bias=bias,
        output_bias=bias,
    )


GEMMA2 = Family(Decoder, ("Gemma2ForCausalLM",), _config, lambda config: NAMES)
