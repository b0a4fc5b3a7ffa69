"""Tables of detections and of tracklets, CSV and Parquet, faults named or counted; and real files as streams."""

from __future__ import annotations

import gzip
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.chunk import joined
from examples.mtmc.recordings.cleaning import IMPOSSIBLE, LOST, MALFORMED, NOT_FINITE, UNKNOWN, Log
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.stream import chunks
from examples.mtmc.recordings.table_writers import write_parquet
from tests.examples.one_line import assert_one_line

NET = Network({"a": Camera("a", 10.0), "hall, north": Camera("hall, north", 25.0)})
HEAD = "camera,id,frame,left,top,width,height"


def table(*rows: str, head: str = HEAD) -> str:
    return "\n".join([head, *rows, ""])


def test_a_table_is_read_by_its_header() -> None:
    head = "frame, id ,height,width,top,left,camera,e1,e0,truth,world_x,world_y,confidence"
    text = table('3,7,9,8,2,1,"hall, north",0.5,-0.5,4,1.5,,', "4,7,9,8,2,1,a,,,,,,0.25", head=head)
    (chunk,) = chunks(io.StringIO(text), "csv", NET, Log(strict=True))
    assert chunk.camera.tolist() == [1, 0] and chunk.id.tolist() == [7, 7] and chunk.frame.tolist() == [3, 4]
    assert chunk.box.tolist() == [[1, 2, 8, 9]] * 2 and chunk.confidence.tolist() == [1, 0.25]
    assert chunk.truth is not None and chunk.truth.tolist() == [4, -1]
    assert chunk.embedding is not None and chunk.embedding[0].tolist() == [-0.5, 0.5]
    assert np.isnan(chunk.embedding[1]).all() and chunk.world[0, 0] == 1.5 and np.isnan(chunk.world[0, 1])
    assert chunk.line.tolist() == [2, 3]


BAD = [
    ("", None, "a header and at least one row"),
    (table(), None, "the table is empty"),
    (table("a,1,1,0,0,9,9", head=HEAD.replace("frame", "frmae")), 1, "a column 'frame'"),
    (table("a,1,1,0,0,9,9,7", head=HEAD + ",colour"), 1, "one of camera, id"),
    (table("a,1,1,0,0,9,9,7", head=HEAD + ",id"), 1, "every column once"),
    (table("a,1,1,0,0,9,9,7", head=HEAD + ",e1"), 1, "e0, e1, e2"),
    (table("a,1,1,0,0,9", "a,1,2,0,0,9,9"), 2, "7, as the header has"),
    (table("a,1,1,0,0,9,9", "a,1,two,0,0,9,9"), 3, "a whole number"),
    (table("a,1,1,0,0,9,9", "a,1,2,,0,9,9"), 3, "four finite numbers"),
    (table("b,1,1,0,0,9,9"), 2, "a camera of the links file (a, hall, north)"),
    (table('"a,1,1,0,0,9,9'), 2, "cells parted by commas"),
    (table("a,1,1,0,0,9,9,0.5", head=HEAD + ",truth"), 2, "a whole number"),
    (table("a,1,1,0,0,9,9,1,inf", head=HEAD + ",e0,e1"), 2, "finite numbers"),
    (table("a,1,1,0,0,9,9,0,0", head=HEAD + ",e0,e1"), 2, "not all of them 0"),
    (",".join(f"c{k}" for k in range(100_000)), 1, "a column 'camera' too"),  # in no more than a moment
]


@pytest.mark.parametrize(("text", "line", "expected"), BAD)
def test_a_wrong_table_is_named_in_one_line(tmp_path: Path, text: str, line: int | None, expected: str) -> None:
    path = tmp_path / "t.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        list(chunks(path, "csv", NET, Log(strict=True)))
    assert_one_line(str(error.value), path, line, expected)


def test_what_a_tolerant_log_counts_of_a_table() -> None:
    rows = [
        "a,1,1,0,0,9,9,x",
        "b,1,1,0,0,9,9,x",
        "a,1,2,0,0,9",
        "a,1,3,nan,0,9,9,x",
        "a,1,-3,0,0,9,9,x",
        "a,1,9,0,0,9,9,x",
    ]
    log = Log()
    (chunk,) = chunks(io.StringIO(table(*rows, head=HEAD + ",colour")), "csv", NET, log)
    assert chunk.frame.tolist() == [1, 9]
    assert log.counts == {MALFORMED: 2, UNKNOWN: 1, NOT_FINITE: 1, IMPOSSIBLE: 1} and log.rows == 6


TRACKLETS = "camera,id,frame_in,frame_out," + ",".join(f"{e}_{x}" for e in ("in", "out") for x in HEAD.split(",")[3:])


def test_a_row_a_tracklet() -> None:
    text = table("a,1,10,90000,0,0,9,9,5,0,9,9", "a,2,5,5,0,0,9,9,0,0,9,9", head=TRACKLETS)
    (chunk,) = chunks(io.StringIO(text), "csv", NET, Log(strict=True))  # hours long: it is the user's word
    assert chunk.id.tolist() == [1, 1, 2] and chunk.frame.tolist() == [10, 90000, 5]
    assert chunk.box[:, 0].tolist() == [0, 5, 0]
    with pytest.raises(InputError, match="line 2: found frame_out 3 before frame_in 10"):
        list(chunks(io.StringIO(table("a,1,10,3,0,0,9,9,5,0,9,9", head=TRACKLETS)), "csv", NET, Log(strict=True)))


