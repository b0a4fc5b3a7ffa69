"""Rotary frequencies, magnitudes and rotations equal those of transformers, for every scaling type."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from attnops.biases import Rotary, RotaryScaling
from attnops.coords import Coords

transformers = pytest.importorskip("transformers")
rope_utils = pytest.importorskip("transformers.modeling_rope_utils")
modeling_llama = pytest.importorskip("transformers.models.llama.modeling_llama")
modeling_gpt_neox = pytest.importorskip("transformers.models.gpt_neox.modeling_gpt_neox")
modeling_gptj = pytest.importorskip("transformers.models.gptj.modeling_gptj")

CONTEXT = 4096  # the config's max_position_embeddings
SHORT = [1.0 + 0.05 * j for j in range(64)]
LONG = [1.0 + 1.5 * j for j in range(64)]

SETTINGS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "linear", "factor": 8},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "dynamic", "factor": 6.5},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 2048, "attention_factor": 1.0},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 256, "beta_fast": 64, "beta_slow": 2},
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 1.0,
        "mscale_all_dim": 1.0,
    },
    {
        "rope_type": "yarn",
        "factor": 40.0,
        "original_max_position_embeddings": 4096,
        "mscale": 0.707,
        "mscale_all_dim": 1,
    },
    {"rope_type": "yarn", "factor": 40.0, "original_max_position_embeddings": 4096, "mscale": 0.707},
    {"rope_type": "yarn", "factor": 32.0, "original_max_position_embeddings": 4096, "truncate": False},
    {"rope_type": "yarn", "factor": 0.5, "original_max_position_embeddings": 8192},
    {"rope_type": "yarn", "factor": None, "original_max_position_embeddings": 512},
    {"rope_type": "yarn", "factor": 4.0},
    {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 3},
    {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 512,
    },
    {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 2,
        "high_freq_factor": 16,
        "original_max_position_embeddings": 2048,
    },
    {"rope_type": "longrope", "original_max_position_embeddings": 1024},
    {"rope_type": "longrope", "original_max_position_embeddings": 1024, "factor": 32.0},
    {"rope_type": "longrope", "original_max_position_embeddings": 1024, "attention_factor": 1.19},
    {"rope_type": "longrope", "original_max_position_embeddings": 1024, "factor": 0.5},
    {"rope_type": "proportional"},
    {"rope_type": "proportional", "factor": 4.0},
]
HEADS = [(128, 1.0, 10000.0), (64, 0.5, 500000.0), (96, 0.25, 1e6), (8, 1.0, 150.0)]


def settings() -> Iterator[Any]:
    for values in SETTINGS:
        for head_dim, share, theta in HEADS:
            named = {key: value for key, value in values.items() if key != "rope_type"}
            label = "-".join([values["rope_type"], *(f"{key}={value}" for key, value in named.items()), str(head_dim)])
            rope = {**values, "rope_theta": theta, "partial_rotary_factor": share}
            if values["rope_type"] == "longrope":
                pairs = int(head_dim * share) // 2
                rope |= {"short_factor": SHORT[:pairs], "long_factor": LONG[:pairs]}
            yield pytest.param(rope, head_dim, id=label)


def config_of(rope: dict[str, Any], head_dim: int) -> Any:
    config = transformers.LlamaConfig(
        hidden_size=4 * head_dim,
        num_attention_heads=4,
        head_dim=head_dim,
        num_hidden_layers=1,
        max_position_embeddings=CONTEXT,
    )
    config.rope_parameters = dict(rope)  # past the validation, which only warns
    return config


@pytest.fixture
def in_double(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let transformers' formulas, written in float32, run in float64."""
    monkeypatch.setattr(torch, "float", torch.float64)
    monkeypatch.setattr(torch, "float32", torch.float64)
    monkeypatch.setattr(torch.Tensor, "float", torch.Tensor.double)


@pytest.mark.parametrize(("rope", "head_dim"), list(settings()))
@pytest.mark.parametrize("length", [1, 1024, CONTEXT, CONTEXT + 1, 30000])
@pytest.mark.usefixtures("in_double")
def test_frequencies_and_magnitude_are_exact(rope: dict[str, Any], head_dim: int, length: int) -> None:
    theta, magnitude = rope_utils.ROPE_INIT_FUNCTIONS[rope["rope_type"]](
        config_of(rope, head_dim), torch.device("cpu"), seq_len=length
    )
    rotary = Rotary.from_hf(rope, head_dim, max_position_embeddings=CONTEXT)
    ours = rotary.inv_freq(torch.tensor([length]), torch.float64).reshape(-1)
    torch.testing.assert_close(ours, theta.double(), rtol=1e-13, atol=1e-300)
    scaling = rotary.scaling or RotaryScaling()
    assert scaling.magnitude == pytest.approx(magnitude, rel=1e-15)


