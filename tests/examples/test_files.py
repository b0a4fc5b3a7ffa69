"""Readers and writers: what a folder gives, and one line for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.network.travel import TravelTime
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.simulator.simulate import World
from tests.examples.one_line import assert_one_line

TWO = Network(
    {"a": Camera("a", 10.0), "b": Camera("b", 25.0, clock_offset=2.0, clock_rate=1.001, position=(1.0, 2.0))},
    (
        Link("a", "b", (1.0, 30.0), 0.4, TravelTime("lognormal", ((0.75, 8.0, 0.2), (0.25, 15.0, 0.4)), (1.0, 30.0))),
        Link("b", "a", (-5.0, 5.0), 0.2, TravelTime("normal", ((1.0, -1.0, 2.0),), (-5.0, 5.0)), measure="enter"),
        Link("a", "a", (0.0, 4.0), reach=1.5),
    ),
)


@pytest.mark.parametrize("format", ["aicity", "mot", "csv", "parquet"])
def test_round_trip_of_a_recording(world: World, tmp_path: Path, format: str) -> None:
    write_recording(tmp_path / "once", world.recording, format)
    again = read(tmp_path / "once", format, world.recording.network)
    first = {(t.camera, t.id): t for t in world.recording.tracklets}
    assert {(t.camera, t.id) for t in again.tracklets} == set(first)
    for tracklet in again.tracklets:
        original = first[tracklet.camera, tracklet.id]
        assert np.array_equal(tracklet.frames, original.frames)
        np.testing.assert_allclose(tracklet.boxes, original.boxes, atol=0.006)
        assert tracklet.time_in == pytest.approx(original.time_in)
        assert tracklet.embedding is not None and original.embedding is not None
        np.testing.assert_allclose(tracklet.embedding, original.embedding)
    agree = [t.truth == first[t.camera, t.id].truth for t in again.tracklets]
    assert np.mean(agree) > 0.97  # the few that differ hold two people, by a switch
    write_recording(tmp_path / "twice", again, format)
    for path in sorted((tmp_path / "once").rglob("*.[tc][xs][tv]")):
        twice = tmp_path / "twice" / path.relative_to(tmp_path / "once")
        assert sorted(path.read_text().splitlines()) == sorted(twice.read_text().splitlines())


def test_embeddings_a_detection_are_averaged(tmp_path: Path) -> None:
    net = Network({"a": Camera("a", 10.0)})
    (tmp_path / "a.txt").write_text("1,1,0,0,9,9\n1,2,50,0,9,9\n2,1,0,0,9,9\n")
    np.savez(tmp_path / "a.npz", embeddings=np.array([[1.0, 0.0], [5.0, 5.0], [3.0, 2.0]]))
    by_id = {t.id: t.embedding for t in read(tmp_path, "mot", net).tracklets}
    assert by_id[1].tolist() == [2.0, 1.0] and by_id[2].tolist() == [5.0, 5.0]  # type: ignore[union-attr]


def test_campus_rows(tmp_path: Path) -> None:
    net = Network({"HC3": Camera("HC3", 30.0)})
    rows = [f'7 0 0 10 20 {f} {int(f == 3)} 0 0 "PERSON"\n' for f in [0, 1, 2, 3, 50, 51]]
    (tmp_path / "view-HC3.txt").write_text("".join(rows))
    recording = read(tmp_path, "campus", net, least=3)
    assert [t.frames.tolist() for t in recording.tracklets] == [[0, 1, 2]]
    assert recording.tracklets[0].truth == 7
    assert [track.frames.tolist() for track in recording.truth] == [[0, 1, 2, 50, 51]]
    assert {d.why for d in recording.dropped} == {"marked lost: out of view", "2 boxes, fewer than 3"}


def _write(name: str, text: str) -> Callable[[Path], None]:
    return lambda folder: (folder / name).write_text(text) and None  # type: ignore[func-returns-value]


def _save(name: str, array: np.ndarray) -> Callable[[Path], None]:  # type: ignore[type-arg]
    return lambda folder: np.save(folder / name, array)


def _truth_of_c(folder: Path) -> None:
    (folder / "gt").mkdir()
    (folder / "gt" / "c.txt").write_text(GOOD)


GOOD = "1,1,0,0,9,9,1,-1,-1,-1\n2,1,0,0,9,9,1,-1,-1,-1\n"
BAD_MOT = {
    "a missing file": (lambda folder: (folder / "b.txt").unlink(), "b.txt", None, "a file of rows"),
    "a wrong column count": (_write("b.txt", GOOD + "3,1,0,0,9\n"), "b.txt", 3, "6 to 10"),
    "a NaN box": (_write("b.txt", GOOD + "3,1,nan,0,9,9\n"), "b.txt", 3, "four finite numbers"),
    "an infinite box": (_write("b.txt", GOOD + "3,1,0,0,inf,9\n"), "b.txt", 3, "four finite numbers"),
    "a flat box": (_write("b.txt", GOOD + "3,1,0,0,0,9\n"), "b.txt", 3, "above 0"),
    "a word": (_write("b.txt", GOOD + "3,1,left,0,9,9\n"), "b.txt", 3, "a number"),
    "an unknown camera": (_write("c.txt", GOOD), "c.txt", None, "a camera of the links file (a, b)"),
    "truth of an unknown camera": (_truth_of_c, "gt/c.txt", None, "a camera of the links file (a, b)"),
    "an id beyond all": (_write("b.txt", GOOD + "3,1e17,0,0,9,9\n"), "b.txt", 3, "at most 2**53"),
    "frames out of order": (_write("b.txt", GOOD + "1,1,0,0,9,9\n"), "b.txt", 3, "ascending frames"),
    "a frame twice": (_write("b.txt", GOOD + "2,1,0,0,9,9\n"), "b.txt", 3, "each once"),
    "frames from 0": (_write("b.txt", "0,1,0,0,9,9\n" + GOOD), "b.txt", 1, "from 1 on"),
    "a half frame": (_write("b.txt", GOOD + "3.5,1,0,0,9,9\n"), "b.txt", 3, "a whole number"),
    "an empty camera": (_write("b.txt", "\n\n"), "b.txt", None, "the camera is empty"),
    "embeddings of another length": (_save("b.npy", np.ones((7, 4))), "b.npy", None, "1 rows (one a tracklet) or 2"),
    "an embedding that is NaN": (_save("b.npy", np.array([[1.0, np.nan]])), "b.npy", 1, "finite numbers"),
    "an embedding of noughts": (_save("b.npy", np.zeros((1, 2))), "b.npy", 1, "not all of them 0"),
    "an embedding beyond all": (_save("b.npy", np.full((1, 2), 1e300)), "b.npy", 1, "at most 1e+30"),
    "embeddings with pickles": (_save("b.npy", np.array([{}], dtype=object)), "b.npy", None, "without pickles"),
    "binary rubbish": (
        lambda folder: (folder / "b.txt").write_bytes(b"\xff\xfe\x00\x80"),
        "b.txt",
        None,
        "a file of rows",
    ),
}


@pytest.mark.parametrize("what", BAD_MOT)
def test_wrong_mot_text_is_named_in_one_line(tmp_path: Path, what: str) -> None:
    spoil, name, line, expected = BAD_MOT[what]
    for camera in "ab":
        (tmp_path / f"{camera}.txt").write_text(GOOD)
    assert isinstance(read(tmp_path, "mot", TWO), Recording)
    spoil(tmp_path)
    with pytest.raises(InputError) as error:
        read(tmp_path, "mot", TWO)
    assert_one_line(str(error.value), tmp_path / name, line, expected)


AICITY = "a 1 1 0 0 9 9 -1 -1\nb 1 1 0 0 9 9 -1 -1\n"


@pytest.mark.parametrize(
    ("text", "line", "expected"),
    [
        (AICITY + "c 1 1 0 0 9 9 -1 -1\n", 3, "a camera of the links file (a, b)"),
        (AICITY + "a 1 2 0 0 9 9\n", 3, "9: camera id frame"),
        (AICITY + "a 1 2 0 0 nan 9 -1 -1\n", 3, "four finite numbers"),
        (AICITY + "a 1 1 0 0 9 9 -1 -1\n", 3, "ascending frames"),
    ],
)
def test_wrong_aicity_rows_are_named_in_one_line(tmp_path: Path, text: str, line: int, expected: str) -> None:
    (tmp_path / "tracks.txt").write_text(text)
    with pytest.raises(InputError) as error:
        read(tmp_path, "aicity", TWO)
    assert_one_line(str(error.value), tmp_path / "tracks.txt", line, expected)


def test_a_camera_without_rows_is_named(tmp_path: Path) -> None:
    (tmp_path / "tracks.txt").write_text("a 1 1 0 0 9 9 -1 -1\n")
    with pytest.raises(InputError, match="no rows of camera b"):
        read(tmp_path, "aicity", TWO)


def test_embeddings_of_two_lengths_are_named(tmp_path: Path) -> None:
    for camera, length in (("a", 3), ("b", 4)):
        (tmp_path / f"{camera}.txt").write_text(GOOD)
        np.save(tmp_path / f"{camera}.npy", np.ones((1, length)))
    with pytest.raises(
        InputError, match="3 numbers in camera a, 4 numbers in camera b; expected embeddings of one length"
    ):
        read(tmp_path, "mot", TWO)


def test_clocks() -> None:
    camera = TWO.cameras["b"]
    frames = np.array([0, 25, 1000])
    np.testing.assert_allclose(camera.seconds(frames), 2.0 + 1.001 * frames / 25)
    assert camera.frame(camera.seconds(frames)).tolist() == frames.tolist()
