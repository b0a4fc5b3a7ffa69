"""Models stretched past the length they were trained at give transformers' numbers, in one pass and step by step."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops import RotaryScaling
from attnops.seq import AttentionTemperature, Context, Decoder, KVCache, TransformerConfig, from_pretrained, generate

transformers = pytest.importorskip("transformers")

from tests.seq.tiny import padded, tiny, tokens  # noqa: E402

TRAINED, LONG = 8, 21  # the length that the scaling starts from, and a text well past it
SHORT_FACTOR, LONG_FACTOR = [1.0, 1.1, 1.2, 1.4], [1.0, 2.0, 3.5, 6.0]
LLAMA3 = {"low_freq_factor": 1.0, "high_freq_factor": 4.0}

SCALINGS: dict[str, dict[str, Any]] = {
    "interpolation": {"rope_type": "linear", "factor": 4.0},
    "dynamic": {"rope_type": "dynamic", "factor": 2.0},
    "yarn": {"rope_type": "yarn", "factor": 4.0},
    "yarn-magnitude": {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 8.0, "beta_slow": 2.0},
    "yarn-mscale": {"rope_type": "yarn", "factor": 4.0, "mscale": 0.7, "mscale_all_dim": 1.0, "truncate": False},
    "llama3": {"rope_type": "llama3", "factor": 8.0, **LLAMA3},
    "longrope": {"rope_type": "longrope", "factor": 4.0, "short_factor": SHORT_FACTOR, "long_factor": LONG_FACTOR},
}
STARTS = {
    name: {"original_max_position_embeddings": TRAINED} for name in SCALINGS if name not in ("interpolation", "dynamic")
}


def stretched(scaling: str, **changes: Any) -> Any:
    """A Llama with that scaling; for dynamic NTK the trained length is the config's own."""
    length = TRAINED if scaling == "dynamic" else 4 * TRAINED
    rope = {**SCALINGS[scaling], **STARTS.get(scaling, {}), "rope_theta": 500.0}
    return tiny("llama", rope_parameters=rope, max_position_embeddings=length, **changes)


def depth(scaling: str) -> dict[str, int]:
    """One layer where frequencies change with the length.

    In a deeper model no cache can be a pass of that length: what upper layers hold of the first tokens was made from
    what lower layers gave at the length of then. Keys are turned by the frequencies of now in every layer.
    """
    return {"num_hidden_layers": 1} if scaling in ("dynamic", "longrope") else {}


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=0, atol=1e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize("length", [TRAINED - 1, TRAINED, TRAINED + 1, LONG])
@pytest.mark.parametrize("scaling", SCALINGS)
def test_one_pass(scaling: str, length: int) -> None:
    theirs, ids = stretched(scaling), tokens(2, length)
    with torch.no_grad():
        close(from_pretrained(theirs)(ids), theirs(ids).logits)


@pytest.mark.parametrize("scaling", SCALINGS)
def test_each_cached_step_is_a_pass_of_that_length(scaling: str) -> None:
    """Over the edge where frequencies change, too, where transformers' own cache keeps the old ones."""
    theirs, ids = stretched(scaling, **depth(scaling)), tokens(1, LONG)
    ours, cache = from_pretrained(theirs), KVCache()
    with torch.no_grad():
        for start, end in [(0, 5), *((step, step + 1) for step in range(5, LONG))]:
            close(ours(ids[:, start:end], cache=cache)[:, -1], theirs(ids[:, :end]).logits[:, -1])


@pytest.mark.parametrize("scaling", ["dynamic", "longrope"])
def test_each_row_of_a_padded_batch_has_its_own_length(scaling: str) -> None:
    """A short text beside a long one gets the numbers that it gets alone."""
    theirs, lengths = stretched(scaling), [LONG, 6]
    ours = from_pretrained(theirs)
    for side in ("left", "right"):
        ids, mask = padded(tokens(2, LONG), lengths, side)
        with torch.no_grad():
            together = ours(ids, mask)
            for row, length in enumerate(lengths):
                close(together[row][mask[row].bool()], theirs(tokens(2, LONG)[row : row + 1, :length]).logits[0])


