"""Tiny models of every mechanism, with weights large enough that each shows in the output."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnops import Chunked, PrefixLM, RotaryScaling, SlidingWindow
from attnops.seq import AttentionTemperature, Decoder, TransformerConfig

VOCABULARY = 23

DECODERS: dict[str, dict[str, Any]] = {
    "llama": {},
    "multi-head": {"kv_heads": None},
    "multi-query": {"kv_heads": 1},
    "interleaved rotary of some channels": {"rotary_dim": 4, "rotary_interleaved": True, "head_dim": 10},
    "yarn": {"rotary_scaling": RotaryScaling.yarn(4.0, 4)},
    "alibi": {"position": "alibi", "norm": "layer", "activation": "gelu"},
    "slopes of its own": {"position": "alibi", "alibi_slopes": [0.1, 0.2, 0.3, 0.4]},
    "t5": {"position": "relative", "relative_buckets": 8, "relative_distance": 6, "activation": "relu", "scale": 1.0},
    "shaw": {"position": "shaw", "shaw_distance": 3},
    "learned": {"position": "learned", "max_length": 32, "norm": "layer", "activation": "gelu_tanh", "ff_bias": True},
    "sinusoidal": {"position": "sinusoidal", "norm_position": "post", "embedding_scale": 5.6},
    "no positions": {"position": "none"},
    "irope": {
        "position": ["rotary", "none"],
        "qk_norm": ["unit", False],
        "temperature": [None, AttentionTemperature(1.0, 3.0)],
        "pattern": [Chunked(4), None],
    },
    "window": {"pattern": SlidingWindow(2)},
    "windows between full layers": {"pattern": [SlidingWindow(3), None]},
    "window of alibi": {"pattern": SlidingWindow(2), "position": "alibi"},
    "gemma": {"norm_position": "both", "softcap": 2.0, "final_softcap": 3.0, "activation": "geglu_tanh"},
    "gpt-oss": {"sinks": True, "pattern": [SlidingWindow(2), None], "attention_bias": True, "output_bias": True},
    "falcon": {"norm_position": "parallel", "norm": "layer", "kv_heads": 1},
    "neox": {"norm_position": "parallel", "parallel_norms": 2, "rotary_dim": 2},
    "norm of all heads": {"qk_norm": "full"},
    "qwen": {"qk_norm": True, "tie_embeddings": False, "head_bias": True},
    "clipped": {"qkv_clip": 0.5},
    "prefix": {"pattern": PrefixLM(3), "causal": False},
}

# a step of these looks at the keys of a text of that length, so a text read at once is another computation
BY_LENGTH: dict[str, dict[str, Any]] = {
    "dynamic ntk": {"rotary_scaling": RotaryScaling.dynamic_ntk(2.0, 4)},
    "longrope": {"rotary_scaling": RotaryScaling.longrope([1.0, 1.0], [1.0, 8.0], 4), "rotary_dim": 4},
}


def decoder(**options: Any) -> Decoder:
    config = {"vocab_size": VOCABULARY, "dim": 32, "layers": 2, "heads": 4, "kv_heads": 2, "ff_dim": 40, **options}
    model = Decoder(TransformerConfig(**config)).double().eval()
    enlarge(model)
    return model


def enlarge(model: nn.Module) -> None:
    """Weights at random, biases and tables too, so that nothing is hidden by a zero."""
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            parameter.copy_(1 + 0.3 * noise if parameter.ndim == 1 else 0.3 * noise)


def some_ids(rows: int, length: int, seed: int = 0) -> Tensor:
    return torch.randint(0, VOCABULARY, (rows, length), generator=torch.Generator().manual_seed(seed))
