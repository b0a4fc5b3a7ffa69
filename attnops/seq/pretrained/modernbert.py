"""ModernBERT: an encoder with today's parts; windows in two layers of three, each kind with its own rotary base."""

from __future__ import annotations

from torch import nn

from attnops.patterns.base import Pattern
from attnops.patterns.intervals import SlidingWindow
from attnops.seq.config import TransformerConfig
from attnops.seq.encoder import Encoder
from attnops.seq.heads import MaskedTokenHead
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names

_LAYER = "model.layers.{}."
_ALIKE = {
    "embeddings.norm": "model.embeddings.norm",
    "blocks.{}.attention_norm": _LAYER + "attn_norm",
    "blocks.{}.attention.qkv": _LAYER + "attn.Wqkv",
    "blocks.{}.attention.out": _LAYER + "attn.Wo",
    "blocks.{}.feedforward_norm": _LAYER + "mlp_norm",
    "blocks.{}.feedforward.up": _LAYER + "mlp.Wi",
    "blocks.{}.feedforward.down": _LAYER + "mlp.Wo",
    "norm": "model.final_norm",
    "head.dense": "head.dense",
    "head.norm": "head.norm",
}
NAMES: Names = {
    "embeddings.token.weight": "model.embeddings.tok_embeddings.weight",
    "head.bias": "decoder.bias",
    **{f"{ours}.{part}": f"{theirs}.{part}" for ours, theirs in _ALIKE.items() for part in ("weight", "bias")},
}


def _config(settings: Settings) -> TransformerConfig:
    settings.only(tie_word_embeddings=True, decoder_bias=True)
    dim, heads, kinds = (settings[name] for name in ("hidden_size", "num_attention_heads", "layer_types"))
    ropes, reach = settings["rope_parameters"], settings["local_attention"] // 2
    known: dict[str, Pattern | None] = {"full_attention": None, "sliding_attention": SlidingWindow(reach, reach)}
    for kind in kinds:
        if kind not in known:
            raise settings.unsupported("layer_types", kind, f"one of {', '.join(known)} is")
    turns = [settings.rotary(dim // heads, ropes[kind]) for kind in kinds]
    activation = settings.activation("hidden_activation", gated=True)
    if settings["classifier_activation"] != settings["hidden_activation"]:
        raise settings.unsupported("classifier_activation", settings["classifier_activation"], "hidden_activation's is")
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=dim,
        layers=settings["num_hidden_layers"],
        heads=heads,
        ff_dim=settings["intermediate_size"],
        norm="layer",
        activation=activation,
        position="rotary",
        rotary_base=[turn.base for turn in turns],
        rotary_scaling=[turn.scaling for turn in turns],
        pattern=[known[kind] for kind in kinds],
        attention_bias=settings["attention_bias"],
        output_bias=settings["attention_bias"],
        ff_bias=settings["mlp_bias"],
        norm_eps=settings["norm_eps"],
        norm_bias=settings["norm_bias"],
        first_norm=False,
        embedding_norm=True,
    )


def _masked_token_head(model: nn.Module, settings: Settings, source: str) -> None:
    bias = settings["classifier_bias"]
    if source == "ModernBertForMaskedLM":
        model.head = MaskedTokenHead(model.config, bias)  # type: ignore[arg-type]


MODERNBERT = Family(
    Encoder,
    ("ModernBertModel", "ModernBertForMaskedLM"),
    _config,
    lambda config: NAMES,
    ignored=(r"inv_freq$", r"^decoder\.weight$"),
    head="decoder.weight",
    change=_masked_token_head,
)
