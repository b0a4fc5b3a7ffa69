"""Dirty data: each fault is an error with file and line, or is left out, counted, and harms nothing else."""

from __future__ import annotations

import gzip
import io
import random
import re
import time
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.chunk import Chunk, joined
from examples.mtmc.recordings.cleaning import (
    BROKEN,
    DUPLICATE,
    GAP,
    IMPOSSIBLE,
    JUMP,
    LATE,
    MALFORMED,
    NOT_FINITE,
    OUT_OF_ORDER,
    SILENT,
    UNKNOWN,
    Log,
)
from examples.mtmc.recordings.clocks import NEW_IDS
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.stream import chunks
from examples.mtmc.recordings.writers import dropped_text

NET = Network({"a": Camera("a", 10.0), "b": Camera("b", 10.0)})


def row(camera: str, id: int, frame: int) -> str:
    return f"{camera} {id} {frame} {id} {frame} 9 9 -1 -1"


def clean(text: str | list[str], log: Log, **options: object) -> Chunk | None:
    lines = text if isinstance(text, str) else "\n".join(text)
    parts = list(chunks(io.StringIO(lines), "aicity", NET, log, **options))  # type: ignore[arg-type]
    return joined(parts) if parts else None


def strictly(text: str | list[str]) -> str:
    with pytest.raises(InputError) as error:
        clean(text, Log(strict=True))
    assert "\n" not in str(error.value)
    return str(error.value)


GOOD = [row("a", 1, f) for f in range(5)]
BAD = {
    "a 1 9 0 0 9": MALFORMED,
    "a 1 9 0 0 9 9 -1 -1 7": MALFORMED,
    "a 1 9 0 zero 9 9 -1 -1": MALFORMED,
    "a 1 9 0 1_0 9 9 -1 -1": MALFORMED,
    "a 1 9 0 0 9 9 here there": MALFORMED,
    "a 1 9 0 nan 9 9 -1 -1": NOT_FINITE,
    "a 1 9 0 0 inf 9 -1 -1": NOT_FINITE,
    "a 1 9 0 0 9 9 inf 0": NOT_FINITE,
    "a nan 9 0 0 9 9 -1 -1": NOT_FINITE,
    "a 1 inf 0 0 9 9 -1 -1": NOT_FINITE,
    "a 1 9 0 0 9 -9 -1 -1": IMPOSSIBLE,
    "a 1 9 0 0 0 9 -1 -1": IMPOSSIBLE,
    "a 1 9.5 0 0 9 9 -1 -1": IMPOSSIBLE,
    "a 1 -9 0 0 9 9 -1 -1": IMPOSSIBLE,
    "a -1 9 0 0 9 9 -1 -1": IMPOSSIBLE,
    "a 1e300 9 0 0 9 9 -1 -1": IMPOSSIBLE,
    "a 1 9 0 1e300 9 9 -1 -1": IMPOSSIBLE,
    "{id} 1 9 0 0 9 9 -1 -1": UNKNOWN,
    "\x00": MALFORMED,
}


@pytest.mark.parametrize("bad", BAD)
def test_a_bad_row_is_named_or_left_out(bad: str) -> None:
    lines = [*GOOD[:3], bad, *GOOD[3:]]
    assert "line 4" in strictly(lines)
    log = Log()
    chunk = clean(lines, log)
    assert chunk is not None and chunk.frame.tolist() == [0, 1, 2, 3, 4] and chunk.line.tolist() == [1, 2, 3, 5, 6]
    assert log.counts == {BAD[bad]: 1} and log.left_out == 1 and log.rows == 6
    assert "line 4" in log.lines()[1]


def test_the_first_fault_is_the_one_that_is_named() -> None:
    """Whether it is one of a cell, of a value or of the order of rows."""
    faults = ["x", "a 1 nan 0 0 9 9 -1 -1", row("a", 1, 2)]
    for first in faults:
        assert "line 4" in strictly([*GOOD[:3], first, *faults])


def test_rows_twice_and_rows_late() -> None:
    log = Log()
    chunk = clean([*GOOD, GOOD[4], row("a", 1, 6), row("a", 1, 5)], log)
    assert chunk is not None and chunk.frame.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert log.counts == {DUPLICATE: 1, OUT_OF_ORDER: 1} and log.left_out == 1
    log = Log()
    chunk = clean([row("a", 1, f) for f in (*range(20), 5, 20)], log, rows=4, slack=2)
    assert chunk is not None and chunk.frame.tolist() == list(range(21))
    assert log.counts == {LATE: 1}  # later than two rows can wait; the row it repeats is long gone
    assert "ascending frames" in strictly([*GOOD, GOOD[4]]) and "ascending frames" in strictly([*GOOD, GOOD[2]])


