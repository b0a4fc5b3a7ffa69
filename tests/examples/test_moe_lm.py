"""The mixture-of-experts example runs, and shows what it says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from examples import moe_lm

pytest.importorskip("matplotlib")


def test_the_load_is_watched_and_drawn(tmp_path: Path) -> None:
    runs = moe_lm.main(["--small", "--steps", "30", "--out", str(tmp_path)])
    assert (tmp_path / "load.png").stat().st_size > 10_000
    for run in runs.values():
        assert run.losses[-1] < run.losses[0]
        torch.testing.assert_close(run.loads.sum(-1), torch.ones(30, 2))
        torch.testing.assert_close(run.by_kind.sum(-1), torch.ones(3, 2))
    kept = json.loads((tmp_path / "moe_lm.json").read_text())
    assert kept.keys() == runs.keys() and all(1 <= each["busiest"] <= 4 for each in kept.values())
    late = {name: float(run.loads[-5:].mean(0).max()) for name, run in runs.items()}
    assert late["choosing bias"] < late["nothing"]


def test_a_text_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 30, encoding="utf-8")
    arguments = ["--small", "--steps", "2", "--out", str(tmp_path), "--text", str(tmp_path / "text.txt")]
    assert len(moe_lm.main(arguments)) == 3
