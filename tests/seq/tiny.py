"""Tiny models of transformers with random weights, by architecture; the same for every test that compares with them."""

from __future__ import annotations

import copy
from typing import Any

import torch
import transformers
from torch import Tensor
from transformers import PreTrainedModel

transformers.utils.logging.set_verbosity_error()

VOCABULARY = 67
PAD = 0

_TOKENS = {"pad_token_id": PAD, "bos_token_id": 1, "eos_token_id": None}
_SIZES: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 48,
}
_LLAMA: dict[str, Any] = {**_SIZES, **_TOKENS, "num_key_value_heads": 2, "max_position_embeddings": 64}

# architecture: (class of the model, class of the config, arguments of the config)
ARCHITECTURES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "LlamaConfig", {**_LLAMA, "attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralForCausalLM", "MistralConfig", {**_LLAMA, "sliding_window": 4, "head_dim": 12}),
    "qwen3": ("Qwen3ForCausalLM", "Qwen3Config", {**_LLAMA, "head_dim": 8, "tie_word_embeddings": True}),
    "gemma2": (
        "Gemma2ForCausalLM",
        "Gemma2Config",
        {
            **_LLAMA,
            "head_dim": 8,
            "sliding_window": 4,
            "query_pre_attn_scalar": 5,
            "attn_logit_softcapping": 2.0,
            "final_logit_softcapping": 3.0,
        },
    ),
    "gpt2": (
        "GPT2LMHeadModel",
        "GPT2Config",
        {**_TOKENS, "vocab_size": VOCABULARY, "n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 64},
    ),
    "falcon": (
        "FalconForCausalLM",
        "FalconConfig",
        {
            **_SIZES,
            **_TOKENS,
            "multi_query": True,
            "parallel_attn": True,
            "new_decoder_architecture": False,
            "ffn_hidden_size": 48,
        },
    ),
    "falcon-new": (
        "FalconForCausalLM",
        "FalconConfig",
        {**_SIZES, **_TOKENS, "num_kv_heads": 2, "new_decoder_architecture": True, "ffn_hidden_size": 48},
    ),
    "falcon-alibi": (
        "FalconForCausalLM",
        "FalconConfig",
        {
            **_SIZES,
            **_TOKENS,
            "hidden_size": 48,
            "num_attention_heads": 6,
            "alibi": True,
            "multi_query": False,
            "parallel_attn": False,
            "bias": True,
            "ffn_hidden_size": 48,
        },
    ),
    "bloom": (
        "BloomForCausalLM",
        "BloomConfig",
        {**_TOKENS, "vocab_size": VOCABULARY, "hidden_size": 48, "n_layer": 2, "n_head": 6},
    ),
    "mpt": (
        "MptForCausalLM",
        "MptConfig",
        {**_TOKENS, "vocab_size": VOCABULARY, "d_model": 48, "n_layers": 2, "n_heads": 6, "max_seq_len": 64},
    ),
    "mixtral": (
        "MixtralForCausalLM",
        "MixtralConfig",
        {**_LLAMA, "num_local_experts": 4, "num_experts_per_tok": 2, "sliding_window": 6},
    ),
    "deepseek_v3": (
        "DeepseekV3ForCausalLM",
        "DeepseekV3Config",
        {
            **_SIZES,
            **_TOKENS,
            "num_hidden_layers": 3,
            "num_key_value_heads": 4,
            "max_position_embeddings": 64,
            "moe_intermediate_size": 16,
            "n_shared_experts": 1,
            "n_routed_experts": 8,
            "num_experts_per_tok": 3,
            "n_group": 4,
            "topk_group": 2,
            "first_k_dense_replace": 1,
            "q_lora_rank": 20,
            "kv_lora_rank": 16,
            "qk_nope_head_dim": 8,
            "qk_rope_head_dim": 4,
            "v_head_dim": 6,
            "routed_scaling_factor": 1.7,
            "norm_topk_prob": True,
        },
    ),
    "gpt_oss": (
        "GptOssForCausalLM",
        "GptOssConfig",
        {
            **_LLAMA,
            "head_dim": 8,
            "sliding_window": 4,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 150000.0,
                "factor": 4.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 16,
            },
        },
    ),
    "llama4": (
        "Llama4ForCausalLM",
        "Llama4TextConfig",
        {
            **_LLAMA,
            "num_hidden_layers": 4,
            "head_dim": 8,
            "intermediate_size_mlp": 40,
            "num_local_experts": 4,
            "num_experts_per_tok": 1,
            "interleave_moe_layer_step": 2,
            "no_rope_layers": [1, 1, 1, 0],
            "attention_chunk_size": 5,
            "use_qk_norm": True,
            "attn_temperature_tuning": True,
            "floor_scale": 4,
            "attn_scale": 0.3,
        },
    ),
    "bert": ("BertForMaskedLM", "BertConfig", {**_SIZES, "max_position_embeddings": 64}),
    "modernbert": (
        "ModernBertForMaskedLM",
        "ModernBertConfig",
        {
            **_SIZES,
            "num_hidden_layers": 4,
            "max_position_embeddings": 64,
            "pad_token_id": PAD,
            "bos_token_id": 1,
            "eos_token_id": 2,
            "cls_token_id": 1,
            "sep_token_id": 2,
            "local_attention": 6,
            "global_attn_every_n_layers": 3,
        },
    ),
    "roformer": ("RoFormerForMaskedLM", "RoFormerConfig", {**_SIZES, "max_position_embeddings": 64}),
    "t5": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 8,
            "d_ff": 48,
            "num_layers": 2,
            "num_decoder_layers": 3,
            "num_heads": 4,
            "relative_attention_num_buckets": 8,
            "relative_attention_max_distance": 12,
            "pad_token_id": PAD,
            "decoder_start_token_id": PAD,
            "eos_token_id": None,
        },
    ),
    "t5-gated": (
        "T5ForConditionalGeneration",
        "T5Config",
        {
            "vocab_size": VOCABULARY,
            "d_model": 32,
            "d_kv": 6,
            "d_ff": 48,
            "num_layers": 2,
            "num_heads": 4,
            "feed_forward_proj": "gated-gelu",
            "tie_word_embeddings": False,
            "pad_token_id": PAD,
            "decoder_start_token_id": PAD,
            "eos_token_id": None,
        },
    ),
}
DECODERS = [name for name, (model, _, _) in ARCHITECTURES.items() if "LM" in model and "Masked" not in model]


