"""Llama 4 (text): chunks with rotary positions, and layers that see all, without positions and at a temperature."""

from __future__ import annotations

from attnops.patterns.base import Pattern
from attnops.patterns.intervals import Chunked
from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.moe import ExpertsConfig
from attnops.seq.pretrained import llama
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names, stacked, transposed
from attnops.seq.temperature import AttentionTemperature

_MLP = "model.layers.{}.feed_forward."


def _gated(place: str, inside: str) -> Names:
    return {
        f"{place}.up.weight": stacked(f"{_MLP}{inside}gate_proj.weight", f"{_MLP}{inside}up_proj.weight"),
        f"{place}.down.weight": f"{_MLP}{inside}down_proj.weight",
    }


NAMES: Names = {
    **llama.STREAM,
    **llama.ATTENTION,
    **_gated("blocks.{}.feedforward", ""),
    **_gated("blocks.{}.feedforward.shared", "shared_expert."),
    "blocks.{}.feedforward.router.weight": _MLP + "router.weight",
    "blocks.{}.feedforward.up": transposed(_MLP + "experts.gate_up_proj"),
    "blocks.{}.feedforward.down": transposed(_MLP + "experts.down_proj"),
}


def _config(settings: Settings) -> TransformerConfig:
    layers = range(settings["num_hidden_layers"])
    settings.read |= {"no_rope_layer_interval", "interleave_moe_layer_step"}  # in the two lists already
    turns = [bool(settings["no_rope_layers"][layer]) for layer in layers]
    sparse = settings["moe_layers"]
    chunk, kinds = settings["attention_chunk_size"], settings["layer_types"]
    known: dict[str, Pattern | None] = {"full_attention": None}
    if chunk is not None:
        known["chunked_attention"] = Chunked(chunk)
    for kind in kinds:
        if kind not in known:
            raise settings.unsupported("layer_types", kind, f"one of {', '.join(known)} is")
    temperature, unit = None, "unit" if settings["use_qk_norm"] else False
    scale, floor = settings["attn_scale"], settings["floor_scale"]
    if settings["attn_temperature_tuning"]:
        temperature = AttentionTemperature(scale, floor)
    experts = ExpertsConfig(
        settings["num_local_experts"],
        settings["num_experts_per_tok"],
        ff_dim=settings["intermediate_size"],
        score="sigmoid",
        normalize=False,
        weigh="input",
        shared=1,
    )
    bias = settings["attention_bias"]
    return llama.read(
        settings,
        ff_dim=settings["intermediate_size_mlp"],
        position=["rotary" if turning else "none" for turning in turns],
        rotary_interleaved=True,
        qk_norm=[unit if turning else False for turning in turns],
        temperature=[None if turning else temperature for turning in turns],
        pattern=[known[kinds[layer]] for layer in layers],
        experts=[experts if layer in sparse else None for layer in layers],
        attention_bias=bias,
        output_bias=bias,
    )


LLAMA4 = Family(Decoder, ("Llama4ForCausalLM",), _config, lambda config: NAMES)
