"""The character model learns, and goes on after a kill as if there had been none."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from examples import char_lm

SMALL = ["--dim", "16", "--layers", "1", "--rows", "4", "--length", "16", "--every", "5"]


def test_it_learns_and_speaks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = char_lm.main([*SMALL, "--steps", "60", "--out", str(tmp_path / "run.pt")])
    printed = capsys.readouterr().out
    assert run.losses[-1] < run.losses[0] - 0.4
    assert "step    60  loss" in printed and len(printed.splitlines()[-1]) > 0


def test_a_stop_at_any_step_changes_no_loss(tmp_path: Path) -> None:
    whole = char_lm.main([*SMALL, "--steps", "17", "--out", str(tmp_path / "whole.pt")])
    for stop in (5, 12):
        path = tmp_path / f"{stop}.pt"
        char_lm.main([*SMALL, "--steps", str(stop), "--out", str(path)])
        run = char_lm.main([*SMALL, "--steps", "17", "--out", str(path)])
        assert run.losses == whole.losses
        for mine, theirs in zip(run.model.parameters(), whole.model.parameters(), strict=True):
            assert torch.equal(mine, theirs)


def test_a_kill_leaves_a_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    arguments = [*SMALL, "--every", "1", "--steps", "100000", "--out", str(path)]
    process = subprocess.Popen([sys.executable, "-m", "examples.char_lm", *arguments], stdout=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 60
        while not path.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.2)
    finally:
        process.kill()
        process.wait()
    saved = torch.load(path, weights_only=True)["losses"]
    more = len(saved) + 3
    run = char_lm.main([*SMALL, "--every", "1", "--steps", str(more), "--out", str(path)])
    whole = char_lm.main([*SMALL, "--steps", str(more), "--out", str(tmp_path / "whole.pt")])
    assert run.losses[: len(saved)] == saved and run.losses == pytest.approx(whole.losses, rel=1e-4)


def test_another_run_is_not_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "run.pt"
    char_lm.main([*SMALL, "--steps", "2", "--out", str(path)])
    with pytest.raises(ValueError, match="is a run with dim = 16, not 32"):
        char_lm.main([*SMALL, "--dim", "32", "--steps", "2", "--out", str(path)])


def test_a_text_of_your_own(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("to be or not to be " * 30, encoding="utf-8")
    arguments = [*SMALL, "--steps", "2", "--out", str(tmp_path / "run.pt"), "--text", str(tmp_path / "text.txt")]
    assert len(char_lm.main(arguments).losses) == 2