def tiny(architecture: str, attention: str = "eager", **changes: Any) -> PreTrainedModel:
    """A model of an architecture, in evaluation mode, every weight random enough to matter."""
    model, config, arguments = ARCHITECTURES[architecture]
    built = getattr(transformers, config)(**{**copy.deepcopy(arguments), **changes})
    built._attn_implementation = attention
    with torch.random.fork_rng():
        torch.manual_seed(1)
        return randomised(getattr(transformers, model)(built)).eval()


def randomised(model: PreTrainedModel) -> PreTrainedModel:
    """Weights moved from where they start, so that no norm, gate, bias or table is neutral."""
    with torch.no_grad():
        for parameter in filter(lambda each: each.requires_grad, model.parameters()):  # not RoFormer's table of sines
            parameter.add_(torch.randn_like(parameter) * 0.15)
        for name, buffer in model.named_buffers():
            if name.endswith("e_score_correction_bias"):
                buffer.add_(torch.randn_like(buffer) * 0.2)
    return model


def tokens(batch: int, length: int, seed: int = 0) -> Tensor:
    """Random ids, none of them special."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY, (batch, length), generator=generator)


def padded(ids: Tensor, lengths: list[int], side: str) -> tuple[Tensor, Tensor]:
    """The first `lengths[b]` ids of each row, padded to one length on a side, and the mask."""
    longest = max(lengths)
    out, mask = torch.full((len(lengths), longest), PAD), torch.zeros(len(lengths), longest, dtype=torch.long)
    for row, length in enumerate(lengths):
        where = slice(longest - length, longest) if side == "left" else slice(0, length)
        out[row, where], mask[row, where] = ids[row, :length], 1
    return out, mask
