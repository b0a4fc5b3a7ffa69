"""Writers: MOT text per camera with global ids, AI City rows, embeddings, the log of drops."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.table_writers import csv_text, detections_table, write_parquet
from examples.mtmc.recordings.tracklets import Dropped, Recording, Track

NAN = float("nan")


Detection = tuple[int, int, list[str], tuple[str, str]]  # frame, id, box and world as text


def _detections(track: Track) -> list[Detection]:
    """A track's rows: boxes to a hundredth of a pixel, places to ten digits, −1 −1 where they are not known."""
    world = track.world if track.world is not None else np.full((len(track.frames), 2), NAN)
    rows = []
    for frame, box, (x, y) in zip(track.frames.tolist(), track.boxes.tolist(), world.tolist(), strict=True):
        size = [max(side, 0.01) for side in box[2:]]  # never written as 0.00, which is no box
        place = ("-1", "-1") if x != x or y != y else (f"{x:.10g}", f"{y:.10g}")
        rows.append((frame, track.id, [f"{side:.2f}" for side in (*box[:2], *size)], place))
    return rows


def mot_text(tracks: list[Track]) -> str:
    """MOTChallenge rows ``frame,id,left,top,width,height,1,x,y,-1`` in order of frames; frames as they were read."""
    rows = sorted((row for track in tracks for row in _detections(track)), key=lambda row: row[:2])
    return "".join(f"{frame},{id},{','.join(box)},1,{x},{y},-1\n" for frame, id, box, (x, y) in rows)


def aicity_text(tracks: list[Track]) -> str:
    """AI City rows ``camera id frame x y w h xworld yworld``, tracks one after another; −1 where no world is known."""
    rows = ((track.camera, row) for track in tracks for row in _detections(track))
    return "".join(f"{camera} {id} {frame} {' '.join(box)} {x} {y}\n" for camera, (frame, id, box, (x, y)) in rows)


def campus_text(tracks: list[Track]) -> str:
    """CAMPUS rows ``id xmin ymin xmax ymax frame lost occluded generated "label"``, tracks one after another."""
    lines = []
    for track in tracks:
        for frame, (left, top, width, height) in zip(track.frames.tolist(), track.boxes.tolist(), strict=True):
            corners = f"{left:.10g} {top:.10g} {left + width:.10g} {top + height:.10g}"
            lines.append(f'{track.id} {corners} {frame} 0 0 0 "PERSON"\n')
    return "".join(lines)


def write_recording(folder: Path, recording: Recording, format: str) -> None:
    """Write tracklets, embeddings and truth as a folder that the readers read, in any of the formats.

    CAMPUS text holds the true tracks alone. The words of AI City rows are parted by spaces: no camera's name may have
    one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    tracklets, truth = list(recording.tracklets), recording.truth
    if format == "aicity":
        spaced = [name for name in recording.network.cameras if name.split() != [name]]
        if spaced:
            raise ValueError(f"camera {spaced[0]!r} has a space, which AI City rows cannot hold; choose another format")
        (folder / "tracks.txt").write_text(aicity_text([*tracklets]), encoding="utf-8")
        if truth:
            (folder / "ground_truth.txt").write_text(aicity_text(truth), encoding="utf-8")
        if recording.has_embeddings:
            np.save(folder / "tracks.npy", np.stack([t.embedding for t in tracklets if t.embedding is not None]))
    elif format == "mot":
        for camera in recording.network.cameras:
            _write_mot_camera(folder, camera, recording)
    elif format == "campus":
        for camera in recording.network.cameras:
            text = campus_text([t for t in truth if t.camera == camera])
            (folder / f"view-{camera}.txt").write_text(text, encoding="utf-8")
    elif format in ("csv", "parquet"):
        for name, rows in (("tracks", tracklets), ("ground_truth", truth)):
            if rows and format == "csv":
                (folder / f"{name}.csv").write_text(csv_text(detections_table(rows)), encoding="utf-8")
            elif rows:
                write_parquet(folder / f"{name}.parquet", detections_table(rows))
    else:
        raise ValueError(f"format is {format!r}; it must be 'aicity', 'mot', 'campus', 'csv' or 'parquet'")


def _write_mot_camera(folder: Path, camera: str, recording: Recording) -> None:
    own = [t for t in recording.tracklets if t.camera == camera]
    true = [t for t in recording.truth if t.camera == camera]
    if any(len(t.frames) and t.frames[0] < 1 for t in (*own, *true)):
        raise ValueError(f"camera {camera!r} has a frame 0; MOTChallenge text counts frames from 1")
    (folder / f"{camera}.txt").write_text(mot_text([*own]), encoding="utf-8")
    if own and recording.has_embeddings:
        order = sorted(own, key=lambda t: (int(t.frames[0]), t.id))  # as the rows first show them
        np.save(folder / f"{camera}.npy", np.stack([t.embedding for t in order if t.embedding is not None]))
    if true:
        (folder / "gt").mkdir(exist_ok=True)
        (folder / "gt" / f"{camera}.txt").write_text(mot_text(true), encoding="utf-8")


def write_tracks(folder: Path, recording: Recording, identity: NDArray[np.int64]) -> None:
    """One MOT text a camera, ids global, counted from 1."""
    folder.mkdir(parents=True, exist_ok=True)
    for camera in recording.network.cameras:
        own = [
            Track(camera, who + 1, t.frames, t.boxes)
            for t, who in zip(recording.tracklets, identity.tolist(), strict=True)
            if t.camera == camera
        ]
        (folder / f"{camera}.txt").write_text(mot_text(own), encoding="utf-8")


def dropped_text(dropped: list[Dropped]) -> str:
    """The log of what was left out and why: the counts first, then every case."""
    count: dict[str, int] = {}
    for drop in dropped:
        count[drop.why] = count.get(drop.why, 0) + drop.count
    head = [f"# {number} x {why}\n" for why, number in sorted(count.items())] or ["# nothing was dropped\n"]
    return "".join(head + [f"{drop.camera}\t{drop.what}\t{drop.why}\n" for drop in dropped])
