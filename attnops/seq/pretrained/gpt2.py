"""GPT-2: learned positions, layer norms, a bias in every linear layer."""

from __future__ import annotations

from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names, transposed

_LAYER = "transformer.h.{}."
_LINEAR = {
    "attention.qkv": "attn.c_attn",
    "attention.out": "attn.c_proj",
    "feedforward.up": "mlp.c_fc",
    "feedforward.down": "mlp.c_proj",
}
_NORMS = {"blocks.{}.attention_norm": _LAYER + "ln_1", "blocks.{}.feedforward_norm": _LAYER + "ln_2"}

NAMES: Names = {
    "embeddings.token.weight": "transformer.wte.weight",
    "embeddings.position.weight": "transformer.wpe.weight",
    "head.weight": "lm_head.weight",
    **{f"blocks.{{}}.{ours}.weight": transposed(f"{_LAYER}{theirs}.weight") for ours, theirs in _LINEAR.items()},
    **{f"blocks.{{}}.{ours}.bias": f"{_LAYER}{theirs}.bias" for ours, theirs in _LINEAR.items()},
    **{
        f"{ours}.{part}": f"{theirs}.{part}"
        for ours, theirs in {**_NORMS, "norm": "transformer.ln_f"}.items()
        for part in ("weight", "bias")
    },
}


def _config(settings: Settings) -> TransformerConfig:
    settings.only(scale_attn_by_inverse_layer_idx=False, add_cross_attention=False)
    dim = settings["n_embd"]
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=dim,
        layers=settings["n_layer"],
        heads=settings["n_head"],
        ff_dim=settings["n_inner"] or 4 * dim,
        norm="layer",
        activation=settings.activation("activation_function", gated=False),
        position="learned",
        max_length=settings["n_positions"],
        scale=None if settings["scale_attn_weights"] else 1.0,
        attention_bias=True,
        output_bias=True,
        ff_bias=True,
        norm_eps=settings["layer_norm_epsilon"],
        tie_embeddings=settings["tie_word_embeddings"],
    )


GPT2 = Family(
    Decoder,
    ("GPT2LMHeadModel",),
    _config,
    lambda config: NAMES,
    prefix="transformer.",
    ignored=(r"^lm_head\.weight$", r"\.attn\.(masked_)?bias$"),
)
