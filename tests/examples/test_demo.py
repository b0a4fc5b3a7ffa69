"""The commands from end to end: every file is there, nothing half-written, bad input is one line and code 2."""

from __future__ import annotations

import csv
import io
import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from rich.console import Console

from examples.mtmc import cli, demo
from examples.mtmc.atomic import results
from examples.mtmc.experiment import Outcome, Size
from examples.mtmc.matching.methods import ROWS
from examples.mtmc.network.links_file import load_network
from examples.mtmc.parallel import run_seeds
from examples.mtmc.scoring.evaluate import Protocol
from examples.mtmc.scoring.summary import screen_table


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


def test_the_table_of_a_terminal_is_whole_at_80_columns() -> None:
    scores = {key: [0.5, 0.01] for key in ("idf1", "hota", "assa", "link_precision", "link_recall")}
    rows = dict.fromkeys((*ROWS, "shifted 20 %", "link missing"), scores)
    screen = Console(width=80, file=io.StringIO())
    screen.print(screen_table(rows, 5, "a title that is longer than the table is wide, so that it has to be broken"))
    text = screen.file.getvalue()  # type: ignore[attr-defined]
    assert "…" not in text and text.count("0.500±0.010") == 5 * len(rows)


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
