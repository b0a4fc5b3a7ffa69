"""What is asked in vain of a sound folder: one line and 2 and nothing written, or done as well as it can be."""

from __future__ import annotations

import errno
import json
import os
import sqlite3
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

from examples.mtmc import cli

LINKS = "cameras:\n  a: {fps: 10}\n  b: {fps: 10}\nlinks:\n  - {from: a, to: b, window: [1, 30]}\n"


def rows(camera: str, id: int, start: int) -> str:
    return "".join(f"{camera} {id} {start + k} {10 + k} 20 30 60 -1 -1\n" for k in range(5))


GOOD = rows("a", 1, 0) + rows("b", 1, 60) + rows("a", 2, 20) + rows("b", 2, 90)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "tracks.txt").write_text(GOOD)
    (tmp_path / "data" / "ground_truth.txt").write_text(GOOD)
    (tmp_path / "links.yaml").write_text(LINKS)
    return tmp_path


def ask(monkeypatch: pytest.MonkeyPatch, folder: Path, command: str, *more: str) -> int:
    out = folder / ("out.yaml" if command == "learn-links" else "out")
    given = ["--data", folder / "data", "--format", "aicity", "--links", folder / "links.yaml", "--out", out]
    monkeypatch.setattr(sys, "argv", ["mtmc", command, *map(str, given), *more])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            cli.main()
        except SystemExit as stop:
            return int(stop.code or 0)
    return 0


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        (["track", "--learn-until", "-5"], "a time after the first true tracklet"),
        (["track", "--learn-until", "nan"], "a time after the first true tracklet"),
        (["track", "--learn-until", "1e9"], "a time before the last tracklet"),
        (["track", "--min-boxes", "100"], "no tracklet of at least 100 boxes; expected at least one"),
        (["track", "--online", "--latency", "-1"], "seconds from 0 on"),
        (["learn-links", "--until", "nan"], "a time after the first tracklet"),
        (["learn-links", "--least-score", "3"], "matches that have scores"),
    ],
    ids=lambda x: " ".join(x) if isinstance(x, list) else "",
)
def test_one_line_and_nothing_written(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], command: list[str], expected: str
) -> None:
    before = sorted(folder.iterdir())
    assert ask(monkeypatch, folder, *command) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and expected in said
    assert sorted(folder.iterdir()) == before


@pytest.mark.parametrize(
    ("command", "name", "content", "expected"),
    [
        ([], "tracks.txt", GOOD.replace(" ", ","), "rows left out, the first: "),
        (["--online"], "tracks.txt", "", "found no usable row"),
        (["--online"], "tracks.npy", np.ones((3, 8)), "4 rows (one a tracklet) or 20 (one a detection)"),
    ],
    ids=["all rows faulty", "an empty stream", "a stream with looks too few"],
)
def test_data_that_are_none_leave_nothing(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    name: str,
    content: str | np.ndarray,  # type: ignore[type-arg]
    expected: str,
) -> None:
    path = folder / "data" / name
    path.write_text(content) if isinstance(content, str) else np.save(path, content)
    before = sorted(folder.iterdir())
    assert ask(monkeypatch, folder, "track", "--tolerant", *command) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and expected in said
    assert sorted(folder.iterdir()) == before


def test_a_folder_where_a_file_should_be(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out.yaml").mkdir()
    before = sorted(folder.iterdir())
    assert ask(monkeypatch, folder, "learn-links") == 2
    said = capsys.readouterr().err
    assert said == f"error: --out: {folder / 'out.yaml'} is a folder; it must be a file\n"
    assert sorted(folder.iterdir()) == before


def _full(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _full_table(*_: object) -> None:
    raise sqlite3.OperationalError("database or disk is full")


@pytest.mark.parametrize(
    ("command", "place", "fails"),
    [
        (["track"], "examples.mtmc.track.write_page", _full),
        (["learn-links"], "examples.mtmc.network.links_file.dump_network", _full),
        (["track", "--online"], "examples.mtmc.online.run.Tables", _full_table),
        (["track", "--online"], "examples.mtmc.online.run.os.write", _full),
        (["track", "--online"], "examples.mtmc.online.run.Tables.write", _full_table),
    ],
)
def test_a_full_disk_is_one_line_that_says_where(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    command: list[str],
    place: str,
    fails: object,
) -> None:
    before = sorted(folder.iterdir())
    monkeypatch.setattr(place, fails)
    assert ask(monkeypatch, folder, *command) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {folder / 'out'}") and "full" in said + " full" * ("No space" in said)
    assert said.count("\n") == 1
    left = [path for path in sorted(folder.iterdir()) if path not in before]
    if place.endswith("Tables.write"):  # what was decided stays, whole lines of it
        assert [path.name for path in (folder / "out").iterdir()] == ["decisions.jsonl"]
    else:
        assert left == []


def test_a_latency_without_end_decides_at_the_end(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, folder, "track", "--online", "--latency", "inf") == 0
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert summary["latency"] is None and summary["identities"] == 2


def test_a_rate_of_next_to_none_is_scored(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ask(monkeypatch, folder, "track", "--rate", "1e-300") == 0
    assert json.loads((folder / "out" / "summary.json").read_text())["identities"] == 2


def test_where_nobody_is_seen_twice_there_is_no_threshold_to_learn(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first five seconds have one camera alone."""
    assert ask(monkeypatch, folder, "track", "--learn-until", "5") == 0
    summary = json.loads((folder / "out" / "summary.json").read_text())
    assert any("nobody is seen twice" in note for note in summary["notes"])
