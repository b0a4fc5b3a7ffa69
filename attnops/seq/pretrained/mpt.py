"""MPT: ALiBi with slopes in an order of its own, and no bias anywhere."""

from __future__ import annotations

import math

from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names

_LAYER = "transformer.blocks.{}."

NAMES: Names = {
    "embeddings.token.weight": "transformer.wte.weight",
    "blocks.{}.attention_norm.weight": _LAYER + "norm_1.weight",
    "blocks.{}.attention.qkv.weight": _LAYER + "attn.Wqkv.weight",
    "blocks.{}.attention.out.weight": _LAYER + "attn.out_proj.weight",
    "blocks.{}.feedforward_norm.weight": _LAYER + "norm_2.weight",
    "blocks.{}.feedforward.up.weight": _LAYER + "ffn.up_proj.weight",
    "blocks.{}.feedforward.down.weight": _LAYER + "ffn.down_proj.weight",
    "norm.weight": "transformer.norm_f.weight",
    "head.weight": "lm_head.weight",
}


def slopes(heads: int) -> list[float]:
    """2^(-8(h+1)/P), P the power of two from `heads` up; below P, every second one first, then the others."""
    power = 2 ** math.ceil(math.log2(heads))
    all_of_them = [2 ** (-8 * (h + 1) / power) for h in range(power)]
    return all_of_them if power == heads else (all_of_them[1::2] + all_of_them[::2])[:heads]


def _config(settings: Settings) -> TransformerConfig:
    settings.only(expansion_ratio=4, logit_scale=None)
    settings.read |= {"learned_pos_emb", "max_seq_len"}  # transformers reads neither where there is ALiBi
    attention = Settings(settings["attn_config"])
    attention.kind = "mpt attn_config"
    attention.only(attn_type="multihead_attention", prefix_lm=False, qk_ln=False, attn_uses_sequence_id=False)
    attention.only(alibi=True, alibi_bias_max=8)  # transformers reads neither
    heads = settings["n_heads"]
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=settings["d_model"],
        layers=settings["n_layers"],
        heads=heads,
        norm="layer",
        activation="gelu",
        position="alibi",
        alibi_slopes=slopes(heads),
        scale=attention["softmax_scale"],
        qkv_clip=attention["clip_qkv"],
        norm_eps=settings["layer_norm_epsilon"],
        norm_bias=False,
        tie_embeddings=settings["tie_word_embeddings"],
    )


MPT = Family(
    Decoder,
    ("MptForCausalLM", "MPTForCausalLM"),
    _config,
    lambda config: NAMES,
    prefix="transformer.",
    ignored=(r"^lm_head\.weight$",),
)
