"""Readers: AI City rows, MOTChallenge text, CAMPUS text. A folder in, a recording out, or one line that says why not.

    aicity   *.txt: camera id frame x y w h xworld yworld; ids are tracklets of their camera
             ground_truth.txt, optional: the same rows with global ids
    mot      CAMERA.txt: frame,id,left,top,width,height,conf,x,y,z; frames count from 1
             gt/CAMERA.txt, optional: the same rows with global ids
    campus   view-CAMERA.txt or .txt.gz: id xmin ymin xmax ymax frame lost occluded generated "label"; ids are global:
             they become the truth, and tracklets are cut where a person is out of view for more than a second

Embeddings lie beside a file of tracklets under the same name, ending in .npy or .npz.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.embeddings import embeddings_beside, read_embeddings
from examples.mtmc.recordings.rows import Gathered, Rows, lines
from examples.mtmc.recordings.tracklets import Dropped, Recording, Track, Tracklet
from examples.mtmc.scoring.evaluate import iou

FORMATS = ("aicity", "mot", "campus")
CAMPUS_GAP = 30  # frames, a second
Key = tuple[str, int]


def read(folder: Path, format: str, network: Network, least: int = 1) -> Recording:
    """Read a folder in one of the formats; tracklets of fewer than ``least`` boxes are dropped and logged."""
    if not folder.is_dir():
        raise InputError(folder, None, "no such folder", f"a folder of {format} files")
    dropped: list[Dropped] = []
    if format == "aicity":
        tracklets, truth = _aicity(folder, network)
    elif format == "mot":
        tracklets, truth = _mot(folder, network, dropped)
    elif format == "campus":
        tracklets, truth = _campus(folder, network, dropped)
    else:
        raise ValueError(f"format is {format!r}; it must be one of {', '.join(FORMATS)}")
    seen = Counter(t.camera for t in tracklets)
    for camera in network.cameras:
        if camera not in seen:
            raise InputError(folder, None, f"no rows of camera {camera}", "rows of every camera of the links file")
    kept = []
    for tracklet in tracklets:
        if len(tracklet.frames) < least:
            what = f"tracklet {tracklet.id} at frame {int(tracklet.frames[0])}"
            dropped.append(Dropped(tracklet.camera, what, f"{len(tracklet.frames)} boxes, fewer than {least}"))
        else:
            kept.append(tracklet)
    lengths = {len(t.embedding): t.camera for t in kept if t.embedding is not None}
    if len(lengths) > 1:
        found = ", ".join(f"{length} numbers in camera {camera}" for length, camera in lengths.items())
        raise InputError(folder, None, f"embeddings of {found}", "embeddings of one length")
    if truth and format != "campus":
        kept = label(kept, truth)
    return Recording(network, kept, truth, dropped)


def _aicity(folder: Path, network: Network) -> tuple[list[Tracklet], list[Track]]:
    paths = sorted(path for path in folder.glob("*.txt") if path.name != "ground_truth.txt")
    if not paths:
        raise InputError(folder, None, "no .txt file", "AI City rows (camera id frame x y w h xworld yworld)")
    tracklets: list[Tracklet] = []
    taken: dict[Key, Path] = {}
    for path in paths:
        gathered = _aicity_rows(path, network)
        for key in gathered.frames:
            if key in taken:
                raise InputError(path, None, f"id {key[1]} of camera {key[0]}", f"an id that {taken[key].name} has not")
            taken[key] = path
        tracklets += _tracklets(path, gathered, network)
    truth_path = folder / "ground_truth.txt"
    return tracklets, _tracks(_aicity_rows(truth_path, network)) if truth_path.is_file() else []


def _aicity_rows(path: Path, network: Network) -> Gathered:
    rows = Rows(path)
    gathered = Gathered(rows)
    for rows.line, line in lines(path):
        cells = line.split()
        if len(cells) != 9:
            raise rows.wrong(f"{len(cells)} columns", "9: camera id frame x y w h xworld yworld")
        camera = known_camera(cells[0], network, rows)
        id, frame = rows.whole(cells[1], "id", 0), rows.whole(cells[2], "frame", 0)
        box = rows.box(cells[3:7])
        try:
            world = (float(cells[7]), float(cells[8]))
        except ValueError:
            raise rows.wrong(f"world {' '.join(cells[7:])[:40]!r}", "two numbers") from None
        gathered.add(camera, id, frame, (*box, *world))
    return _not_empty(gathered)


def known_camera(name: str, network: Network, rows: Rows) -> str:
    """The camera that a row names, as the links file names it."""
    if name in network.cameras:
        return name
    raise rows.wrong(f"camera {name[:40]!r}", f"a camera of the links file ({', '.join(network.cameras)})")


def _mot(folder: Path, network: Network, dropped: list[Dropped]) -> tuple[list[Tracklet], list[Track]]:
    for path in sorted(folder.glob("*.txt")):
        if path.stem not in network.cameras:
            expected = f"the name of a camera of the links file ({', '.join(network.cameras)})"
            raise InputError(path, None, f"an unknown camera {path.stem}", expected)
    tracklets, truth = [], []
    for camera in network.cameras:
        path = folder / f"{camera}.txt"
        tracklets += _tracklets(path, _mot_rows(path, camera, dropped), network)
        truth_path = folder / "gt" / f"{camera}.txt"
        if truth_path.is_file():
            truth += _tracks(_mot_rows(truth_path, camera, dropped))
    return tracklets, truth


def _mot_rows(path: Path, camera: str, dropped: list[Dropped]) -> Gathered:
    rows = Rows(path)
    gathered = Gathered(rows)
    for rows.line, line in lines(path):
        cells = line.split(",")
        if not 6 <= len(cells) <= 10:
            raise rows.wrong(f"{len(cells)} columns", "6 to 10: frame,id,left,top,width,height,conf,x,y,z")
        # A file that counts from 0 is reported, never shifted in silence.
        frame, id = rows.whole(cells[0], "frame", 1), rows.whole(cells[1], "id", 0)
        gathered.add(camera, id, frame, rows.box(cells[2:6]))
    return _not_empty(gathered)


def _campus(folder: Path, network: Network, dropped: list[Dropped]) -> tuple[list[Tracklet], list[Track]]:
    tracklets: list[Tracklet] = []
    truth: list[Track] = []
    for path in sorted(folder.glob("view-*.txt*")):
        camera = path.name.removeprefix("view-").removesuffix(".gz").removesuffix(".txt")
        if camera not in network.cameras:
            expected = f"the name of a camera of the links file ({', '.join(network.cameras)})"
            raise InputError(path, None, f"an unknown camera {camera}", expected)
    for camera in network.cameras:
        plain = folder / f"view-{camera}.txt"
        path = plain if plain.is_file() else plain.with_name(plain.name + ".gz")
        rows = Rows(path)
        gathered = Gathered(rows)
        lost = 0
        for rows.line, line in lines(path):
            cells = line.split(maxsplit=9)
            if len(cells) != 10:
                expected = '10: id xmin ymin xmax ymax frame lost occluded generated "label"'
                raise rows.wrong(f"{len(cells)} columns", expected)
            id, frame = rows.whole(cells[0], "id", 0), rows.whole(cells[5], "frame", 0)
            if rows.whole(cells[6], "lost", 0):
                lost += 1
                continue
            try:
                x0, y0, x1, y1 = (float(cell) for cell in cells[1:5])
            except ValueError:
                raise rows.wrong(f"box {' '.join(cells[1:5])[:60]!r}", "four numbers") from None
            gathered.add(camera, id, frame, rows.box([str(x0), str(y0), str(x1 - x0), str(y1 - y0)]))
        dropped.append(Dropped(camera, f"{lost} rows", "marked lost: out of view"))
        tracks = _tracks(_not_empty(gathered))
        truth += tracks
        tracklets += _cut(tracks, network)
    return tracklets, truth


def _cut(tracks: list[Track], network: Network) -> list[Tracklet]:
    """Tracklets as a single-camera tracker would give them: a new one after each longer gap."""
    pieces = []
    for track in tracks:
        cuts = np.flatnonzero(np.diff(track.frames) > CAMPUS_GAP) + 1
        pieces += [
            (track, f, b) for f, b in zip(np.split(track.frames, cuts), np.split(track.boxes, cuts), strict=True)
        ]
    pieces.sort(key=lambda piece: int(piece[1][0]))
    return [
        Tracklet(track.camera, n, f, b, None, *_span(network, track.camera, f), truth=track.id)
        for n, (track, f, b) in enumerate(pieces, 1)
    ]


def _span(network: Network, camera: str, frames: NDArray[np.int64]) -> tuple[float, float]:
    first, last = network.cameras[camera].seconds(frames[[0, -1]]).tolist()
    return first, last


def _tracklets(path: Path, gathered: Gathered, network: Network) -> list[Tracklet]:
    beside = embeddings_beside(path)
    looks = read_embeddings(beside, gathered) if beside else {}
    result = []
    for key in gathered.frames:
        frames, values = gathered.track(key)
        world = values[:, 4:] if values.shape[1] > 4 else None
        span = _span(network, key[0], frames)
        result.append(Tracklet(key[0], key[1], frames, values[:, :4], world, *span, embedding=looks.get(key)))
    return result


def _tracks(gathered: Gathered) -> list[Track]:
    tracks = []
    for camera, id in gathered.frames:
        frames, values = gathered.track((camera, id))
        tracks.append(Track(camera, id, frames, values[:, :4], values[:, 4:] if values.shape[1] > 4 else None))
    return tracks


def _not_empty(gathered: Gathered) -> Gathered:
    if not gathered.count:
        raise InputError(gathered.rows.path, None, "no rows", "at least one row: the camera is empty")
    return gathered


def label(tracklets: list[Tracklet], truth: list[Track]) -> list[Tracklet]:
    """Each tracklet with the identity that most of its boxes show (IoU of at least 0.5), or None."""
    at: dict[tuple[str, int], list[tuple[int, NDArray[np.float64]]]] = {}
    for track in truth:
        for frame, box in zip(track.frames.tolist(), track.boxes, strict=True):
            at.setdefault((track.camera, frame), []).append((track.id, box))
    labelled = []
    for tracklet in tracklets:
        votes: Counter[int] = Counter()
        for frame, box in zip(tracklet.frames.tolist(), tracklet.boxes, strict=True):
            there = at.get((tracklet.camera, frame), [])
            if there:
                overlap = iou(box[None], np.stack([b for _, b in there]))[0]
                if overlap.max() >= 0.5:
                    votes[there[int(overlap.argmax())][0]] += 1
        best = votes.most_common(1)
        who = best[0][0] if best and best[0][1] * 2 >= len(tracklet.frames) else None
        labelled.append(replace(tracklet, truth=who))
    return labelled
