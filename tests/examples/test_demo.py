"""The commands from end to end: every file is there, nothing half-written, bad input is one line and code 2."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from rich.console import Console

from examples.mtmc import cli, demo
from examples.mtmc.atomic import results
from examples.mtmc.experiment import Outcome, Size
from examples.mtmc.matching.methods import ROWS
from examples.mtmc.network.links_file import dump_network, load_network
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.parallel import run_seeds
from examples.mtmc.recordings.tracklets import Recording, Track, Tracklet
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.scoring.evaluate import Protocol
from examples.mtmc.simulator.simulate import World


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["mtmc", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def leftovers(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.name.startswith(".")]


OUTCOMES: list[Outcome] = []


@pytest.fixture(scope="module")
def demo_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("demo") / "out"

    def remembered(*arguments: Any) -> list[Outcome]:
        OUTCOMES[:] = run_seeds(*arguments)
        return OUTCOMES

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(demo, "run_seeds", remembered)
        assert run(patch, "demo", "--out", out, "--seeds", "1", "--small", "--workers", "1") == 0
    return out


def test_demo_writes_everything(demo_run: Path) -> None:
    names = {str(path.relative_to(demo_run)) for path in demo_run.rglob("*") if path.is_file()}
    names = {name for name in names if not name.startswith(".work/")}
    tracks = {f"tracks/c{n}.txt" for n in range(1, 9)}
    files = {"summary.json", "report.html", "dropped.log", "links.yaml"}
    files |= {"identities.csv", "identities.parquet", "matches.csv"}
    assert names == tracks | files | {"match_matrix.png", "bias.png", "transits.png"}
    assert not leftovers(demo_run.parent)
    for picture in demo_run.glob("*.png"):
        with Image.open(picture) as image:
            assert image.size[0] > 400 and len(set(image.convert("L").tobytes())) > 10
    assert list(load_network(demo_run / "links.yaml").cameras) == [f"c{n}" for n in range(1, 9)]


def test_summary_has_every_row_between_0_and_1(demo_run: Path) -> None:
    summary = json.loads((demo_run / "summary.json").read_text())
    assert tuple(summary["rows"]) == ROWS
    assert summary["seeds"] == [0] and "1 Hz" in summary["protocol"]
    for scores in summary["rows"].values():
        for name in ("idf1", "hota", "assa", "link_precision", "link_recall"):
            mean, spread = scores[name]
            assert 0 <= mean <= 1 and spread >= 0
    assert summary["rows"]["oracle"]["idf1"][0] > summary["rows"]["none"]["idf1"][0]


def test_tracks_and_table_agree(demo_run: Path) -> None:
    with (demo_run / "identities.csv").open(newline="") as file:
        table = list(csv.DictReader(file))
    why = {"appearance", "link", "time", "zone", "place", "company", "nobody", "score", "probability"}
    assert table and {"identity", "camera", "truth"} | why <= set(table[0])
    for n in range(1, 9):
        rows = (demo_run / "tracks" / f"c{n}.txt").read_text().split()
        ids = {row.split(",")[1] for row in rows}
        assert ids == {row["identity"] for row in table if row["camera"] == f"c{n}"}
        at = [tuple(row.split(",")[:2]) for row in rows]
        assert len(set(at)) == len(at), "an identity twice in a frame"


HOSTILE = '<img src=x onerror="alert(1)">$\\frac{&amp'


def test_a_hostile_camera_name_does_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    name = HOSTILE.replace("\\", "")
    network = Network(
        {name: Camera(name, 10.0), "b": Camera("b", 10.0)}, (Link(name, "b", (1.0, 20.0)), Link("b", name, (1.0, 20.0)))
    )
    boxes = np.tile([5.0, 5.0, 20.0, 40.0], (20, 1))
    tracklets = [
        Tracklet(camera, n, np.arange(start, start + 20), boxes, None, start / 10, (start + 19) / 10, np.eye(3)[n % 3])
        for n, (camera, start) in enumerate([(name, 1), ("b", 60), (name, 150), ("b", 230)], 1)
    ]
    truth = [Track(t.camera, 1 + t.id // 3, t.frames, t.boxes) for t in tracklets]
    write_recording(tmp_path / "data", Recording(network, tracklets, truth), "mot")
    (tmp_path / "links.yaml").write_text(dump_network(network))
    arguments = ("--data", tmp_path / "data", "--format", "mot", "--links", tmp_path / "links.yaml")
    assert run(monkeypatch, "track", *arguments, "--out", tmp_path / "out") == 0
    text = (tmp_path / "out" / "report.html").read_text()
    assert "<img src=x" not in text and "&lt;img src=x onerror=" in text
    assert (tmp_path / "out" / "tracks" / f"{name}.txt").is_file()


def test_track_on_ones_own_files(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recording = world.recording
    write_recording(tmp_path / "data", recording, "aicity")
    (tmp_path / "links.yaml").write_text(dump_network(recording.network))
    arguments = ("--data", tmp_path / "data", "--format", "aicity", "--links", tmp_path / "links.yaml")
    assert run(monkeypatch, "track", *arguments, "--out", tmp_path / "out", "--cross-fit") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    rows = summary["rows"]
    assert rows["gatv2_bias"]["idf1"][0] > rows["fifo"]["idf1"][0] + 0.1
    assert rows["gatv2_bias"]["idf1"][0] > rows["none"]["idf1"][0] + 0.1
    # The same without embeddings: said, and done by travel times and links alone.
    (tmp_path / "data" / "tracks.npy").unlink()
    assert run(monkeypatch, "track", *arguments, "--out", tmp_path / "blind", "--learn-until", "180") == 0
    summary = json.loads((tmp_path / "blind" / "summary.json").read_text())
    assert any("no embeddings" in note for note in summary["notes"])
    assert "prior" in summary["rows"] and "gatv2_bias" not in summary["rows"]


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda data: (data / "b.txt").unlink(), "no such file"),
        (lambda data: (data / "b.txt").write_text("1,1,0,0,nan,9\n"), "line 1: found a box that is not finite"),
    ],
)
def test_bad_input_is_one_line_and_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spoil: object, message: str
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    for name in "ab":
        (data / f"{name}.txt").write_text("1,1,0,0,9,9\n")
    (tmp_path / "links.yaml").write_text("cameras:\n  a: {fps: 10}\n  b: {fps: 10}\n")
    spoil(data)  # type: ignore[operator]
    arguments = ("--data", data, "--format", "mot", "--links", tmp_path / "links.yaml", "--out", tmp_path / "out")
    assert run(monkeypatch, "track", *arguments) == 2
    said = capsys.readouterr().err
    assert message in said and said.count("\n") == 1
    assert not (tmp_path / "out").exists() and not leftovers(tmp_path)


def test_an_interrupted_run_leaves_nothing_half_written(
    demo_run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    out = tmp_path / "out"
    out.mkdir()
    (out / "summary.json").write_text("old")
    monkeypatch.setattr(demo, "run_seeds", lambda *_: OUTCOMES)
    monkeypatch.setattr(demo, "write_page", stop)  # by then tracks, table and pictures are written
    assert run(monkeypatch, "demo", "--out", out, "--seeds", "1", "--small", "--workers", "1") == 130
    assert "interrupted" in capsys.readouterr().err
    assert [path.name for path in out.iterdir()] == ["summary.json"] and (out / "summary.json").read_text() == "old"
    assert not leftovers(tmp_path)


def test_results_replace_their_own_files_alone(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / "mine.txt").write_text("kept")
    (out / "summary.json").write_text("old")
    with results(out) as draft:
        (draft / "summary.json").write_text("new")
        (draft / "tracks").mkdir()
        (draft / "tracks" / "a.txt").write_text("rows")
        assert (out / "summary.json").read_text() == "old"
    assert (out / "summary.json").read_text() == "new" and (out / "mine.txt").read_text() == "kept"
    assert (out / "tracks" / "a.txt").read_text() == "rows" and not leftovers(tmp_path)


def test_the_result_does_not_depend_on_the_workers() -> None:
    tiny = Size(training_minutes=4.0, test_minutes=2.0, per_minute=6.0, steps=2)
    console = Console(quiet=True)
    apart, together = (run_seeds([0, 1], tiny, Protocol(), console, workers) for workers in (2, 1))
    for a, b in zip(apart, together, strict=True):
        assert a.scores == b.scores and a.thresholds == b.thresholds
        assert all(torch.equal(a.matcher[name], b.matcher[name]) for name in b.matcher)
