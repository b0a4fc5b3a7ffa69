"""Detections as a stream of chunks: of a file or of an open stream, checked and cleaned, in bounded memory.

    log = Log()                                              # tolerant: counts what it leaves out
    for chunk in chunks(Path("tracks.txt"), "aicity", network, log):
        ...                                                  # arrays of at most 65 536 rows
    print("\\n".join(log.lines()))

``cat tracks.txt | ...`` is read by ``chunks(sys.stdin, "aicity", network, log, live=True)``: a chunk is then what has
come by now, so that nothing waits for a block to fill.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.checks import Fault, Raw, checked
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import LOST, MALFORMED, Log
from examples.mtmc.recordings.clocks import Clocks
from examples.mtmc.recordings.csv_tables import CsvTable
from examples.mtmc.recordings.embeddings import Looks, embeddings_beside
from examples.mtmc.recordings.formats import COLUMNS, TEXT_FORMATS, Malformed, TextFormat
from examples.mtmc.recordings.order import Order
from examples.mtmc.recordings.parquet_tables import ParquetTable
from examples.mtmc.recordings.text import Progress, blocks, name_of

__all__ = ["FORMATS", "Chunk", "chunks"]

FORMATS = ("aicity", "mot", "campus", "csv", "parquet")

JUMP = 60.0  # seconds: no clock drifts and no tracker bridges as much
SILENCE = 300.0  # seconds
SLACK = 1024  # rows that one may come late by, in a file
LIVE = 512  # rows at most at once of a live stream, so that its cameras are compared at about the same time


def chunks(
    source: Path | IO[Any],
    format: str,
    network: Network,
    log: Log,
    rows: int = 65536,
    *,
    camera: str | None = None,
    live: bool = False,
    jump: float | None = JUMP,
    slack: int | None = None,
    progress: Progress | None = None,
) -> Iterator[Chunk]:
    """Chunks of at most ``rows`` detections of a file (plain or .gz) or of an open stream of text or bytes.

    ``format`` is one of ``FORMATS``; where its rows do not name their camera, ``camera`` must. ``live`` says
    that rows come as they are taken: in order of time in each camera, and the cameras about together; then no row
    waits. ``jump`` is how many seconds a clock may step and an id be away (None: ids are global, as in ground truth,
    and come back as they like). ``slack`` rows wait for those that are late (default: none live, else 1024).
    ``progress`` is told the rows so far and the share of the file that is read.

    Raises InputError for what ``log.strict`` does not allow, and for a file that is not there.
    """
    reader = _reader(source, format, network, log, min(rows, LIVE) if live else rows, camera, progress)
    if getattr(reader, "tracklets", False):
        jump = None  # the two rows of a tracklet may lie far apart
    name = name_of(source)
    first_frame = TEXT_FORMATS[format].first_frame if format in TEXT_FORMATS else 0
    clocks = Clocks(network, log, name, jump or 0.0, SILENCE, live)
    order = Order(network, log, name, (0 if live else SLACK) if slack is None else slack, jump)
    looks = None
    if isinstance(source, Path) and format in TEXT_FORMATS and (beside := embeddings_beside(source)):
        looks = Looks(beside, source, log)
    for raw, malformed in reader:
        if looks is not None:
            raw = replace(raw, embedding=looks.of(raw))
        chunk, impossible = checked(raw, network, first_frame)
        faults = sorted([*malformed, *impossible], key=lambda fault: fault[0])
        if log.strict and faults:
            chunk = chunk.take(chunk.line < faults[0][0])  # an earlier row may be wrong in its order
        if len(chunk) and jump is not None:
            chunk = clocks.set_right(chunk)
        ready = order.push(chunk) if len(chunk) else None
        for line, kind, found, expected in faults:
            log.add(kind, name, line, found, expected)
        if ready is not None:
            yield from _pieces(ready, rows)
    if looks is not None:
        looks.finish()
    rest = order.finish()
    if rest is not None:
        yield from _pieces(rest, rows)


def _pieces(chunk: Chunk, rows: int) -> Iterator[Chunk]:
    for start in range(0, len(chunk), rows):
        yield chunk.take(slice(start, start + rows))


def _reader(
    source: Path | IO[Any],
    format: str,
    network: Network,
    log: Log,
    most: int,
    camera: str | None,
    progress: Progress | None,
) -> Iterable[tuple[Raw, list[Fault]]]:
    if format not in FORMATS:
        raise ValueError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
    text = TEXT_FORMATS.get(format)
    if (text is None or text.has_camera) == (camera is not None):
        which = "the name of the rows' camera" if camera is None else "None: its rows name theirs"
        raise ValueError(f"camera is {camera!r}; with format {format!r} it must be {which}")
    if text is not None:
        return _text(source, text, network, log, camera, most, progress)
    return (CsvTable if format == "csv" else ParquetTable)(source, network, log, most, progress)


def _text(
    source: Path | IO[Any],
    text: TextFormat,
    network: Network,
    log: Log,
    camera: str | None,
    most: int,
    progress: Progress | None,
) -> Iterator[tuple[Raw, list[Fault]]]:
    name = name_of(source)
    number = {name: k for k, name in enumerate(network.cameras)}
    row = 0
    for block in blocks(source, log, progress):
        for start in range(0, len(block), most):
            faults: list[Fault] = []
            cameras: list[int] = []
            values: list[list[float]] = []
            lines: list[int] = []
            places: list[int] = []
            unknown: dict[int, str] = {}
            for line, content in block[start : start + most]:
                try:
                    found = text.row(content)
                except Malformed as error:
                    faults.append((line, MALFORMED, error.found, error.expected))
                else:
                    if found is None:
                        log.note(LOST, name, line, "a row marked lost", "a box that is seen")
                    else:
                        known = number.get(camera if camera is not None else found[0], -1)
                        if known < 0:
                            unknown[len(lines)] = found[0][:40]
                        cameras.append(known)
                        values.append(found[1])
                        lines.append(line)
                        places.append(row)
                row += 1
            table = np.array(values, dtype=np.float64).reshape(-1, len(COLUMNS))
            integers = (np.array(x, dtype=np.int64) for x in (cameras, lines, places))
            camera_of, line_of, row_of = integers
            yield Raw(camera_of, unknown, table, line_of, row_of), faults
    if row == 0 and log.strict:
        raise InputError(name, None, "no rows", "at least one row: the camera is empty")
