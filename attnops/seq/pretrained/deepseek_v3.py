"""DeepSeek-V3: latent attention; shared experts, and others chosen by group and balanced by a bias."""

from __future__ import annotations

from attnops.biases.rotary_scaling import yarn_magnitude
from attnops.seq.config import TransformerConfig
from attnops.seq.decoder import Decoder
from attnops.seq.mla import LatentConfig
from attnops.seq.moe import ExpertsConfig
from attnops.seq.pretrained import llama
from attnops.seq.pretrained.family import Family
from attnops.seq.pretrained.settings import Settings
from attnops.seq.pretrained.weights import Names, stack_experts, stacked

_ATTENTION, _MLP = "model.layers.{}.self_attn.", "model.layers.{}.mlp."


def _names(config: TransformerConfig) -> Names:
    low_rank = config.latent is not None and config.latent.query_rank is not None
    return {
        **llama.STREAM,
        **llama.FEEDFORWARD,
        **llama.EXPERTS,
        "blocks.{}.attention.query_down.weight": _ATTENTION + "q_a_proj.weight",
        "blocks.{}.attention.query_norm.weight": _ATTENTION + "q_a_layernorm.weight",
        "blocks.{}.attention.query_up.weight": _ATTENTION + ("q_b_proj.weight" if low_rank else "q_proj.weight"),
        "blocks.{}.attention.latent_down.weight": _ATTENTION + "kv_a_proj_with_mqa.weight",
        "blocks.{}.attention.latent_norm.weight": _ATTENTION + "kv_a_layernorm.weight",
        "blocks.{}.attention.latent_up.weight": _ATTENTION + "kv_b_proj.weight",
        "blocks.{}.attention.out.weight": _ATTENTION + "o_proj.weight",
        "blocks.{}.attention.query_down.bias": _ATTENTION + "q_a_proj.bias",
        "blocks.{}.attention.latent_down.bias": _ATTENTION + "kv_a_proj_with_mqa.bias",
        "blocks.{}.attention.out.bias": _ATTENTION + "o_proj.bias",
        "blocks.{}.feedforward.choice_bias": _MLP + "gate.e_score_correction_bias",
        "blocks.{}.feedforward.shared.up.weight": stacked(
            _MLP + "shared_experts.gate_proj.weight", _MLP + "shared_experts.up_proj.weight"
        ),
        "blocks.{}.feedforward.shared.down.weight": _MLP + "shared_experts.down_proj.weight",
    }


def _config(settings: Settings) -> TransformerConfig:
    layers, dense, heads = (
        settings[name] for name in ("num_hidden_layers", "first_k_dense_replace", "num_attention_heads")
    )
    if settings["num_key_value_heads"] != heads:
        raise settings.unsupported("num_key_value_heads", settings["num_key_value_heads"], f"{heads} alone is")
    nope, rope = settings["qk_nope_head_dim"], settings["qk_rope_head_dim"]
    latent = LatentConfig(
        rank=settings["kv_lora_rank"],
        query_rank=settings["q_lora_rank"],
        head_dim=nope,
        rotary_dim=rope,
        value_dim=settings["v_head_dim"],
    )
    experts = ExpertsConfig(
        settings["n_routed_experts"],
        settings["num_experts_per_tok"],
        ff_dim=settings["moe_intermediate_size"],
        score="sigmoid",
        normalize=settings["norm_topk_prob"],
        scaling=settings["routed_scaling_factor"],
        groups=settings["n_group"],
        keep_groups=settings["topk_group"],
        balance_bias=True,
        shared=settings["n_shared_experts"],
    )
    rotary = settings.rotary(rope)
    bias = settings["attention_bias"]
    return TransformerConfig(
        vocab_size=settings["vocab_size"],
        dim=settings["hidden_size"],
        layers=layers,
        heads=heads,
        head_dim=nope + rope,
        ff_dim=settings["intermediate_size"],
        activation=settings.activation("hidden_act", gated=True),
        latent=latent,
        experts=[None if layer < dense else experts for layer in range(layers)],
        rotary_base=rotary.base,
        rotary_scaling=rotary.scaling,
        rotary_interleaved=settings["rope_interleave"],
        scale=(nope + rope) ** -0.5 * _yarn_scale(settings) ** 2,
        attention_bias=bias,
        output_bias=bias,
        norm_eps=settings["rms_norm_eps"],
        tie_embeddings=settings["tie_word_embeddings"],
    )


def _yarn_scale(settings: Settings) -> float:
    """DeepSeek applies YaRN's magnitude to the logits, not to the turned channels alone."""
    rope = settings["rope_parameters"]
    scaled = rope.get("rope_type", "default") != "default" and rope.get("mscale_all_dim")
    return yarn_magnitude(rope["factor"], rope["mscale_all_dim"]) if scaled else 1.0


DEEPSEEK_V3 = Family(
    Decoder,
    ("DeepseekV3ForCausalLM",),
    _config,
    _names,
    # The last, as transformers says too: a layer of the published model that guesses one token further.
    ignored=(r"inv_freq$", r"^lm_head\.weight$", r"^model\.layers\.61\."),
    stored=lambda tensors: stack_experts(tensors, gate="gate_proj", up="up_proj", down="down_proj"),
)