# A model's own validation refuses a factor of None, which the formula allows.
@pytest.mark.parametrize(
    ("rope", "head_dim"), [case for case in settings() if case.values[0].get("factor", 1) is not None]
)
def test_a_models_rotary_embedding_gives_the_same_waves(rope: dict[str, Any], head_dim: int) -> None:
    embedding = modeling_llama.LlamaRotaryEmbedding(config_of(rope, head_dim))
    position = torch.tensor([[0, 1, 5, 300, 5000]])  # beyond every trained length
    cos, sin = embedding(torch.zeros(1), position)
    rotary = Rotary.from_hf(rope, head_dim, max_position_embeddings=CONTEXT)
    ours = rotary.waves(position, torch.tensor([5001]) if rotary.depends_on_length else None)
    half = cos.shape[-1] // 2
    for mine, theirs in zip(ours, (cos, sin), strict=True):  # both float32: a phase of 5000 has 3e-4 to spare
        torch.testing.assert_close(mine, theirs[..., :half], rtol=0, atol=2e-3)


def test_every_type_that_transformers_knows_is_read() -> None:
    assert set(rope_utils.ROPE_INIT_FUNCTIONS) <= {rope["rope_type"] for rope in SETTINGS}


@pytest.mark.parametrize("share", [1.0, 0.5, 0.25])
@pytest.mark.usefixtures("in_double")
def test_plain_frequencies(share: float) -> None:
    rope = {"rope_type": "default", "rope_theta": 150000.0, "partial_rotary_factor": share}
    config = transformers.GPTNeoXConfig(hidden_size=256, num_attention_heads=4)
    config.rope_parameters = rope
    theta = modeling_gpt_neox.GPTNeoXRotaryEmbedding.compute_default_rope_parameters(config)[0]
    rotary = Rotary.from_hf(rope, 64)
    assert rotary.scaling is None
    torch.testing.assert_close(rotary.inv_freq(dtype=torch.float64), theta.double(), rtol=1e-13, atol=0)


def turned(rotary: Rotary, query: torch.Tensor, key: torch.Tensor, position: torch.Tensor) -> tuple[torch.Tensor, ...]:
    coords = Coords(position=position)
    return rotary.rotate(query, key, (coords, coords))


def test_llamas_rotation() -> None:
    position = torch.tensor([[0, 1, 2, 77], [5, 6, 7, 8]])
    query = torch.randn(2, 4, 4, 16, dtype=torch.float64)
    key = torch.randn(2, 2, 4, 16, dtype=torch.float64)
    angle = position[..., None].double() * Rotary(16).inv_freq(dtype=torch.float64)
    cos, sin = (torch.cat((wave, wave), -1) for wave in (angle.cos(), angle.sin()))
    theirs = modeling_llama.apply_rotary_pos_emb(query, key, cos, sin)
    for mine, other in zip(turned(Rotary(16), query, key, position), theirs, strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-14, atol=1e-14)


def test_gptjs_rotation_is_the_interleaved_one() -> None:
    position = torch.tensor([[0, 1, 2, 77]])
    query, key = torch.randn(2, 1, 3, 4, 16, dtype=torch.float64)
    angle = position[..., None].double() * Rotary(16).inv_freq(dtype=torch.float64)
    rotary = Rotary(16, interleaved=True)
    for mine, vectors in zip(turned(rotary, query, key, position), (query, key), strict=True):
        theirs = modeling_gptj.apply_rotary_pos_emb(vectors.transpose(1, 2), angle.sin(), angle.cos()).transpose(1, 2)
        torch.testing.assert_close(mine, theirs, rtol=1e-14, atol=1e-14)


def test_a_whole_config_is_read_in_the_layouts_of_transformers_4_and_5() -> None:
    yarn = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 1024}
    four = {
        "hidden_size": 256,
        "rope_theta": 1e6,
        "partial_rotary_factor": 0.5,
        "max_position_embeddings": CONTEXT,
        "rope_scaling": yarn,
    }
    five = config_of({**yarn, "rope_theta": 1e6, "partial_rotary_factor": 0.5}, 64).to_dict()
    for config in (four, five):
        rotary = Rotary.from_hf(config, 64)
        assert (rotary.dim, rotary.base, rotary.scaling) == (32, 1e6, RotaryScaling.from_hf(yarn))


def test_phi3s_config_keeps_the_trained_length_beside() -> None:
    config = {
        "rope_theta": 10000.0,
        "max_position_embeddings": 131072,
        "original_max_position_embeddings": 4096,
        "rope_scaling": {"type": "su", "short_factor": [1.0] * 4, "long_factor": [2.0] * 4},
    }
    assert Rotary.from_hf(config, 8).scaling == RotaryScaling.longrope([1.0] * 4, [2.0] * 4, 4096, factor=32.0)
