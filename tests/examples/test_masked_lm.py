"""The example of masked tokens: that it learns, on its own text and on a file."""

from __future__ import annotations

import json
import random
from pathlib import Path

import pytest

pytest.importorskip("tokenizers")

from examples import masked_lm


def test_palindromes_read_the_same_from_both_sides() -> None:
    texts = masked_lm.palindromes(20, random.Random(0))
    assert all(text == text[::-1] and len(text) == masked_lm.LENGTH for text in texts)
    assert len(set(texts)) == 20


def test_a_small_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = masked_lm.main(["--small", "--out", str(tmp_path)])
    assert runs.keys() == {"both sides", "the left"}
    assert all(run.losses[-1] < run.losses[0] - 0.1 and 0 <= run.right <= 1 for run in runs.values())
    kept = json.loads((tmp_path / "masked_lm.json").read_text())
    assert {name: run["right"] for name, run in kept.items()} == {name: run.right for name, run in runs.items()}
    assert "gaps filled rightly" in capsys.readouterr().out


def test_a_text_of_ones_own(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("the quick brown fox jumps over the lazy dog\n" * 40)
    runs = masked_lm.main(["--small", "--steps", "2", "--text", str(tmp_path / "text.txt"), "--out", str(tmp_path)])
    assert len(runs["both sides"].losses) == 2
