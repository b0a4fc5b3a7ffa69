"""Falcon, old and new: attention and feed-forward side by side, or ALiBi and one after the other."""

from __future__ import annotations

import math

from torch import Tensor, nn

from attnops.biases.alibi import ALiBi
from attnops.biases.base import Bias
from attnops.pairs import Pairs
from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.pretrained import bloom
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings, rotation
from attnops.seq.pretrained.weights import Names

_LAYER = "transformer.h.{}."


class RoundedALiBi(Bias):
    """b_j = bfloat16(slope_h · p_j) / √D: ALiBi with the rounding that Falcon was trained with and transformers keeps.

    A row of ALiBi differs from slope_h · p_j by a constant, which the softmax does not see.
    """

    def __init__(self, heads: int, head_dim: int) -> None:
        super().__init__()
        self.heads: int = heads
        self.head_dim = head_dim
        self.alibi = ALiBi(heads)

    def forward(self, pairs: Pairs) -> Tensor:
        slopes = self.alibi.slopes(pairs.head, pairs.dtype).bfloat16()
        return (slopes * pairs.key.position.bfloat16()).to(pairs.dtype) / math.sqrt(self.head_dim)


def _config(settings: Settings) -> TransformerConfig:
    heads, dim, alibi = settings["num_attention_heads"], settings["hidden_size"], settings["alibi"]
    new, parallel, multi_query = (
        settings[name] for name in ("new_decoder_architecture", "parallel_attn", "multi_query")
    )
    kv_heads, norms = settings["num_kv_heads"], settings["num_ln_in_parallel_attn"]
    if new and not parallel:
        raise settings.unsupported("parallel_attn", False, "with new_decoder_architecture True alone is")
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=dim,
        layers=settings["num_hidden_layers"],
        heads=heads,
        kv_heads=kv_heads if new else 1 if multi_query else heads,
        ff_dim=settings["ffn_hidden_size"],
        norm="layer",
        norm_position="parallel" if new or parallel else "pre",
        parallel_norms=2 if new and norms in (None, 2) else 1,
        activation=settings.activation("activation", gated=False),
        position="alibi" if alibi else "rotary",
        attention_bias=settings["bias"],
        output_bias=settings["bias"],
        ff_bias=settings["bias"],
        norm_eps=settings["layer_norm_epsilon"],
        tie_embeddings=settings["tie_word_embeddings"],
        **({} if alibi else rotation(settings.rotary(dim // heads))),
    )


def _names(config: TransformerConfig) -> Names:
    named = dict(bloom.names(config))
    if config.norm_position == "parallel" and config.parallel_norms == 2:
        for part in ("weight", "bias"):
            named[f"blocks.{{}}.attention_norm.{part}"] = f"{_LAYER}ln_attn.{part}"
            named[f"blocks.{{}}.feedforward_norm.{part}"] = f"{_LAYER}ln_mlp.{part}"
    return named


def _round_alibi(model: nn.Module, settings: Settings, source: str) -> None:
    if settings["alibi"]:
        settings.read.add("rope_parameters")
        assert isinstance(model, Decoder)
        for attention in (block.attention for block in model.blocks):
            attention.bias = RoundedALiBi(attention.heads, attention.head_dim)  # type: ignore[union-attr, arg-type]


FALCON = Family(
    Decoder,
    ("FalconForCausalLM", "RWForCausalLM"),
    _config,
    _names,
    prefix="transformer.",
    ignored=(r"^lm_head\.weight$", r"inv_freq$"),
    change=_round_alibi,
)
