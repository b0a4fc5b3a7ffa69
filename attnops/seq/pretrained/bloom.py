"""BLOOM: ALiBi, a norm on the embeddings."""

from __future__ import annotations

from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Made, Names, grouped_by_key_head

_LAYER = "transformer.h.{}."
_ALIKE = {
    "embeddings.norm": "transformer.word_embeddings_layernorm",
    "blocks.{}.attention_norm": _LAYER + "input_layernorm",
    "blocks.{}.attention.out": _LAYER + "self_attention.dense",
    "blocks.{}.feedforward_norm": _LAYER + "post_attention_layernorm",
    "blocks.{}.feedforward.up": _LAYER + "mlp.dense_h_to_4h",
    "blocks.{}.feedforward.down": _LAYER + "mlp.dense_4h_to_h",
    "norm": "transformer.ln_f",
}


def names(config: TransformerConfig) -> Names:
    """BLOOM's names; Falcon has the same, and more norms."""
    named: dict[str, str | Made] = {
        "embeddings.token.weight": "transformer.word_embeddings.weight",
        "head.weight": "lm_head.weight",
    }
    kv_heads, heads = config.kv_heads or config.heads, config.heads
    for part in ("weight", "bias"):
        named |= {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in _ALIKE.items()}
        fused = f"{_LAYER}self_attention.query_key_value.{part}"
        named[f"blocks.{{}}.attention.qkv.{part}"] = grouped_by_key_head(fused, kv_heads, heads)
    return named


def _config(settings: Settings) -> TransformerConfig:
    settings.only(apply_residual_connection_post_layernorm=False)
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=settings["hidden_size"],
        layers=settings["n_layer"],
        heads=settings["n_head"],
        norm="layer",
        activation="gelu_tanh",
        position="alibi",
        attention_bias=True,
        output_bias=True,
        ff_bias=True,
        norm_eps=settings["layer_norm_epsilon"],
        embedding_norm=True,
        tie_embeddings=settings["tie_word_embeddings"],
    )


BLOOM = Family(Decoder, ("BloomForCausalLM",), _config, names, prefix="transformer.", ignored=(r"^lm_head\.weight$",))