@given(data=st.data())
@settings(max_examples=25)
def test_dirt_leaves_no_trace(data: st.DataObject) -> None:
    """Rows late by less than the buffer, doubled rows and rubbish between: the clean rows come out, all is counted."""
    rng = random.Random(data.draw(st.integers(0, 2**32)))
    lines = [row("ab"[k % 2], k % 4, k // 4) for k in range(400)]
    expected = clean(lines, Log(strict=True))
    late = list(range(400))
    order = sorted(late, key=lambda k: k + rng.uniform(0, 30))  # each at most 30 places from its own
    dirty: list[str] = []
    doubled = rubbish = 0
    for k in order:
        dirty.append(lines[k])
        if rng.random() < 0.1:
            dirty.append(lines[k])
            doubled += 1
        if rng.random() < 0.1:
            dirty.append(rng.choice(list(BAD)))
            rubbish += 1
    log = Log()
    found = clean(dirty, log, rows=data.draw(st.sampled_from([7, 100, 65536])), slack=100)
    assert expected is not None and found is not None
    for own in (expected, found):
        assert len(own) == 400
    sort_a, sort_b = (np.lexsort((c.frame, c.id, c.camera)) for c in (expected, found))
    for name in ("camera", "id", "frame", "box", "time"):
        assert np.array_equal(getattr(expected, name)[sort_a], getattr(found, name)[sort_b])
    for camera in (0, 1):
        for id in range(4):
            own = found.frame[(found.camera == camera) & (found.id == id)]
            assert (np.diff(own) > 0).all()
    assert log.counts[DUPLICATE] == doubled and log.left_out == doubled + rubbish
    assert log.rows == len(dirty) == 400 + doubled + rubbish


def in_turns(camera: str, start: int, count: int) -> list[str]:
    return [row(camera, 1 + k % 2, start + k) for k in range(count)]


def test_a_clock_that_jumps_back_goes_on() -> None:
    lines = [*in_turns("a", 5000, 20), *in_turns("a", 1, 20)]
    log = Log()
    chunk = clean(lines, log)
    assert chunk is not None and chunk.frame.tolist() == list(range(5000, 5040))
    assert chunk.id.tolist() == [1, 2] * 10 + [NEW_IDS + 1, NEW_IDS + 2] * 10
    np.testing.assert_allclose(chunk.time, chunk.frame / 10)
    assert log.counts == {JUMP: 1} and log.left_out == 0
    assert "+5019 frames" in str(log.cases[JUMP][0]) and "line 21" in str(log.cases[JUMP][0])
    assert "line 21" in strictly(lines)


def test_one_wrong_frame_moves_no_clock() -> None:
    for wrong in (1, 10**9):
        lines = [*in_turns("a", 5000, 20), row("a", 1, wrong), *in_turns("a", 5020, 20)]
        log = Log()
        chunk = clean(lines, log)
        assert chunk is not None and chunk.frame.tolist() == list(range(5000, 5040))
        assert log.counts == {IMPOSSIBLE: 1} and "line 21" in strictly(lines)


def test_tracks_one_after_another_are_no_jumps() -> None:
    lines = [row("a", id, start + f) for id, start in ((1, 90_000), (2, 10), (3, 50_000)) for f in range(50)]
    chunk = clean(lines, Log(strict=True))
    assert chunk is not None and len(chunk) == 150


def test_an_id_that_comes_back_after_long_is_another_tracklet() -> None:
    for later in (5000, 0):  # ahead, or (one track after another) back again
        lines = [row("a", 7, f) for f in (2000, 2001)] + [row("a", 7, f) for f in (later, later + 1)]
        log = Log()
        chunk = clean(lines, log)
        assert chunk is not None and chunk.id.tolist() == [7, 7, 7 + NEW_IDS, 7 + NEW_IDS]
        assert log.counts == {GAP: 1} and log.left_out == 0 and "line 3" in strictly(lines)
    assert clean([*lines[:2], row("a", 7, 5000)], Log(strict=True), jump=None) is not None  # as in ground truth


def test_a_live_clock_that_jumps_is_set_by_the_others() -> None:
    def live(offset: int) -> tuple[Chunk, Log]:
        lines = []
        for k in range(600):
            lines += [row("a", 1, 50_000 + k), row("b", 2, 50_000 + k + offset * (k >= 300))]
        log = Log()
        chunk = clean(lines, log, live=True)
        assert chunk is not None
        return chunk, log

    for offset in (40_000, -40_000):
        chunk, log = live(offset)
        own = chunk.camera == 1
        assert log.counts == {JUMP: 1} and own.sum() == 600
        assert (np.diff(chunk.frame[own]) > 0).all()
        assert np.abs(chunk.frame[own][300:] - chunk.frame[~own][300:]).max() <= 256  # as the others were known then
        assert set(chunk.id[own].tolist()) == {2, 2 + NEW_IDS}


def test_a_camera_of_a_live_stream_that_falls_silent_is_noted() -> None:
    lines = [row("a", k // 100, k) for k in range(10_000)]
    lines = [
        line for k, line in enumerate(lines) for line in ([line, row("b", 1, k)] if not 500 < k < 9000 else [line])
    ]
    log = Log()
    chunk = clean(lines, log, live=True)
    assert chunk is not None and log.counts[SILENT] == 1 and log.left_out == 0
    assert "nothing of camera b for 850 s" in str(log.cases[SILENT][0])
    assert log.counts[JUMP] == 0  # the other camera went on meanwhile


def test_a_camera_that_falls_silent_is_noted_of_a_recording(tmp_path: Path) -> None:
    def write(silent: range) -> Log:
        rows = [
            row(c, k, 40 * k + f) for k in range(200) for c in "ab" for f in range(5) if c == "a" or k not in silent
        ]
        (tmp_path / "t.txt").write_text("\n".join(rows))
        log = Log(strict=True)  # a silence is no error
        read(tmp_path, "aicity", NET, log=log)
        return log

    log = write(range(50, 120))
    assert "nothing of camera b from 196 to 480 s" in str(log.cases[SILENT][0]) and log.counts[SILENT] == 1
    assert write(range(50, 60)).counts[SILENT] == 0  # ten in a row may stay away
    assert write(range(150, 200)).counts[SILENT] == 1 and write(range(40)).counts[SILENT] == 1


def test_a_camera_without_rows_or_file(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("1,1,0,0,9,9\n")
    with pytest.raises(InputError, match=r"b\.txt: found no such file"):
        read(tmp_path, "mot", NET)
    (tmp_path / "hall.txt").write_text("1,1,0,0,9,9\n")
    with pytest.raises(InputError, match=r"hall\.txt: found an unknown camera hall"):
        read(tmp_path, "mot", NET)
    log = Log()
    recording = read(tmp_path, "mot", NET, log=log)
    assert len(recording.tracklets) == 1 and log.counts[UNKNOWN] == 1 and log.counts[SILENT] == 2


def test_text_that_is_not_text(tmp_path: Path) -> None:
    (tmp_path / "t.txt").write_bytes(row("a", 1, 1).encode() + b"\n\xff\xfe\n" + row("b", 1, 1).encode())
    with pytest.raises(InputError, match="line 2: found text that is not UTF-8"):
        read(tmp_path, "aicity", NET)
    log = Log()
    assert len(read(tmp_path, "aicity", NET, log=log).tracklets) == 2 and log.counts == {BROKEN: 1}
    cut = tmp_path / "cut.txt.gz"
    cut.write_bytes(gzip.compress("".join(row("a", k, k) + "\n" for k in range(9, 9000)).encode())[:-2000])
    with pytest.raises(InputError, match=r"cut\.txt\.gz: found unreadable text"):
        read(tmp_path, "aicity", NET, log=Log(strict=True))
    log = Log()
    assert len(read(tmp_path, "aicity", NET, log=log).tracklets) > 100 and log.counts[BROKEN] == 2


def test_a_line_without_end_is_no_row() -> None:
    log = Log()
    text = row("a", 1, 1) + "\n" + "9 " * 2_000_000 + "\n" + row("a", 1, 2)
    chunk = clean(text, log)
    assert chunk is not None and chunk.frame.tolist() == [1, 2] and chunk.line.tolist() == [1, 3]
    assert log.counts == {MALFORMED: 1} and log.rows == 3


def test_a_hundred_thousand_rows_of_garbage_are_counted() -> None:
    rng = random.Random(0)
    alphabet = "0123456789abcdef .,-+einf\t\"'{}%\\\u00e9\u4e16\u0000"
    lines = ["".join(rng.choices(alphabet, k=rng.randint(1, 60))) for _ in range(3000)]
    lines = [line for line in lines if len(line.split()) > 0] * 34
    start = time.perf_counter()
    log = Log()
    assert clean(lines, log) is None
    seconds = time.perf_counter() - start
    assert log.left_out == log.rows == len(lines) > 90_000
    assert sum(map(len, log.cases.values())) <= 3 * len(log.counts) and len("\n".join(log.lines())) < 10_000
    assert seconds < 60  # 0.5 s on a quiet machine: it must not grow with what has been counted


def test_the_log_counts_what_its_examples_do_not_show() -> None:
    log = Log()
    clean([*GOOD, *["x"] * 10], log)
    text = dropped_text(log.dropped())
    assert "# 10 x malformed row" in text and len(re.findall("^\t", text, re.M)) == 3
    assert log.as_dict()["kinds"][MALFORMED]["count"] == 10
