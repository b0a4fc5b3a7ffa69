"""What somebody met who followed the guide for the first time and then tried to break it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from examples.mtmc.atomic import WORK, results
from examples.mtmc.errors import InputError
from examples.mtmc.network.links_file import load_network
from examples.mtmc.recordings.matches import labelled_by
from examples.mtmc.scoring.summary import SHOWN, page_table
from tests.examples.test_asked_amiss import GOOD, ask, folder, rows
from tests.examples.test_learn_links import passing

assert folder  # a fixture


@pytest.mark.parametrize("work", [False, True], ids=["empty", "unfinished work"])
def test_the_folder_where_one_stands_stays_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, work: bool
) -> None:
    """A folder that is renamed over is gone for the shell that stands in it, and a mount cannot be renamed over."""
    here = tmp_path / "here"
    here.mkdir(mode=0o700)
    if work:
        (here / WORK).mkdir()
    monkeypatch.chdir(here)
    before = here.stat()
    with results(Path(".")) as draft:
        (draft / "tracks").mkdir()
        (draft / "tracks" / "a.txt").write_text("1")
        (draft / "summary.json").write_text("{}")
    assert os.path.samestat(before, here.stat()) and before.st_mode == here.stat().st_mode
    assert sorted(os.listdir(".")) == [WORK] * work + ["summary.json", "tracks"]
    assert os.listdir(tmp_path) == ["here"]


def test_a_folder_below_a_file_says_so(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "out").write_text("mine")
    assert ask(monkeypatch, folder, "track", "--out", str(folder / "out" / "x")) == 2
    assert capsys.readouterr().err.endswith("out/x cannot be made: a folder above it is a file\n")
    assert (folder / "out").read_text() == "mine"


def test_a_place_that_takes_nothing_is_named_as_it_was_asked_for(tmp_path: Path) -> None:
    long = tmp_path / ("x" * 250)  # short enough for a name, too long for that of its draft
    with pytest.raises(OSError, match="too long") as error, results(long):
        pass
    assert error.value.filename == str(long)


@pytest.mark.parametrize("name", ["a b'\"c ü 東 $(x)", "<b>;&", "two\nlines"])
def test_odd_names_of_results(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    for more in ([], ["--online"]):
        out = folder / (name + "".join(more))
        assert ask(monkeypatch, folder, "track", "--out", str(out), *more) == 0
        assert json.loads((out / "summary.json").read_text())["identities"] == 2


def test_what_was_put_in_its_place_is_not_left_out(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, *rest = GOOD.splitlines(keepends=True)
    (folder / "data" / "tracks.txt").write_text(second + first + "".join(rest))
    assert ask(monkeypatch, folder, "track", "--tolerant") == 0
    assert "out of order" in (folder / "out" / "dropped.log").read_text()
    assert json.loads((folder / "out" / "summary.json").read_text())["left_out"] == 0
    assert json.loads((folder / "out" / "summary.json").read_text())["put_right"] == 1


def test_a_stream_of_nothing_but_faults_shows_the_first(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "data" / "tracks.txt").write_text(rows("zz", 1, 0))
    assert ask(monkeypatch, folder, "track", "--online") == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and "5 of 5 rows left out, the first: " in said and "camera 'zz'" in said


def test_what_data_say_is_no_command_to_the_terminal() -> None:
    said = str(InputError("a\x1b]0;x\x07.txt", 1, "camera \x1b[31m\u202e\x9b2J", "ü 東"))
    assert said.isprintable() and said.startswith("a\\x1b]0;x\\x07.txt, line 1") and said.endswith("ü 東")


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cameras:\n  a: {fps: 10}\nlinks:\n  - {from: a, to: a, window: [30, 1]}\n", "window: [30, 1];"),
        ("cameras:\n  ../x: {fps: 10}\n", "cameras: '../x';"),
        ('cameras:\n  "x\\e[31m": {fps: 10}\n', "cameras: 'x\\x1b[31m';"),
    ],
)
def test_a_links_file_is_shown_what_is_wrong_in_it(tmp_path: Path, text: str, found: str) -> None:
    (tmp_path / "links.yaml").write_text(text)
    with pytest.raises(InputError) as error:
        load_network(tmp_path / "links.yaml")
    assert found in str(error.value)


@pytest.mark.parametrize(("score", "found"), [("0.8", "no match with a score above 0.8"), ("", "no match that has a")])
def test_matches_that_are_all_too_weak_say_how_good_they_are(tmp_path: Path, score: str, found: str) -> None:
    path = tmp_path / "identities.csv"
    path.write_text(f"camera_from,tracklet_from,camera_to,tracklet_to,score\na,1,b,1,{score}\n")
    with pytest.raises(InputError, match=found + ".*of at least 3 "):
        labelled_by(path, passing([("left", "right")] * 3, truth=False), least_score=3.0)


def test_the_row_that_was_used_stands_out() -> None:
    row = {name: [0.5, 0.0] for name in SHOWN}
    assert page_table({"none": row, "prior": row}, 1, "", "prior").strong == "prior"


def test_a_hostile_camera_of_the_links_file_stops_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "links.yaml").write_text("cameras:\n  '<script>alert(1)</script>': {fps: 10}\n")
    assert ask(monkeypatch, folder, "track") == 2
    assert "can be a file name" in capsys.readouterr().err


def test_a_standard_input_that_ends_within_a_row_loses_that_row_alone(folder: Path) -> None:
    """Whoever fed it was killed."""
    text = "".join(sorted(GOOD.splitlines(keepends=True), key=lambda line: int(line.split()[2])))
    given = ["--data", "-", "--format", "aicity", "--links", str(folder / "links.yaml"), "--out", str(folder / "out")]
    command = [sys.executable, "-m", "examples.mtmc", "track", "--online", *given]
    done = subprocess.run(command, input=text[:-9], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert json.loads((folder / "out" / "summary.json").read_text())["tracklets"] == 4
    assert "the standard input, line 20: found 6 columns" in (folder / "out" / "dropped.log").read_text()
