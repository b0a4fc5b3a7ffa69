"""Folders as they were published, with names that transformers itself does not write any more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.seq import EncoderDecoder
from attnops.seq.pretrained import from_pretrained

transformers = pytest.importorskip("transformers")
safetensors = pytest.importorskip("safetensors.torch")

from tests.seq.test_pretrained import close, logits, theirs_of  # noqa: E402
from tests.seq.tiny import tokens  # noqa: E402


def saved(folder: Path, model: Any, weights: dict[str, Tensor], **config: Any) -> Path:
    """The model's folder, with further weights and other words in its config."""
    model.save_pretrained(folder)
    held = safetensors.load_file(folder / "model.safetensors")
    safetensors.save_file({**held, **weights}, folder / "model.safetensors", metadata={"format": "pt"})
    values = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**values, **config}))
    return folder


def table_of(model: Any) -> Tensor:
    table: Tensor = model.get_input_embeddings().weight
    return table.detach()


@pytest.mark.parametrize("architecture", ["llama", "gpt2", "bloom", "mpt", "falcon", "t5", "t5-gated"])
@pytest.mark.parametrize("from_memory", [False, True], ids=["folder", "memory"])
def test_a_head_of_its_own_beside_a_config_that_ties_it(architecture: str, from_memory: bool, tmp_path: Path) -> None:
    """As FLAN-T5 has it: the file holds both tables, and transformers keeps both."""
    torch.manual_seed(0)
    tied = {"tie_word_embeddings": True} if architecture == "llama" else {}
    model = theirs_of(architecture, **tied)
    head = torch.randn_like(table_of(model))
    saved(tmp_path, model, {"lm_head.weight": head})
    theirs = type(model).from_pretrained(tmp_path, attn_implementation=model.config._attn_implementation).eval()
    assert torch.equal(theirs.get_output_embeddings().weight, head)
    ours = from_pretrained(theirs if from_memory else tmp_path)
    assert not ours.config.tie_embeddings
    close(*logits(ours, theirs, tokens(2, 9)))


def test_a_copy_of_the_table_stays_tied(tmp_path: Path) -> None:
    model = theirs_of("t5")
    ours = from_pretrained(saved(tmp_path, model, {"lm_head.weight": table_of(model).clone()}))
    assert isinstance(ours, EncoderDecoder) and ours.head.weight is None


def test_a_head_of_an_encoder_that_is_not_the_table_is_refused(tmp_path: Path) -> None:
    model = theirs_of("bert")
    other = {"cls.predictions.decoder.weight": table_of(model) + 1}
    with pytest.raises(ValueError, match=r"cls\.predictions\.decoder\.weight differs from the table of tokens"):
        from_pretrained(saved(tmp_path, model, other))


def test_a_second_bias_of_a_head_is_refused(tmp_path: Path) -> None:
    model = theirs_of("bert")
    bias = model.cls.predictions.bias.detach()
    from_pretrained(saved(tmp_path, model, {"cls.predictions.decoder.bias": bias.clone()}))
    with pytest.raises(ValueError, match=r"decoder\.bias differs from cls\.predictions\.bias"):
        from_pretrained(saved(tmp_path, model, {"cls.predictions.decoder.bias": bias + 1}))


@pytest.mark.parametrize(
    "rope",
    [
        {"rope_type": "longrope", "factor": 4.0, "short_factor": [1.0] * 4, "long_factor": [1.0, 2.0, 3.0, 4.0]},
        {"rope_type": "llama3", "factor": 16.0, "low_freq_factor": 1.0, "high_freq_factor": 1.0},
        {"rope_type": "yarn", "factor": 4.0},
    ],
)
@pytest.mark.parametrize("length", [10, 40])
def test_llama4_with_longer_waves(rope: dict[str, Any], length: int) -> None:
    """Its norm comes after the rotation; Scout's waves are long or short, with none between."""
    rope = {**rope, "rope_theta": 500.0, "original_max_position_embeddings": 16}
    model = theirs_of("llama4", rope_parameters=rope)
    ours, theirs = logits(from_pretrained(model), model, tokens(2, length))
    torch.testing.assert_close(ours, theirs, rtol=0, atol=3e-5 * float(theirs.abs().max()))


@pytest.mark.parametrize(
    "architecture, name",
    [
        ("bert", "BertForPreTraining"),
        ("mpt", "MPTForCausalLM"),
        ("t5", "T5WithLMHeadModel"),
        ("falcon", "RWForCausalLM"),
    ],
)
def test_names_that_classes_had(architecture: str, name: str, tmp_path: Path) -> None:
    model = theirs_of(architecture)
    close(*logits(from_pretrained(saved(tmp_path, model, {}, architectures=[name])), model, tokens(2, 9)))


@pytest.mark.parametrize("architecture", ["bert", "roformer"])
def test_what_the_first_berts_had_beside(architecture: str, tmp_path: Path) -> None:
    """A pooler, and whether one sentence follows another."""
    model = theirs_of(architecture)
    dim = model.config.hidden_size
    beside = {"cls.seq_relationship.weight": torch.ones(2, dim), "cls.seq_relationship.bias": torch.ones(2)}
    beside |= {f"{architecture}.pooler.dense.weight": torch.ones(dim, dim)}
    close(*logits(from_pretrained(saved(tmp_path, model, beside)), model, tokens(2, 9)))


def test_a_model_that_is_trained_before_its_sentences_pair(tmp_path: Path) -> None:
    config = theirs_of("bert").config
    model = transformers.BertForPreTraining(config).eval()
    ours, ids = from_pretrained(model), tokens(2, 9)
    with torch.no_grad():
        close(ours.head(ours(ids), ours.embeddings.token.weight), model(ids).prediction_logits)


def test_the_layer_that_guesses_one_token_further(tmp_path: Path) -> None:
    model = theirs_of("deepseek_v3")
    further = {"model.layers.61.eh_proj.weight": torch.ones(2, 2), "model.layers.61.embed_tokens.weight": torch.ones(2)}
    experts = {f"model.layers.61.mlp.experts.0.{x}_proj.weight": torch.ones(2, 2) for x in ("gate", "up", "down")}
    close(*logits(from_pretrained(saved(tmp_path, model, further | experts)), model, tokens(2, 9)))
