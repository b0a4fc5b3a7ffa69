"""T5, the original and version 1.1: relative biases that all layers share, and logits that are not divided by √D."""

from __future__ import annotations

from attnops.seq.config import TransformerConfig
from attnops.seq.encoder_decoder import EncoderDecoder
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Made, Names, stacked


def _side(side: str, ours: str, feedforward: int, gated: bool) -> dict[str, str | Made]:
    """The names of the encoder or of the decoder; `feedforward` counts the sublayers before it."""
    layer = side + ".block.{}.layer."
    attention, dense = layer + "0.SelfAttention.", f"{layer}{feedforward}.DenseReluDense."
    up = (dense + "wi_0.weight", dense + "wi_1.weight") if gated else (dense + "wi.weight",)
    return {
        f"{ours}embeddings.token.weight": "shared.weight",
        f"{ours}relative.weight": f"{side}.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
        f"{ours}blocks.{{}}.attention_norm.weight": layer + "0.layer_norm.weight",
        f"{ours}blocks.{{}}.attention.qkv.weight": stacked(*(f"{attention}{part}.weight" for part in "qkv")),
        f"{ours}blocks.{{}}.attention.out.weight": attention + "o.weight",
        f"{ours}blocks.{{}}.feedforward_norm.weight": f"{layer}{feedforward}.layer_norm.weight",
        f"{ours}blocks.{{}}.feedforward.up.weight": stacked(*up),
        f"{ours}blocks.{{}}.feedforward.down.weight": dense + "wo.weight",
        f"{ours}norm.weight": side + ".final_layer_norm.weight",
    }


def _names(config: TransformerConfig) -> Names:
    gated, cross = "glu" in config.activation, "decoder.block.{}.layer.1."
    return {
        **_side("encoder", "encoder.", 1, gated),
        **_side("decoder", "", 2, gated),
        "head.weight": "lm_head.weight",
        "blocks.{}.cross_norm.weight": cross + "layer_norm.weight",
        "blocks.{}.cross.query.weight": cross + "EncDecAttention.q.weight",
        "blocks.{}.cross.key_value.weight": stacked(
            cross + "EncDecAttention.k.weight", cross + "EncDecAttention.v.weight"
        ),
        "blocks.{}.cross.out.weight": cross + "EncDecAttention.o.weight",
    }


def _config(settings: Settings) -> TransformerConfig:
    settings.only(is_decoder=False)
    settings.read.add("feed_forward_proj")  # in the next two already
    dim = settings["d_model"]
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=dim,
        layers=settings["num_decoder_layers"],
        encoder_layers=settings["num_layers"],
        heads=settings["num_heads"],
        head_dim=settings["d_kv"],
        ff_dim=settings["d_ff"],
        activation=settings.activation("dense_act_fn", gated=settings["is_gated_act"]),
        position="relative",
        relative_buckets=settings["relative_attention_num_buckets"],
        relative_distance=settings["relative_attention_max_distance"],
        scale=1.0,
        norm_eps=settings["layer_norm_epsilon"],
        logit_scale=dim**-0.5 if settings["scale_decoder_outputs"] else None,
    )


T5 = Family(
    EncoderDecoder,
    ("T5ForConditionalGeneration", "T5WithLMHeadModel"),
    _config,
    _names,
    prefix="",
    # Copies of the shared table; and a table that the first T5 files carry and no layer reads.
    ignored=(r"embed_tokens\.weight$", r"^lm_head\.weight$", r"EncDecAttention\.relative_attention_bias"),
)
