"""``track`` from end to end: a folder of one's own files in; identities, reasons, scores and a page out."""

from __future__ import annotations

import csv
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.mtmc import cli
from examples.mtmc.answers import predecessors
from examples.mtmc.matching.calibration import Calibration
from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.matching.weights import DEFAULT, save_matcher
from examples.mtmc.network.links_file import dump_network, load_network
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.recordings.tracklets import Recording, Track, Tracklet
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.scoring.evaluate import link_scores
from examples.mtmc.scoring.per_link import per_link
from examples.mtmc.simulator.simulate import World, simulate

REASONS = ("appearance", "link", "time", "zone", "place", "company", "nobody")


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str | Path) -> int:
    """The command's exit code."""
    monkeypatch.setattr(sys, "argv", ["mtmc", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two minutes of a town as AI City rows with looks, links file and truth."""
    folder = tmp_path_factory.mktemp("town")
    recording = simulate(4, 3, 6).recording
    write_recording(folder / "data", recording, "aicity")
    (folder / "links.yaml").write_text(dump_network(recording.network))
    return folder


def command(folder: Path, out: Path, *more: str) -> list[str | Path]:
    return [
        "track",
        "--data",
        folder / "data",
        "--format",
        "aicity",
        "--links",
        folder / "links.yaml",
        "--out",
        out,
        *more,
    ]


@pytest.fixture(scope="module")
def tracked(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], str]:
    """A folder of results, what was printed as JSON, and what was said beside it."""
    out = tmp_path_factory.mktemp("results") / "out"
    with pytest.MonkeyPatch.context() as patch, pytest.MonkeyPatch.context() as streams:
        printed, said = (out.parent / name for name in ("printed", "said"))
        with printed.open("w") as stdout, said.open("w") as stderr:
            streams.setattr(sys, "stdout", stdout)
            streams.setattr(sys, "stderr", stderr)
            assert run(patch, *command(folder, out, "--cross-fit", "--json")) == 0
    return out, json.loads(printed.read_text()), said.read_text()


def rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_everything_is_there(tracked: tuple[Path, dict[str, Any], str]) -> None:
    out, printed, said = tracked
    names = {str(path.relative_to(out)) for path in out.rglob("*") if path.is_file()}
    cameras = load_network(out / "links.yaml").cameras
    files = {"summary.json", "report.html", "identities.csv", "identities.parquet", "matches.csv", "dropped.log"}
    assert names == files | {"links.yaml"} | {f"tracks/{camera}.txt" for camera in cameras}
    assert json.loads((out / "summary.json").read_text()) == printed
    assert "IDF1" in said and "Protocol: steps keyed by (camera, frame) at 1 Hz" in said


def test_both_protocols_of_ai_city_and_every_link_are_scored(tracked: tuple[Path, dict[str, Any], str]) -> None:
    _, printed, said = tracked
    asked, other = (printed["protocols"][name] for name in ("asked", "other"))
    assert "are kept" in asked["protocol"] and "dropped from the predictions" in other["protocol"]
    assert asked["rows"] == printed["rows"]
    assert other["rows"]["none"]["idf1"][0] == 0, "every identity is seen in one camera: nothing is left"
    assert f"IDF1 {other['rows'][printed['method']]['idf1'][0]:.3f}" in said
    links = printed["links"]
    true = sum(link["true"] for link in links)
    right = sum(link["recall"] * link["true"] for link in links if link["true"])
    assert right / true == pytest.approx(printed["rows"][printed["method"]]["link_recall"][0], abs=1e-5)


def test_reasons_add_up_to_the_score_in_every_row(tracked: tuple[Path, dict[str, Any], str]) -> None:
    out, printed, _ = tracked
    matches, identities = rows(out / "matches.csv"), rows(out / "identities.csv")
    for row in matches:
        assert sum(float(row[name]) for name in REASONS) == pytest.approx(float(row["score"]), abs=1e-3)
        assert 0 <= float(row["probability"]) <= 1
    joined = {(row["to_camera"], row["to_tracklet"]): row for row in matches if row["joined"] == "1"}
    after = [row for row in identities if row["after_camera"]]
    assert len(after) == len(joined) > 10
    for row in after:
        match = joined[row["camera"], row["tracklet"]]
        assert (match["from_camera"], match["from_tracklet"]) == (row["after_camera"], row["after_tracklet"])
        assert match["score"] == row["score"] and float(row["score"]) > 0
    assert len(identities) == printed["tracklets"]
    assert len({row["identity"] for row in identities}) == printed["identities"]
    losers = [row for row in matches if row["joined"] == "0" and row["true"] == "1"]
    assert losers or printed["rows"][printed["method"]]["link_recall"][0] == 1, "what was missed can be asked about"


def test_tables_agree(tracked: tuple[Path, dict[str, Any], str]) -> None:
    parquet = pytest.importorskip("pyarrow.parquet")
    out, _, _ = tracked
    table = rows(out / "identities.csv")
    typed = parquet.read_table(out / "identities.parquet").to_pylist()
    assert [list(row) for row in typed] == [list(row) for row in table]
    for row, other in zip(typed, table, strict=True):
        assert [("" if value is None else str(value)) for value in row.values()] == list(other.values())
    by_camera: dict[str, set[str]] = {}
    for row in table:
        by_camera.setdefault(row["camera"], set()).add(row["identity"])
    for camera, ids in by_camera.items():
        lines = (out / "tracks" / f"{camera}.txt").read_text().split()
        assert {line.split(",")[1] for line in lines} == ids
        at = [tuple(line.split(",")[:2]) for line in lines]
        assert len(set(at)) == len(at), "an identity twice in a frame"


def test_scores_by_link_add_up(world: World) -> None:
    recording = world.recording
    identity = np.random.default_rng(0).integers(0, 40, len(recording.tracklets))
    links = per_link(recording, identity)
    whole = link_scores(recording, identity)
    right, true, predicted = (sum(getattr(x, name) for x in links) for name in ("right", "true", "predicted"))
    assert right / true == pytest.approx(whole["link_recall"])
    assert right / predicted == pytest.approx(whole["link_precision"])
    assert all(x.right <= min(x.true, x.predicted) and (x.precision or 0) <= 1 for x in links)
    some = per_link(recording, identity, scored=list(range(20)))
    assert sum(x.predicted for x in some) == int((predecessors(identity)[:20] >= 0).sum())


def test_without_looks_the_prior_decides_and_that_is_said(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    blind = tmp_path / "town"
    (blind / "data").mkdir(parents=True)
    for name in ("data/tracks.txt", "data/ground_truth.txt", "links.yaml"):
        (blind / name).write_bytes((folder / name).read_bytes())
    out = tmp_path / "out"
    assert run(monkeypatch, *command(blind, out, "--learn-until", "90", "--drop-single")) == 0
    said = capsys.readouterr()
    assert "Note: no embeddings (there are none)" in said.out and said.err == ""
    summary = json.loads((out / "summary.json").read_text())
    assert summary["method"] == "prior" and "gatv2_bias" not in summary["rows"]
    assert "dropped from the predictions" in summary["protocol"]
    assert any("what starts later is scored" in note for note in summary["notes"])
    for row in rows(out / "matches.csv"):
        assert float(row["appearance"]) == float(row["company"]) == 0
        assert sum(float(row[name]) for name in REASONS) == pytest.approx(float(row["score"]), abs=1e-3)


def test_ones_own_weights_are_used(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights = tmp_path / "weights.safetensors"
    save_matcher(weights, dict(Matcher().state_dict()), 1e6, Calibration())  # a threshold that nothing passes
    assert run(monkeypatch, *command(folder, tmp_path / "out", "--weights", str(weights))) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["identities"] == summary["tracklets"]


@pytest.mark.parametrize("spoil", ["missing", "garbage", "other"])
def test_bad_weights_are_one_line(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], spoil: str
) -> None:
    from safetensors.torch import save_file

    weights = tmp_path / "weights.safetensors"
    if spoil == "garbage":
        weights.write_bytes(DEFAULT.read_bytes()[:-100])
    if spoil == "other":
        save_file({"x": next(Matcher().parameters()).detach().clone()}, weights, {"threshold": "0"})
    assert run(monkeypatch, *command(folder, tmp_path / "out", "--weights", str(weights))) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"error: {weights}: found ") and said.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_faulty_rows_stop_it_or_are_counted(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    dirty = tmp_path / "town"
    (dirty / "data").mkdir(parents=True)
    (dirty / "links.yaml").write_bytes((folder / "links.yaml").read_bytes())
    lines = (folder / "data" / "tracks.txt").read_text().splitlines()
    (dirty / "data" / "tracks.txt").write_text("\n".join([lines[0], "garbage", *lines[1:], lines[5]]) + "\n")
    assert run(monkeypatch, *command(dirty, tmp_path / "out")) == 2
    assert "line 2: found " in capsys.readouterr().err and not (tmp_path / "out").exists()
    assert run(monkeypatch, *command(dirty, tmp_path / "out", "--tolerant")) == 0
    said = capsys.readouterr().out
    assert "Left out: 1 rows or tracklets" in said and "Put right: 1 rows, clocks or ids" in said
    log = (tmp_path / "out" / "dropped.log").read_text()
    assert "malformed row" in log and "tracks.txt, line 2" in log


def test_campus_text_comes_online_in_order_of_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its files list one track after another, and the first fills more than one chunk."""
    (tmp_path / "data").mkdir()
    lines = [f'{id} {id} 0 {id + 9} 20 {frame} 0 0 0 "PERSON"' for id in (1, 50) for frame in range(9000)]
    (tmp_path / "data" / "view-a.txt").write_text("\n".join(lines) + "\n")
    (tmp_path / "links.yaml").write_text("cameras: {a: {fps: 30}}\n")
    given = ("--data", tmp_path / "data", "--format", "campus", "--links", tmp_path / "links.yaml")
    assert run(monkeypatch, "track", *given, "--out", tmp_path / "out", "--online") == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["tracklets"] == 2 and "late row" not in json.dumps(summary["log"])


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
    assert not (tmp_path / "out").exists() and not list(tmp_path.glob(".*"))
