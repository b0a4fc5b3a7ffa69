"""Tables of detections or of whole tracklets, as CSV or Parquet.

One row a detection:

    camera, id, frame            the camera's name, the tracklet's number in it, the frame (from 0)
    left, top, width, height     pixels
    confidence                   optional
    world_x, world_y             optional: a place in metres; empty where it is not known
    truth                        optional: the true identity; empty where it is not known
    e0, e1, ...                  optional: the embedding; in Parquet also one list column ``embedding``

One row a tracklet:

    camera, id, frame_in, frame_out
    in_left, in_top, in_width, in_height, out_left, out_top, out_width, out_height       its first and its last box
    in_world_x, in_world_y, out_world_x, out_world_y, truth, e0, e1, ... or embedding    optional

Columns stand in any order. One that is not named here is an error, so that no misspelt one is passed over in silence
(tolerant: noted, and passed over). A CSV begins with a header and may be gzipped or a stream.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.checks import A_LOOK, Fault, Raw, are_looks
from examples.mtmc.recordings.cleaning import IMPOSSIBLE, MALFORMED, NOT_FINITE, Log

BOX = ("left", "top", "width", "height")
WORLD = ("world_x", "world_y")
DETECTIONS = ("camera", "id", "frame", *BOX)
TRACKLETS = ("camera", "id", "frame_in", "frame_out", *(f"{end}_{x}" for end in ("in", "out") for x in BOX))
OPTIONAL = {
    DETECTIONS: ("confidence", *WORLD, "truth"),
    TRACKLETS: (*(f"{end}_{x}" for end in ("in", "out") for x in WORLD), "truth"),
}
DIMENSION = re.compile(r"e(0|[1-9]\d{0,5})")


@dataclass(frozen=True)
class Columns:
    """Which columns a table has: ``numbers`` by name, and the embedding's, e0 first."""

    tracklets: bool
    numbers: tuple[str, ...]
    embedding: tuple[str, ...]


def columns_of(path: str | Path, names: Sequence[str], log: Log, lists: Sequence[str] = ()) -> Columns:
    """What a header says; ``lists`` are columns whose cells are lists."""
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise InputError(path, 1, f"column {twice[0]!r:.60} twice", "every column once")
    wanted = TRACKLETS if "frame_in" in names else DETECTIONS
    missing = [name for name in wanted if name not in names]
    if missing:
        raise InputError(path, 1, f"columns {', '.join(map(str, names))!s:.200}", f"a column {missing[0]!r} too")
    dimensions = sorted((n for n in names if DIMENSION.fullmatch(n)), key=lambda name: int(name[1:]))
    if dimensions != [f"e{k}" for k in range(len(dimensions))]:
        raise InputError(path, 1, f"embedding columns {', '.join(dimensions):.100}", "e0, e1, e2 and so on, each once")
    if "embedding" in lists:
        if dimensions:
            raise InputError(path, 1, "both embedding and e0", "one of the two")
        dimensions = ["embedding"]
    known = {*wanted, *OPTIONAL[wanted], *dimensions}
    for name in names:
        if name not in known:
            log.add(
                MALFORMED, path, 1, f"column {name!r:.60}", f"one of {', '.join((*wanted, *OPTIONAL[wanted]))}, e0 ..."
            )
    return Columns(
        wanted is TRACKLETS, tuple(n for n in (*wanted[1:], *OPTIONAL[wanted]) if n in names), tuple(dimensions)
    )


def raw_of(
    columns: Columns,
    network: Network,
    cameras: list[str],
    by_name: dict[str, NDArray[np.float64]],
    look: NDArray[np.floating] | None,
    lines: list[int],
    places: list[int],
    faults: list[Fault],
) -> Raw:
    """Rows of a table as detections: of a row of a tracklet its first and its last box."""
    number = {name: k for k, name in enumerate(network.cameras)}
    count = len(cameras)
    camera = np.array([number.get(name, -1) for name in cameras], dtype=np.int64)
    line, row = np.array(lines, dtype=np.int64), np.array(places, dtype=np.int64)
    nothing, ones = np.full(count, np.nan), np.ones(count)
    truth = _truth(by_name["truth"], lines, faults) if "truth" in by_name else None
    if look is not None:
        partly = ~are_looks(look) & ~np.isnan(look).all(1)  # all NaN: there is none
        for k in np.flatnonzero(partly).tolist():
            faults.append((lines[k], NOT_FINITE, "an embedding that is none", A_LOOK))
        look[partly] = np.nan
    ends = []
    for end in ("in_", "out_") if columns.tracklets else ("",):
        frame = by_name[f"frame_{end[:-1]}" if end else "frame"]
        place = [by_name.get(f"{end}{x}", nothing) for x in WORLD]
        confidence = by_name.get("confidence", ones)
        confidence = np.where(np.isnan(confidence), 1.0, confidence)
        ends.append(np.stack([by_name["id"], frame, *(by_name[f"{end}{x}"] for x in BOX), confidence, *place], 1))
    values = np.stack(ends, 1).reshape(-1, 9)
    index = np.repeat(np.arange(count), len(ends))
    if columns.tracklets:
        first, last = by_name["frame_in"], by_name["frame_out"]
        for k in np.flatnonzero(last < first).tolist():
            faults.append(
                (lines[k], IMPOSSIBLE, f"frame_out {last[k]:g} before frame_in {first[k]:g}", "first <= last")
            )
        used = np.stack([last >= first, last > first], 1).reshape(-1)  # one box where a tracklet is one frame long
        used |= np.repeat(np.isnan(first) | np.isnan(last), 2)
        values, index = values[used], index[used]
    unknown = {k: cameras[n][:40] for k, n in enumerate(index.tolist()) if camera[n] < 0}
    look = None if look is None else look[index]
    truth = None if truth is None else truth[index]
    return Raw(camera[index], unknown, values, line[index], row[index], look, truth)


def _truth(column: NDArray[np.float64], lines: list[int], faults: list[Fault]) -> NDArray[np.int64]:
    missing = np.isnan(column)
    whole = missing | ((column == np.floor(column)) & (column >= -1) & (column <= 2**53))
    for k in np.flatnonzero(~whole).tolist():
        faults.append((lines[k], IMPOSSIBLE, f"truth {column[k]:g}", "a whole number from 0 on, or nothing"))
    return np.where(missing | ~whole, -1, column).astype(np.int64)