COLUMNS: dict[str, list[Any]] = {
    "camera": ["a", "hall, north"],
    "id": [1, 2],
    "frame": [3, 4],
    **{name: [float(k), float(k + 1)] for k, name in enumerate(HEAD.split(",")[3:], 1)},
}


def _changed(**columns: list[Any] | None) -> Callable[[Path], None]:
    whole = {name: cells for name, cells in (COLUMNS | columns).items() if cells is not None}
    return lambda path: write_parquet(path, whole)


def _cut(path: Path) -> None:
    write_parquet(path, COLUMNS)
    path.write_bytes(path.read_bytes()[:-20])


def _spoilt(path: Path) -> None:
    write_parquet(path, COLUMNS)
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(bytes(data))


def _written(**columns: list[Any]) -> Callable[[Path], None]:
    """With columns of kinds that our own writer refuses."""

    def write(path: Path) -> None:
        import pyarrow as pa
        from pyarrow import parquet

        parquet.write_table(pa.table(COLUMNS | columns), path)

    return write


BAD_PARQUET: dict[str, tuple[Callable[[Path], None], str]] = {
    "no Parquet": (lambda path: path.write_bytes(b"camera,id\n") and None, "a Parquet file"),
    "cut": (_cut, "a Parquet file"),
    "spoilt": (_spoilt, "a whole file"),
    "no file": (lambda path: None, "a file of rows"),
    "a column lacks": (_changed(top=None), "a column 'top' too"),
    "words as ids": (_written(id=["one", "two"]), "numbers"),
    "no rows": (_changed(**{name: [] for name in COLUMNS}), "at least one row"),
    "a null id": (_changed(id=[1, None]), "a whole number"),
    "a null camera": (_changed(camera=["a", None]), "a camera of the links file"),
    "two lengths": (_changed(embedding=[[1.0, 2.0], [1.0]]), "2 numbers"),
    "words in an embedding": (_written(embedding=[["a"], ["b"]]), "lists of numbers"),
    "lists in an embedding": (_written(embedding=[[[1.0]], [[2.0]]]), "lists of numbers"),
    "NaN in an embedding": (_changed(embedding=[[1.0, 2.0], [1.0, float("nan")]]), "finite numbers"),
}


@pytest.mark.parametrize("what", BAD_PARQUET)
def test_wrong_parquet_is_named_in_one_line(tmp_path: Path, what: str) -> None:
    make, expected = BAD_PARQUET[what]
    path = tmp_path / "t.parquet"
    make(path)
    with pytest.raises(InputError) as error:
        list(chunks(path, "parquet", NET, Log(strict=True)))
    assert_one_line(str(error.value), path, None, expected)


def test_an_embedding_that_some_rows_lack(tmp_path: Path) -> None:
    path = tmp_path / "t.parquet"
    write_parquet(path, COLUMNS | {"embedding": [None, [1.0, 2.0]]})
    chunk = joined(list(chunks(path, "parquet", NET, Log(strict=True), rows=1)))
    assert chunk.embedding is not None and np.isnan(chunk.embedding[0]).all() and chunk.embedding[1].tolist() == [1, 2]
    tracklets = read(tmp_path, "parquet", NET).tracklets
    assert sorted((t.camera, t.embedding is None) for t in tracklets) == [("a", True), ("hall, north", False)]


def test_a_file_that_counts_from_0_is_reported_never_shifted(tmp_path: Path) -> None:
    net = Network({"a": Camera("a", 10.0)})
    (tmp_path / "a.txt").write_text("0,1,0,0,9,9\n1,1,0,0,9,9\n")
    with pytest.raises(InputError, match="line 1: found frame 0; expected a whole number from 1 on"):
        read(tmp_path, "mot", net)
    log = Log()
    assert read(tmp_path, "mot", net, log=log).tracklets[0].frames.tolist() == [1]
    assert log.counts == {IMPOSSIBLE: 1}


@pytest.mark.parametrize(("sequence", "boxes", "ids"), [("TUD-Campus", 222, 13), ("TUD-Stadtmitte", 749, 12)])
def test_real_tracker_output(data_dir: Path, sequence: str, boxes: int, ids: int) -> None:
    path = data_dir / "mtmc" / "mot15_tud" / sequence / "test.txt"
    (chunk,) = chunks(path, "mot", NET, Log(strict=True), camera="a")
    assert len(chunk) == boxes and len(np.unique(chunk.id)) == ids


def test_real_campus_text(data_dir: Path) -> None:
    folder = data_dir / "mtmc" / "campus_auditorium"
    cameras = {name: Camera(name, 30.0) for name in ("HC3", "HC4", "IP2", "IP5")}
    net, log, rows, seen = Network(cameras), Log(strict=True), 0, []
    for name in cameras:
        parts = list(chunks(folder / f"view-{name}.txt.gz", "campus", net, log, camera=name, jump=None))
        rows += sum(map(len, parts))
        seen.append(len(np.unique(joined(parts).id)))
    assert (rows, log.counts[LOST], log.rows) == (134_168, 365_651 - 134_168, 365_651) and seen == [18, 14, 16, 19]
    with gzip.open(folder / "view-HC3.txt.gz", "rt") as text:  # an open stream gives the same
        again = joined(list(chunks(text, "campus", net, Log(strict=True), camera="HC3", jump=None)))
    first = joined(list(chunks(folder / "view-HC3.txt.gz", "campus", net, Log(strict=True), camera="HC3", jump=None)))
    assert np.array_equal(again.frame, first.frame) and np.array_equal(again.box, first.box)
