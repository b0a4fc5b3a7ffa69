"""Texts longer than trained, and the words that made a model say so: what the examples count is what they say."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from attnops.seq import Decoder, TransformerConfig, perplexity
from examples import attribution, length_extrapolation, needle

pytest.importorskip("matplotlib")


def test_every_scheme_is_read_at_every_length(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = length_extrapolation.main(["--small", "--steps", "10", "--out", str(tmp_path)])
    assert set(length_extrapolation.TRAINED) | set(length_extrapolation.stretched(8, 1)) == set(table)
    for name, row in table.items():
        unreachable = [factor for factor, value in row.items() if value is None]
        assert unreachable == ([2, 4, 8] if name == "learned" else [])
        assert all(1 < value < 200 for value in row.values() if value is not None)
    at_trained_length = [table[name][1] for name in table if name.startswith("rotary")]
    assert at_trained_length == pytest.approx([at_trained_length[0]] * 5, rel=1e-5)  # a stretch by 1 changes nothing
    for name in length_extrapolation.stretched(8, 1):
        assert all(table[name][factor] != table["rotary"][factor] for factor in (2, 4, 8))
    written = json.loads((tmp_path / "perplexity.json").read_text())
    assert written["perplexity"]["alibi"]["8"] == table["alibi"][8]
    assert (tmp_path / "perplexity.png").stat().st_size > 10_000
    assert "as published" in capsys.readouterr().out


def test_the_score_is_perplexity_where_one_window_is_all() -> None:
    torch.manual_seed(0)
    model = Decoder(TransformerConfig(10, 16, layers=1, heads=2)).eval()
    ids = torch.randint(0, 10, (20,))
    ours = length_extrapolation.score(model, ids, length=20, scored=19, longest=20, windows=1)
    assert ours == pytest.approx(perplexity(model, ids), rel=1e-5)


def test_every_length_is_scored_on_the_same_characters() -> None:
    seen: list[torch.Tensor] = []

    def model(ids: torch.Tensor) -> torch.Tensor:
        seen.append(ids)
        return torch.zeros(*ids.shape, 10)

    ids = torch.arange(100) % 10
    for length in (4, 8, 16):
        assert length_extrapolation.score(model, ids, length, 2, longest=16, windows=5) == pytest.approx(10)  # type: ignore[arg-type]
    ends = [window[0, -2:].tolist() for window in seen]
    assert ends[:5] == ends[5:10] == ends[10:] and len({tuple(end) for end in ends[:5]}) > 1


def test_what_is_scored_was_not_trained_on(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    trained, scored, configs = [], [], {}

    def train(config: TransformerConfig, ids: torch.Tensor, *_: object) -> Decoder:
        trained.append(ids)
        configs[config.position] = config
        return Decoder(config)

    def score(model: Decoder, ids: torch.Tensor, *_: object) -> float:
        scored.append(ids)
        return 2.0

    monkeypatch.setattr(length_extrapolation, "train", train)
    monkeypatch.setattr(length_extrapolation, "score", score)
    (tmp_path / "text.txt").write_text("".join(map(chr, range(200, 500))))  # no character comes twice
    length_extrapolation.main(["--small", "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path)])
    assert len(trained) == 5 and len(scored) == 4 * 4 + 1 + 4 * 4
    for one in trained:
        assert not set(one.tolist()) & set(scored[0].tolist())
    assert configs["sinusoidal"].embedding_scale == 32**0.5 and configs["alibi"].embedding_scale is None


def test_verdicts_say_what_did_not_come_out() -> None:
    rows: dict[str, dict[int, float | None]] = {
        "alibi": {1: 5.0, 8: 10.0}, "sinusoidal": {1: 5.0, 8: 50.0}, "rotary": {1: 5.0, 8: 5.1},
        "rotary + PI": {1: 5.0, 8: 6.0}, "rotary + YaRN": {1: 5.0, 8: 5.5},
    }  # fmt: skip
    alibi, sinusoidal, rotary, best = length_extrapolation.verdicts(rows)
    assert alibi.endswith("NOT as published") and rotary.endswith("NOT as published")
    assert sinusoidal.endswith("8L, as published") and "YaRN" in best


def test_a_haystack_holds_what_is_asked_for_once() -> None:
    ids, value, where = needle.haystack(rows=5, pairs=7, names=20, asked=3, seed=0)
    assert ids.shape == (5, 17) and torch.equal(ids.gather(1, where), value)
    for row in range(5):
        for n in range(3):
            names = ids[row, 0:14:2].tolist()
            assert (
                names.count(int(ids[row, 14 + n])) == 1 and names.index(int(ids[row, 14 + n])) * 2 + 1 == where[row, n]
            )


def test_temperature_changes_nothing_within_the_trained_length(tmp_path: Path) -> None:
    table = needle.main(["--small", "--steps", "5", "--texts", "16", "--scales", "0.5", "--out", str(tmp_path)])
    without, sharpened = table["without"], table["with, scale 0.5"]
    assert without[1] == sharpened[1]
    for factor in (2, 4, 8):
        assert sharpened[factor].entropy < without[factor].entropy <= math.log(16 * factor + 1)
    assert (tmp_path / "needle.png").stat().st_size > 10_000 and json.loads((tmp_path / "needle.json").read_text())


def test_the_head_that_is_watched_is_the_model_s() -> None:
    """One that gives all keys alike has entropy log N."""
    torch.manual_seed(0)
    model = Decoder(needle.config(16, 32)).eval()
    with torch.no_grad():
        model.blocks[-1].attention.qkv.weight[:32].zero_()  # the queries: every logit is 0
    found = needle.look(model, pairs=8, names=16, rows=4, seed=0)
    assert found.entropy == pytest.approx(math.log(17), rel=1e-5) and found.share == pytest.approx(1 / 17, rel=1e-5)


def test_the_head_that_looks_at_the_needle_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """One head whose last query gives all weight to the needle, beside one that gives all keys alike."""
    torch.manual_seed(0)
    model = Decoder(needle.config(16, 32)).eval()
    ids, value, where = needle.haystack(rows=200, pairs=8, names=16, asked=1, seed=0)
    query = torch.zeros(200, 2, 17, 17)
    query[:, 1, -1] = 1e4 * torch.nn.functional.one_hot(where[:, 0], 17)
    vectors = query, torch.eye(17).expand(200, 2, 17, 17), torch.zeros(200, 2, 17, 16)
    layer = model.blocks[-1].attention
    with torch.no_grad():
        said = model(ids)[:, -1, : needle.VALUES].argmax(-1)
    answers = iter([layer.project, lambda *_: vectors])  # of the model's own pass, and of the look at it
    monkeypatch.setattr(layer, "project", lambda *given: next(answers)(*given), raising=False)
    found = needle.look(model, pairs=8, names=16, rows=200, seed=0)
    assert found.share == pytest.approx(1) and found.entropy == pytest.approx(0, abs=1e-6)
    assert 0 < found.right == pytest.approx(float((said == value[:, 0]).float().mean()))


def test_a_value_knows_the_name_before_it_and_training_helps() -> None:
    ids, value, _ = needle.haystack(rows=64, pairs=4, names=16, asked=8, seed=7)
    torch.manual_seed(0)
    fresh, trained = Decoder(needle.config(16, 32)).eval(), needle.train(16, 16, 32, steps=40, rows=32, seed=0)
    losses = [
        torch.nn.functional.cross_entropy(m(ids)[:, -8:, : needle.VALUES].flatten(0, 1), value.flatten())
        for m in (fresh, trained)
    ]
    assert losses[1] < losses[0] - 0.3

    reached: list[torch.Tensor] = []
    watch = fresh.blocks[0].register_forward_hook(lambda *given: reached.append(given[2]))
    for first in (16, 17):
        fresh(torch.tensor([[first, 3, 18, 4]]))
    watch.remove()
    differ = (reached[0] != reached[1]).any(-1)[0]
    assert differ.tolist() == [True, True, False, False]  # the name and its value


def test_attributions_find_the_words_that_decide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("captum")
    attribute, seen = attribution.attribute, []

    def watched(model: Any, sentences: list[attribution.Sentence], steps: int) -> Any:
        seen.append((sentences, attribute(model, sentences, steps)))
        return seen[0][1]

    monkeypatch.setattr(attribution, "attribute", watched)
    figures = attribution.main(["--small", "--steps", "150", "--out", str(tmp_path)])
    assert figures["right"] > 0.9 and figures["found"] > 0.6 and figures["missed"] < 1
    ((sentences, (parts, _)),) = seen
    found = 0
    for each, part in zip(sentences, parts, strict=True):
        assert (part[len(each.words) :] == 0).all()
        assert (part.sum() > 0) == each.good
        others = [n for n in range(len(part)) if n not in each.reasons]
        found += bool(part.abs()[each.reasons].min() > part.abs()[others].max())
    assert 0 < found < len(sentences) and figures["found"] == found / len(sentences)
    assert (tmp_path / "attribution.png").stat().st_size > 10_000


def test_reasons_decide_the_class() -> None:
    draws = random.Random(0)
    for _ in range(50):
        each = attribution.sentence(draws)
        words = [each.words[n] for n in each.reasons]
        assert each.good == ((words[-1] in attribution.GOOD) != ("not" in words))
