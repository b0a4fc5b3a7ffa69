"""Killed at any moment and run again, a command resumes or starts clean; no file is ever half-written."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from examples.mtmc.network.links_file import dump_network
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.simulator.simulate import simulate
from tests.examples.killing import At, alive, begin, finish

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="signals and forks of POSIX")
Files = dict[str, bytes]


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of AI City rows without looks, with its links file."""
    folder = tmp_path_factory.mktemp("town")
    recording = simulate(3, 2, 5).recording
    write_recording(folder / "data", recording, "aicity")
    (folder / "data" / "tracks.npy").unlink(missing_ok=True)
    (folder / "links.yaml").write_text(dump_network(recording.network))
    return folder


def command(town: Path, out: Path, boxes: int = 1) -> list[str | Path]:
    """Two settings, so that old and new results differ."""
    data = ("--data", town / "data", "--format", "aicity", "--links", town / "links.yaml")
    return ["track", *data, "--out", out, "--min-boxes", str(boxes)]


def files(out: Path) -> Files:
    """Everything in a folder of results but what is kept to resume from."""
    found = {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}
    return {name: content for name, content in found.items() if not name.startswith(".work/")}


@pytest.fixture(scope="module")
def whole(town: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, Files]:
    """Old and new results of runs that nobody disturbed."""
    parent = tmp_path_factory.mktemp("whole")
    assert finish(command(town, parent / "old", 12)) == 0 and finish(command(town, parent / "new")) == 0
    old, new = files(parent / "old"), files(parent / "new")
    assert old.keys() == new.keys() and old["identities.csv"] != new["identities.csv"]
    return old, new


def is_whole_or_nothing(out: Path, old: Files | None, new: Files) -> None:
    """No file is half-written, and where there is a summary all other files belong to it."""
    if not out.exists():
        assert old is None
        return
    found = files(out)
    for name, content in found.items():
        assert content in ((new[name],) if old is None else (old[name], new[name])), f"{name} is half-written"
    if "summary.json" in found:
        assert found == (old if found["summary.json"] == (old or {}).get("summary.json") else new)


STAGES = [
    At("examples.mtmc.track:read"),
    At("examples.mtmc.track:judge", after=True),
    At("examples.mtmc.track:write_answers"),
    At("examples.mtmc.answers:csv_text", call=2),
    At("examples.mtmc.track:write_page", after=True),
    At("examples.mtmc.atomic:Path.rename"),
    At("examples.mtmc.atomic:Path.rename", after=True),
]


def test_track_killed_at_every_stage_starts_clean(town: Path, whole: tuple[Files, Files], tmp_path: Path) -> None:
    for at in STAGES:
        out = tmp_path / "results"
        assert finish(command(town, out), at) == -signal.SIGKILL, at
        is_whole_or_nothing(out, None, whole[1])
        assert out.exists() == (at == STAGES[-1])
        drafts = [path for path in tmp_path.iterdir() if path.name.endswith(".part")]
        assert len(drafts) == (at in STAGES[2:-1]), "of this dead run alone: those before it are swept"
    assert finish(command(town, out)) == 0
    assert files(out) == whole[1]
    assert os.listdir(tmp_path) == ["results"], "drafts of dead runs are swept"


def test_track_killed_while_it_replaces_old_results(town: Path, whole: tuple[Files, Files], tmp_path: Path) -> None:
    old, new = whole
    out = tmp_path / "results"
    assert finish(command(town, out, 12)) == 0
    (out / "mine.txt").write_text("kept")
    for call in (5, len(new) + 1):  # among them: before the last, which is the summary; one is the page's own
        assert finish(command(town, out), At("os:replace", call=call)) == -signal.SIGKILL
        (out / "mine.txt").unlink()
        is_whole_or_nothing(out, old, new)
        assert not (out / "summary.json").exists(), "a mixture has no summary"
        (out / "mine.txt").write_text("kept")
    assert finish(command(town, out)) == 0
    assert files(out) == new | {"mine.txt": b"kept"} and os.listdir(tmp_path) == ["results"]


def test_track_killed_at_random_moments(town: Path, whole: tuple[Files, Files], tmp_path: Path) -> None:
    out = tmp_path / "results"
    start = time.monotonic()
    assert finish(command(town, out)) == 0
    took = time.monotonic() - start
    for moment in np.random.default_rng(0).uniform(0, took, 4):
        process = begin(command(town, out, 12))
        process.join(float(moment))
        process.kill()
        process.join()
        is_whole_or_nothing(out, *reversed(whole))
        assert finish(command(town, out)) == 0
        assert files(out) == whole[1] and os.listdir(tmp_path) == ["results"]


def demo(out: Path, *more: str) -> list[str | Path]:
    return ["demo", "--small", "--seeds", "2", "--out", out, *(more or ("--workers", "1"))]


def test_a_demo_that_was_killed_goes_on_where_it_was(tmp_path: Path) -> None:
    assert finish(demo(tmp_path / "whole")) == 0
    whole = json.loads((tmp_path / "whole" / "summary.json").read_text())
    out, said = tmp_path / "out", tmp_path / "said"
    assert finish(demo(out), At("examples.mtmc.parallel:run_seed", call=2)) == -signal.SIGKILL
    assert os.listdir(out) == [".work"]
    assert finish(demo(out), At("examples.mtmc.demo:_write"), said=said) == -signal.SIGKILL
    assert "not done again: seed(s) 0\n" in said.read_text() and os.listdir(out) == [".work"]
    assert finish(demo(out), said=said) == 0
    assert "not done again: seed(s) 0, 1\n" in said.read_text()
    assert json.loads((out / "summary.json").read_text()) == whole
    assert sorted(os.listdir(tmp_path)) == ["out", "said", "whole"]


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="processes are looked up in /proc")
def test_workers_do_not_outlive_a_demo_that_was_killed(tmp_path: Path) -> None:
    # Killed when the first news of a worker comes: both are at work, or about to be.
    process = begin(demo(tmp_path / "out", "--workers", "2"), At("rich.progress:Progress.update"))
    process.join(100)
    assert process.exitcode == -signal.SIGKILL and process.pid is not None
    end = time.monotonic() + 60  # one may still be importing
    while alive(process.pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(process.pid)


def test_interrupted_is_130_and_leaves_nothing(town: Path, tmp_path: Path) -> None:
    at = At("examples.mtmc.track:write_page", after=True, sig=signal.SIGINT)
    said = tmp_path / "said"
    assert finish(command(town, tmp_path / "out"), at, said) == 130
    assert "interrupted" in said.read_text() and "Traceback" not in said.read_text()
    assert os.listdir(tmp_path) == ["said"]


@pytest.mark.parametrize("case", ["full", "file", "nowhere"])
def test_what_cannot_be_written_is_one_line_and_2(town: Path, tmp_path: Path, case: str) -> None:
    said, out = tmp_path / "said", tmp_path / "out"
    if case == "file":
        out.write_text("mine")
    if case == "nowhere":
        out = Path("/dev/null/out")
    limit = 50_000 if case == "full" else 0  # a file that grows no more is how a full disk looks from here
    assert finish(command(town, out), said=said, limit=limit) == 2
    text = said.read_text()
    errors = [line for line in text.splitlines() if line.startswith("error: ")]
    assert len(errors) == 1 and "Traceback" not in text
    assert sorted(os.listdir(tmp_path)) == (["out", "said"] if case == "file" else ["said"])
