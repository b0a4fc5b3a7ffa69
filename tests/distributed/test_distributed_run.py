"""The folder of a divided run: asked for first, held by one run at a time, gone on with where it is whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from examples import graph_distributed, lm_distributed

LM = ["--dim", "16", "--layers", "1", "--length", "32", "--rows", "2", "--every", "2", "--timeout", "20"]
RUNS: dict[str, Callable[..., list[float]]] = {
    "lm": lambda *more: lm_distributed.main([*LM, *more]),
    "graph": lambda *more: graph_distributed.main(["--small", "--every", "2", *more]),
}


@pytest.mark.parametrize("name", RUNS)
def test_a_folder_that_is_a_file_is_refused_before_the_work(
    name: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("a file")
    with pytest.raises(SystemExit):
        RUNS[name]("--steps", "2", "--out", str(tmp_path / "file"))
    assert "is a file; it must be a folder" in capfd.readouterr().err


@pytest.mark.parametrize("name", RUNS)
def test_a_second_run_in_the_same_folder_is_refused(name: str, tmp_path: Path) -> None:
    fcntl = pytest.importorskip("fcntl")
    with (tmp_path / "lock").open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(ValueError, match="another run is writing into"):
            RUNS[name]("--steps", "2", "--out", str(tmp_path))
    assert len(RUNS[name]("--steps", "2", "--out", str(tmp_path))) == 2  # once the other has ended


@pytest.mark.parametrize("name", RUNS)
def test_a_checkpoint_without_its_last_file_is_none(name: str, tmp_path: Path) -> None:
    want = RUNS[name]("--steps", "4", "--out", str(tmp_path))
    (tmp_path / "step-000004" / "run.json").unlink()
    assert RUNS[name]("--steps", "4", "--out", str(tmp_path)) == pytest.approx(want, rel=1e-4)
    assert len(json.loads((tmp_path / "step-000004" / "run.json").read_text())["losses"]) == 4


def test_another_text_is_refused(tmp_path: Path) -> None:
    text = tmp_path / "text"
    for letters in ("abc", "bca"):  # as many characters
        text.write_text(letters * 100)
        if letters == "abc":
            RUNS["lm"]("--steps", "2", "--out", str(tmp_path / "run"), "--text", str(text))
    with pytest.raises(ValueError, match="text_digest"):
        RUNS["lm"]("--steps", "4", "--out", str(tmp_path / "run"), "--text", str(text))


@pytest.mark.parametrize("option", [("--every", "0"), ("--rows", "0"), ("--steps", "-1"), ("--dim", "30")])
def test_numbers_that_are_none_are_named(option: tuple[str, str], capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        RUNS["lm"](*option)
    assert f"{option[0]}" in capfd.readouterr().err.splitlines()[-1]


def test_a_text_that_is_too_short_is_named(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("short")
    with pytest.raises(ValueError, match="the text has 5 characters"):
        RUNS["lm"]("--out", str(tmp_path / "run"), "--text", str(tmp_path / "text"))
