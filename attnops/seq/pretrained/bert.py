"""BERT, and RoFormer, which is BERT with rotary positions."""

from __future__ import annotations

from functools import partial
from typing import Any

from torch import nn

from attnops.seq.config import TransformerConfig
from attnops.seq.encoder import Encoder
from attnops.seq.heads import MaskedTokenHead
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Made, Names, stacked


def _names(config: TransformerConfig, base: str) -> Names:
    embeddings, layer, head = base + "embeddings.", base + "encoder.layer.{}.", "cls.predictions."
    named: dict[str, str | Made] = {
        "embeddings.token.weight": embeddings + "word_embeddings.weight",
        "embeddings.position.weight": embeddings + "position_embeddings.weight",
        "embeddings.token_type.weight": embeddings + "token_type_embeddings.weight",
        "head.bias": head + "bias",
    }
    alike = {
        "embeddings.norm": embeddings + "LayerNorm",
        "blocks.{}.attention.out": layer + "attention.output.dense",
        "blocks.{}.attention_norm": layer + "attention.output.LayerNorm",
        "blocks.{}.feedforward.up": layer + "intermediate.dense",
        "blocks.{}.feedforward.down": layer + "output.dense",
        "blocks.{}.feedforward_norm": layer + "output.LayerNorm",
        "head.dense": head + "transform.dense",
        "head.norm": head + "transform.LayerNorm",
    }
    for part in ("weight", "bias"):
        named |= {f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in alike.items()}
        fused = (f"{layer}attention.self.{x}.{part}" for x in ("query", "key", "value"))
        named[f"blocks.{{}}.attention.qkv.{part}"] = stacked(*fused)
    return named


def _read(settings: Settings, **more: Any) -> TransformerConfig:
    settings.only(is_decoder=False, add_cross_attention=False, position_embedding_type="absolute")
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=settings["hidden_size"],
        layers=settings["num_hidden_layers"],
        heads=settings["num_attention_heads"],
        ff_dim=settings["intermediate_size"],
        norm="layer",
        norm_position="post",
        activation=settings.activation("hidden_act", gated=False),
        attention_bias=True,
        output_bias=True,
        ff_bias=True,
        norm_eps=settings["layer_norm_eps"],
        embedding_norm=True,
        token_types=settings["type_vocab_size"],
        **more,
    )


def _bert(settings: Settings) -> TransformerConfig:
    return _read(settings, position="learned", max_length=settings["max_position_embeddings"])


def _roformer(settings: Settings) -> TransformerConfig:
    settings.only(embedding_size=settings["hidden_size"], rotary_value=False)
    return _read(settings, position="rotary", rotary_interleaved=True)


def _masked_token_head(model: nn.Module, settings: Settings, source: str) -> None:
    """Where the source predicts masked tokens, so does `model.head`, from hidden vectors and the token table."""
    settings.only(tie_word_embeddings=True)
    if not source.endswith("Model"):
        model.head = MaskedTokenHead(model.config)  # type: ignore[arg-type]


def _stored(tensors: dict[str, Any]) -> dict[str, Any]:
    """The first BERT files call a norm's weight gamma and its bias beta."""
    old = {"gamma": "weight", "beta": "bias"}
    return {
        f"{name.rpartition('.')[0]}.{old.get(last := name.rpartition('.')[2], last)}": t for name, t in tensors.items()
    }


_encoder = partial(Family, Encoder, change=_masked_token_head, head="cls.predictions.decoder.weight")
# The pooled first token, and what the first BERTs said of it: whether one sentence follows another.
_BESIDE = (r"(^|\.)pooler\.", r"^cls\.seq_relationship\.", r"predictions\.decoder\.")

BERT = _encoder(
    ("BertModel", "BertForMaskedLM", "BertForPreTraining"),
    _bert,
    partial(_names, base="bert."),
    prefix="bert.",
    ignored=(r"position_ids$", *_BESIDE),
    stored=_stored,
)
ROFORMER = _encoder(
    ("RoFormerModel", "RoFormerForMaskedLM"),
    _roformer,
    partial(_names, base="roformer."),
    prefix="roformer.",
    ignored=(r"embed_positions\.weight$", *_BESIDE),
)
