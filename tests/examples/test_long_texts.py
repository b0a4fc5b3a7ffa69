"""Texts longer than trained, and the words that made a model say so: what the examples count is what they say."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path

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
    """A head that gives all weight to the needle has share 1 and entropy 0; one that gives all alike, log N."""
    torch.manual_seed(0)
    model = Decoder(needle.config(16, 32)).eval()
    with torch.no_grad():
        model.blocks[-1].attention.qkv.weight[:32].zero_()  # the queries: every logit is 0
    found = needle.look(model, pairs=8, names=16, rows=4, seed=0)
    assert found.entropy == pytest.approx(math.log(17), rel=1e-5) and found.share == pytest.approx(1 / 17, rel=1e-5)


def test_attributions_find_the_words_that_decide(tmp_path: Path) -> None:
    pytest.importorskip("captum")
    figures = attribution.main(["--small", "--steps", "150", "--out", str(tmp_path)])
    assert figures["right"] > 0.9 and figures["found"] > 0.6 and figures["missed"] < 1
    assert (tmp_path / "attribution.png").stat().st_size > 10_000


def test_reasons_decide_the_class() -> None:
    draws = random.Random(0)
    for _ in range(50):
        each = attribution.sentence(draws)
        words = [each.words[n] for n in each.reasons]
        assert each.good == ((words[-1] in attribution.GOOD) != ("not" in words))
