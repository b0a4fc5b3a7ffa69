"""Rotary settings read from Hugging Face's and vLLM's dicts, and what is refused in them."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.biases import Rotary, RotaryScaling


def frequencies(scaling: RotaryScaling) -> Tensor:
    return Rotary(8, 100.0, scaling).inv_freq(dtype=torch.float64)


YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}


@pytest.mark.parametrize(
    ("values", "law"),
    [
        (None, RotaryScaling()),
        ({}, RotaryScaling()),
        ({"rope_type": "default", "rope_theta": 1e6, "partial_rotary_factor": 0.5}, RotaryScaling()),
        ({"type": "linear", "factor": 2}, RotaryScaling.linear(2)),
        ({"type": "linear", "rope_type": "linear", "factor": 2.0, "rope_theta": None}, RotaryScaling.linear(2.0)),
        ({"type": "dynamic", "factor": 2.0}, RotaryScaling.dynamic_ntk(2.0, 4096)),
        ({"type": "dynamic", "factor": 1.0, "alpha": 1000.0, "mscale": 1.0}, RotaryScaling.ntk(1000.0)),
        (YARN, RotaryScaling.yarn(4.0, 64, attention_factor=0.1 * math.log(4) + 1)),
        ({**YARN, "attention_factor": 1.25, "finetuned": True}, RotaryScaling.yarn(4.0, 64, attention_factor=1.25)),
        ({**YARN, "attn_factor": 2.0}, RotaryScaling.yarn(4.0, 64, attention_factor=2 * (0.1 * math.log(4) + 1))),
        ({**YARN, "apply_yarn_scaling": False}, RotaryScaling.ntk_by_parts(4.0, 64)),
        (
            {"type": "su", "short_factor": [1.0], "long_factor": [2.0], "original_max_position_embeddings": 1024},
            RotaryScaling.longrope([1.0], [2.0], 1024, factor=4.0),
        ),
        (
            {
                "type": "longrope",
                "short_factor": [1.0],
                "long_factor": [2.0],
                "short_mscale": 1.2,
                "long_mscale": 1.2,
                "original_max_position_embeddings": 1024,
            },
            RotaryScaling.longrope([1.0], [2.0], 1024, attention_factor=1.2),
        ),
    ],
)
def test_config_dicts(values: dict[str, Any] | None, law: RotaryScaling) -> None:
    read = RotaryScaling.from_hf(values, max_position_embeddings=4096)
    if read.depends_on_length:
        assert read == law
    else:
        assert read.magnitude == law.magnitude
        assert torch.equal(frequencies(read), frequencies(law))


def test_vllms_ntk() -> None:
    """base · s, and every frequency over s^(2/dim); with mixed_b, over exp(ln s · ((j + 1)/(dim/2))^b)."""
    plain, grown = frequencies(RotaryScaling()), Rotary(8, 400.0).inv_freq(dtype=torch.float64)
    fixed = RotaryScaling.from_hf({"rope_type": "ntk", "factor": 4.0})
    torch.testing.assert_close(frequencies(fixed), grown / 4 ** (2 / 8), rtol=1e-14, atol=0)
    mixed = RotaryScaling.from_hf({"rope_type": "ntk", "factor": 4.0, "mixed_b": 0.625})
    a, channel = math.log(4.0) / 4**0.625, torch.arange(1, 5, dtype=torch.float64)
    torch.testing.assert_close(frequencies(mixed), plain / (a * channel**0.625).exp(), rtol=1e-14, atol=0)


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"rope_type": "spiral"}, "rope scaling type is 'spiral'; it must be one of default, linear"),
        ({"type": "mrope", "mrope_section": [1, 2]}, "rope scaling type is 'mrope'"),
        ({"factor": 2.0}, "lacks the key 'rope_type'"),
        ({"full_attention": {}, "sliding_attention": {}}, "lacks the key 'rope_type'"),
        ({"rope_type": "linear", "type": "yarn", "factor": 2.0}, "rope_type is 'linear' and type is 'yarn'"),
        ({"rope_type": "linear"}, "lacks the key 'factor'"),
        ({"rope_type": "linear", "factor": None}, "lacks the key 'factor'"),
        ({"rope_type": "linear", "factor": 2.0, "beta_fast": 32}, "unknown key 'beta_fast'"),
        ({"rope_type": "default", "factor": 2.0}, "unknown key 'factor'"),
        ({"rope_type": "linear", "factor": "2"}, "factor is '2'"),
        ({"rope_type": "linear", "factor": -2.0}, "factor is -2.0"),
        ({"rope_type": "dynamic", "factor": 2.0}, "max_position_embeddings is not given"),
        ({"rope_type": "yarn", "factor": 2.0}, "lacks the key 'original_max_position_embeddings'"),
        ({"rope_type": "yarn", "original_max_position_embeddings": 64}, "lacks the key 'factor'"),
        ({**YARN, "truncate": 1}, "truncate is 1"),
        ({**YARN, "extrapolation_factor": 2.0}, "extrapolation_factor is 2.0"),
        ({**YARN, "attention_factor": 1.0, "attn_factor": 1.0}, "both 'attention_factor' and 'attn_factor'"),
        ({**YARN, "low_freq_factor": 1.0}, "unknown key 'low_freq_factor'"),
        ({**YARN, "rope_type": "llama3"}, "lacks the key 'low_freq_factor'"),
        ({"rope_type": "longrope", "long_factor": [1.0]}, "lacks the key 'short_factor'"),
        ({"rope_type": "longrope", "short_factor": 1.0, "long_factor": [1.0]}, "short_factor is 1.0"),
        (
            {"rope_type": "longrope", "short_factor": [1.0], "long_factor": [1.0], "short_mscale": 1.1},
            "short_mscale is 1.1 and long_mscale None",
        ),
    ],
)
def test_config_dicts_that_make_no_sense_are_named(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RotaryScaling.from_hf(values)
    with pytest.raises(ValueError, match=message):
        Rotary.from_hf(values, 8)


def test_rotary_from_a_dict_reads_base_and_width() -> None:
    bias = Rotary.from_hf({**YARN, "rope_theta": 5e5, "partial_rotary_factor": 0.5}, 16)
    assert (bias.dim, bias.base, bias.interleaved) == (8, 5e5, False)
    assert Rotary.from_hf(None, 16).base == 10000.0
    with pytest.raises(ValueError, match=r"partial_rotary_factor is 1\.5"):
        Rotary.from_hf({"partial_rotary_factor": 1.5}, 16)
    with pytest.raises(ValueError, match="rope_theta is 0"):
        Rotary.from_hf({"rope_theta": 0}, 16)
    with pytest.raises(ValueError, match="dim is 5; it must be a positive even integer"):
        Rotary.from_hf({"partial_rotary_factor": 0.5}, 10)
