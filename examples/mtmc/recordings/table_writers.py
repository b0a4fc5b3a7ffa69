"""Writers of tables (``tables`` says which columns): tracklets with their embeddings, as CSV or Parquet."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from examples.mtmc.recordings.tables import BOX, DETECTIONS, TRACKLETS, WORLD
from examples.mtmc.recordings.tracklets import Track, Tracklet


def detections_table(tracks: Sequence[Track]) -> dict[str, list[Any]]:
    """One row a detection, by column; what no track has is left out. Floats are kept to the last bit."""
    names = [*DETECTIONS, *WORLD, "truth", "embedding"]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for track in tracks:
        count = len(track.frames)
        columns["camera"] += [track.camera] * count
        columns["id"] += [track.id] * count
        columns["frame"] += track.frames.tolist()
        for k, name in enumerate(BOX):
            columns[name] += track.boxes[:, k].tolist()
        world = np.full((count, 2), np.nan) if track.world is None else track.world
        for k, name in enumerate(WORLD):
            columns[name] += [None if np.isnan(x) else x for x in world[:, k].tolist()]
        _unchanging(columns, track, count)
    return _without_empty(columns)


def tracklets_table(tracklets: Sequence[Tracklet]) -> dict[str, list[Any]]:
    """One row a tracklet, by column: its first and its last box."""
    ends = {"in": 0, "out": -1}
    names = [*TRACKLETS, *(f"{end}_{x}" for end in ends for x in WORLD), "truth", "embedding"]
    columns: dict[str, list[Any]] = {name: [] for name in names}
    for t in tracklets:
        columns["camera"].append(t.camera)
        columns["id"].append(t.id)
        for end, row in ends.items():
            columns[f"frame_{end}"].append(int(t.frames[row]))
            for k, name in enumerate(BOX):
                columns[f"{end}_{name}"].append(float(t.boxes[row, k]))
            for k, name in enumerate(WORLD):
                place = np.nan if t.world is None else float(t.world[row, k])
                columns[f"{end}_{name}"].append(None if np.isnan(place) else place)
        _unchanging(columns, t, 1)
    return _without_empty(columns)


def _unchanging(columns: dict[str, list[Any]], track: Track, count: int) -> None:
    tracklet = track if isinstance(track, Tracklet) else None
    columns["truth"] += [None if tracklet is None else tracklet.truth] * count
    look = None if tracklet is None or tracklet.embedding is None else tracklet.embedding.tolist()
    columns["embedding"] += [look] * count


def _without_empty(columns: dict[str, list[Any]]) -> dict[str, list[Any]]:
    required = TRACKLETS if "frame_in" in columns else DETECTIONS
    return {name: cells for name, cells in columns.items() if name in required or any(x is not None for x in cells)}


def csv_text(columns: dict[str, list[Any]]) -> str:
    """A table as CSV with a header; an embedding as columns e0, e1 and so on."""
    text = io.StringIO()
    out = csv.writer(text, lineterminator="\n")
    looks = columns.get("embedding", [])
    length = max((len(look) for look in looks if look is not None), default=0)
    plain = {name: cells for name, cells in columns.items() if name != "embedding"}
    out.writerow([*plain, *(f"e{k}" for k in range(length))])
    for n, cells in enumerate(zip(*plain.values(), strict=True)):
        look = (looks[n] if looks else None) or [None] * length
        out.writerow(["" if x is None else x for x in (*cells, *look)])
    return text.getvalue()


def write_parquet(path: Path, columns: dict[str, list[Any]]) -> None:
    """A table as Parquet; an embedding as one list column."""
    import pyarrow as pa
    from pyarrow import parquet

    kinds = {"camera": pa.string(), "embedding": pa.list_(pa.float64())}
    whole = dict.fromkeys(("id", "frame", "frame_in", "frame_out", "truth"), pa.int64())
    arrays = {n: pa.array(cells, (kinds | whole).get(n, pa.float64())) for n, cells in columns.items()}
    parquet.write_table(pa.table(arrays), path)
