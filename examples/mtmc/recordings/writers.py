"""Writers: MOT text per camera with global ids, AI City rows, the table of identities, embeddings, the log of drops."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Dropped, Recording, Track

NAN = float("nan")


def mot_text(tracks: list[Track]) -> str:
    """MOTChallenge rows ``frame,id,left,top,width,height,1,-1,-1,-1`` in order of frames; frames as they were read."""
    rows = [
        (int(frame), track.id, *box)
        for track in tracks
        for frame, box in zip(track.frames, track.boxes.tolist(), strict=True)
    ]
    return "".join(f"{frame},{id},{','.join(f'{x:.2f}' for x in box)},1,-1,-1,-1\n" for frame, id, *box in sorted(rows))


def aicity_text(tracks: list[Track]) -> str:
    """AI City rows ``camera id frame x y w h xworld yworld``, tracks one after another; −1 where no world is known."""
    lines = []
    for track in tracks:
        world = track.world if track.world is not None else np.full((len(track.frames), 2), -1.0)
        for frame, box, place in zip(track.frames, track.boxes.tolist(), world.tolist(), strict=True):
            numbers = " ".join(f"{x:.2f}" for x in box)
            lines.append(f"{track.camera} {track.id} {int(frame)} {numbers} {place[0]:g} {place[1]:g}\n")
    return "".join(lines)


def write_recording(folder: Path, recording: Recording, format: str) -> None:
    """Write tracklets, embeddings and truth as a folder that the readers read ("aicity" or "mot")."""
    folder.mkdir(parents=True, exist_ok=True)
    if format == "aicity":
        (folder / "tracks.txt").write_text(aicity_text(list(recording.tracklets)), encoding="utf-8")
        if recording.truth:
            (folder / "ground_truth.txt").write_text(aicity_text(recording.truth), encoding="utf-8")
        if recording.has_embeddings:
            np.save(
                folder / "tracks.npy", np.stack([t.embedding for t in recording.tracklets if t.embedding is not None])
            )
        return
    if format != "mot":
        raise ValueError(f"format is {format!r}; it must be 'aicity' or 'mot'")
    for camera in recording.network.cameras:
        own = [t for t in recording.tracklets if t.camera == camera]
        (folder / f"{camera}.txt").write_text(mot_text(list(own)), encoding="utf-8")
        if recording.has_embeddings:
            order = sorted(own, key=lambda t: (int(t.frames[0]), t.id))  # as the rows first show them
            np.save(folder / f"{camera}.npy", np.stack([t.embedding for t in order if t.embedding is not None]))
        if recording.truth:
            (folder / "gt").mkdir(exist_ok=True)
            text = mot_text([t for t in recording.truth if t.camera == camera])
            (folder / "gt" / f"{camera}.txt").write_text(text, encoding="utf-8")


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


def identities_csv(
    recording: Recording, identity: NDArray[np.int64], reasons: dict[tuple[int, int], tuple[float, float]]
) -> str:
    """One row a tracklet: its identity, where and when, and why it was joined to the one before.

    ``reasons`` maps (earlier, later) tracklets to (score, prior): log-odds against nobody less the threshold, and the
    prior's part b_ij.
    """
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    head = "identity,camera,tracklet,frame_in,frame_out,time_in,time_out,boxes,after_camera,after_tracklet,score,prior"
    table.writerow([*head.split(","), "truth"])
    last: dict[int, int] = {}
    rows: list[tuple[int, float, list[object]]] = []
    for n, (t, who) in enumerate(zip(recording.tracklets, identity.tolist(), strict=True)):
        before = last.get(who)
        score, prior = reasons.get((before, n), (NAN, NAN)) if before is not None else (NAN, NAN)
        earlier = recording.tracklets[before] if before is not None else None
        cells: list[object] = [
            who + 1,
            t.camera,
            t.id,
            int(t.frames[0]),
            int(t.frames[-1]),
            f"{t.time_in:.3f}",
            f"{t.time_out:.3f}",
            len(t.frames),
            earlier.camera if earlier else "",
            earlier.id if earlier else "",
            "" if np.isnan(score) else f"{score:.3f}",
            "" if np.isnan(prior) else f"{prior:.3f}",
            "" if t.truth is None else t.truth,
        ]
        rows.append((who, t.time_in, cells))
        last[who] = n
    table.writerows(cells for _, _, cells in sorted(rows, key=lambda row: row[:2]))
    return text.getvalue()


def dropped_text(dropped: list[Dropped]) -> str:
    """The log of what was left out and why: the counts first, then every case."""
    count: dict[str, int] = {}
    for drop in dropped:
        count[drop.why] = count.get(drop.why, 0) + drop.count
    head = [f"# {number} x {why}\n" for why, number in sorted(count.items())] or ["# nothing was dropped\n"]
    return "".join(head + [f"{drop.camera}\t{drop.what}\t{drop.why}\n" for drop in dropped])
