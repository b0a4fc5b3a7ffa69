"""Streams of detections: the same rows whatever the source and the chunks, in bounded memory."""

from __future__ import annotations

import gzip
import io
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.chunk import Chunk, joined
from examples.mtmc.recordings.cleaning import Log
from examples.mtmc.recordings.folders import folder_chunks
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.stream import chunks

NET = Network({"a": Camera("a", 10.0), "b": Camera("b", 25.0, clock_offset=2.0, clock_rate=1.001)})


def rows_text(count: int, each: int = 4) -> str:
    """Rows in order of time, ``each`` tracklets at once, each for a hundred frames."""
    rows = []
    for k in range(count):
        frame, one = divmod(k, each)
        rows.append(f"{'ab'[one % 2]} {frame // 100 * each + one} {frame} {one}.25 7 20.5 50 -1 -1\n")
    return "".join(rows)


def whole(parts: list[Chunk]) -> Chunk:
    return joined(parts)


def same(one: Chunk, other: Chunk) -> None:
    for name in ("camera", "id", "frame", "time", "box", "confidence", "line", "row"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name


def test_every_source_gives_the_same_rows(tmp_path: Path) -> None:
    text = rows_text(1000)
    (tmp_path / "t.txt").write_text(text)
    (tmp_path / "t.txt.gz").write_bytes(gzip.compress(text.encode()))
    (tmp_path / "w.txt").write_bytes(b"\xef\xbb\xbf" + text.replace("\n", "\r\n").encode())  # as Windows writes
    expected = whole(list(chunks(tmp_path / "t.txt", "aicity", NET, Log(strict=True))))
    assert len(expected) == 1000 and expected.line.tolist() == list(range(1, 1001))
    np.testing.assert_allclose(expected.time[expected.camera == 1][7], 2 + 1.001 * expected.frame[15] / 25)
    for source in (tmp_path / "t.txt.gz", tmp_path / "w.txt", io.StringIO(text), io.BytesIO(text.encode())):
        for size in (1, 7, 333, 65536):
            if isinstance(source, io.IOBase):
                source.seek(0)
            parts = list(chunks(source, "aicity", NET, Log(strict=True), rows=size))
            assert max(map(len, parts)) <= size
            same(whole(parts), expected)


def test_blocks_cut_lines_anywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    text = rows_text(60)
    expected = whole(list(chunks(io.StringIO(text), "aicity", NET, Log(strict=True))))
    for block in (1, 2, 3, 29, 30, 31, 64):
        monkeypatch.setattr("examples.mtmc.recordings.text.BLOCK", block)
        same(whole(list(chunks(io.StringIO(text[:-1]), "aicity", NET, Log(strict=True)))), expected)


def test_a_live_stream_waits_for_nothing() -> None:
    """What has been written to a pipe is given before anything else comes."""
    inlet, outlet = os.pipe()
    with os.fdopen(inlet, "r", encoding="utf-8") as source, os.fdopen(outlet, "w", encoding="utf-8") as sink:
        stream = chunks(source, "aicity", NET, Log(), live=True)
        late = threading.Timer(20, sink.close)  # a reader that waited would get its rows then, and fail below
        late.start()
        for n in range(3):
            print(f"a 1 {n} 0 0 9 9 -1 -1", file=sink, flush=True)
            chunk = next(stream)
            assert chunk.frame.tolist() == [n] and not sink.closed
        late.cancel()
        sink.close()
        assert list(stream) == []


def test_files_of_cameras_merge_in_order_of_time(tmp_path: Path) -> None:
    for camera, every in (("a", 1), ("b", 2)):
        rows = (f"{frame},{1 + frame // 300},0,0,9,9\n" for frame in range(1, 2000, every))
        (tmp_path / f"{camera}.txt").write_text("".join(rows))
    merged = list(folder_chunks(tmp_path, "mot", NET, Log(strict=True), rows=100, time_order=True))
    time = np.concatenate([chunk.time for chunk in merged])
    assert (np.diff(time) >= 0).all() and len(time) == 1999 + 1000
    assert max(map(len, merged)) <= 200  # never more than a chunk of each


def test_progress_is_told(tmp_path: Path) -> None:
    told: list[tuple[int, float | None]] = []
    (tmp_path / "t.txt").write_text(rows_text(50_000))
    read(tmp_path, "aicity", NET, progress=lambda rows, share: told.append((rows, share)))
    rows, share = zip(*told, strict=True)
    assert len(told) > 1 and list(rows) == sorted(rows) and rows[-1] == 50_000
    assert list(share) == sorted(share) and share[-1] == pytest.approx(1)


@pytest.mark.parametrize("format", ["mot", "aicity"])
def test_embeddings_come_with_the_rows(tmp_path: Path, format: str) -> None:
    head = "a " if format == "aicity" else ""
    if format == "aicity":
        text = "a 5 1 0 0 9 9 -1 -1\na 3 1 0 0 9 9 -1 -1\n\na 5 2 0 0 9 9 -1 -1\n"
    else:
        text = "1,5,0,0,9,9\n1,3,0,0,9,9\n\n2,5,0,0,9,9\n"
    path = tmp_path / "a.txt"
    path.write_text(text)
    camera = None if head else "a"
    np.save(tmp_path / "a.npy", np.array([[1.0], [2.0]]))  # one a tracklet, 5 first
    (chunk,) = chunks(path, format, NET, Log(strict=True), camera=camera)
    assert chunk.embedding is not None and chunk.embedding.tolist() == [[1.0], [2.0], [1.0]]
    np.save(tmp_path / "a.npy", np.array([[1.0], [2.0], [3.0]]))  # one a detection
    (chunk,) = chunks(path, format, NET, Log(strict=True), camera=camera)
    assert chunk.embedding is not None and chunk.embedding.tolist() == [[1.0], [2.0], [3.0]]


MEASURE = """
import re, sys
from pathlib import Path
from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.cleaning import Log
from examples.mtmc.recordings.stream import chunks
network = Network({"a": Camera("a", 10.0), "b": Camera("b", 25.0)})
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+) kB", Path("/proc/self/status").read_text())[1])
before = peak()
rows = sum(len(c) for c in chunks(Path(sys.argv[1]), sys.argv[2], network, Log(strict=True), rows=4096))
print(rows, peak() - before)
"""


def _peak(path: Path, format: str) -> tuple[int, int]:
    """Rows read in a fresh process, and by how many KiB its largest memory grew while it read them."""
    run = subprocess.run(
        [sys.executable, "-c", MEASURE, str(path), format], capture_output=True, text=True, check=True, timeout=120
    )
    rows, peak = map(int, run.stdout.split())
    return rows, peak


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from Linux' /proc")
@pytest.mark.parametrize("format", ["aicity", "csv"])
def test_memory_does_not_grow_with_the_file(tmp_path: Path, format: str) -> None:
    peaks = []
    for count in (30_000, 150_000):
        path = tmp_path / f"{count}.txt"
        text = rows_text(count)
        if format == "csv":
            head = "camera,id,frame,left,top,width,height,world_x,world_y\n"
            text = head + text.replace(" ", ",")
        path.write_text(text)
        rows, peak = _peak(path, format)
        assert rows == count
        peaks.append(peak)
    assert 0 < peaks[1] < peaks[0] + 5_000, (
        peaks
    )  # KiB; the file has grown by 4 MB, its arrays by 12, its lines by more
    assert peaks[1] < 40_000, peaks