@pytest.mark.parametrize("scaling", SCALINGS)
def test_every_cache_writes_the_same(scaling: str) -> None:
    for changes in ({}, depth(scaling)):
        ours, ids = from_pretrained(stretched(scaling, **changes)), tokens(2, 5)
        caches = ["full", "paged", "rolling"] + (["none"] if changes == depth(scaling) else [])
        written = [generate(ours, ids, 12, cache=cache) for cache in caches]
        assert all(torch.equal(other, written[0]) for other in written[1:])


@pytest.mark.parametrize("scaling", SCALINGS)
def test_a_config_as_transformers_4_wrote_it(scaling: str, tmp_path: Path) -> None:
    """`rope_theta` and `rope_scaling` with a `type`, and code of the folder's own, which is not run."""
    theirs, ids = stretched(scaling), tokens(1, LONG)
    theirs.save_pretrained(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    rope = config.pop("rope_parameters")
    config["rope_theta"], config["rope_scaling"] = rope.pop("rope_theta"), {"type": rope.pop("rope_type"), **rope}
    config["auto_map"] = {"AutoConfig": "configuration_own.OwnConfig"}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with torch.no_grad():
        close(from_pretrained(tmp_path)(ids), theirs(ids).logits)


def test_ntk_is_a_larger_base() -> None:
    factor, dim = 4.0, 8
    plain = tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0})
    larger = tiny("llama", rope_parameters={"rope_type": "default", "rope_theta": 500.0 * factor ** (dim / (dim - 2))})
    config = from_pretrained(plain).config
    config.rotary_scaling = RotaryScaling.ntk(factor)
    ours = Decoder(config).eval()
    ours.load_state_dict(from_pretrained(plain).state_dict())
    with torch.no_grad():
        close(ours(tokens(2, LONG)), larger(tokens(2, LONG)).logits)


def test_the_json_flag_of_vllm_says_what_a_config_says() -> None:
    flag = '{"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 8}'
    theirs = stretched("yarn")
    config = from_pretrained(theirs).config
    assert RotaryScaling.from_hf(json.loads(flag)) == config.rotary_scaling


@torch.no_grad()
def test_yarns_magnitude_is_in_queries_and_in_keys_once() -> None:
    """At position 0, where nothing turns, it is all that YaRN does."""
    plain = from_pretrained(tiny("llama"))
    config = plain.config
    config.rotary_scaling = RotaryScaling.yarn(4.0, TRAINED, attention_factor=2.0)
    magnified = Decoder(config).eval()
    magnified.load_state_dict(plain.state_dict())
    x, context = torch.randn(1, 1, config.dim), Context(torch.zeros(1, dtype=torch.long))
    query, key, value = plain.blocks[0].attention.project(x, context)
    larger = magnified.blocks[0].attention.project(x, context)
    for given, expected in zip(larger, (2 * query, 2 * key, value), strict=True):
        close(given, expected)


@pytest.mark.parametrize("floor", [3, 5, 100])
def test_llama_4_sharpens_with_length(floor: int) -> None:
    theirs, ids = tiny("llama4", floor_scale=floor, attn_scale=0.7), tokens(1, LONG)
    ours, cache = from_pretrained(theirs), KVCache()
    with torch.no_grad():
        expected = theirs(ids).logits
        close(ours(ids), expected)
        steps = [ours(step, cache=cache) for step in ids.split([4, *[1] * (LONG - 4)], dim=1)]
        close(torch.cat(steps, dim=1), expected)


def test_temperature_on_every_layer_is_larger_queries() -> None:
    """With one layer, q_i times the factor is the same as logits times it."""
    config = TransformerConfig(vocab_size=31, dim=16, layers=1, heads=2, position="none")
    torch.manual_seed(0)
    plain = Decoder(config).eval()
    config.temperature = AttentionTemperature(scale=0.5, floor=4.0)
    sharp = Decoder(config).eval()
    sharp.load_state_dict(plain.state_dict())
    ids = torch.randint(0, 31, (1, 12))
    with torch.no_grad():
        close(sharp(ids)[:, :3], plain(ids)[:, :3])
        assert not torch.allclose(sharp(ids)[:, 3:], plain(ids)[:, 3:])
        plain.blocks[0].attention.scale = (8**-0.5) * float(config.temperature.factor(torch.tensor(11)))
        close(sharp(ids)[:, 11], plain(ids)[:, 11])
