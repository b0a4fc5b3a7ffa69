"""Readers: a folder of files in one of the formats (``folders``) in, a recording out, or one line that says why not.

All of them read through ``stream.chunks``, so that a file is checked and cleaned in the same way whoever reads it:
strict by default, where the first fault is an error with file and line; with a tolerant ``cleaning.Log`` faults are
left out and counted.

In CAMPUS text ids are global: they become the truth, and tracklets are cut where a person is out of view for more than
a second.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import numpy as np

from examples.mtmc.errors import InputError
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.cleaning import DUPLICATE, SILENT, Log
from examples.mtmc.recordings.folders import Source, shares, sources
from examples.mtmc.recordings.gathering import Gathering
from examples.mtmc.recordings.labels import label
from examples.mtmc.recordings.silence import silences
from examples.mtmc.recordings.stream import FORMATS, JUMP, chunks
from examples.mtmc.recordings.text import Progress
from examples.mtmc.recordings.tracklets import Dropped, Recording, Track, Tracklet

__all__ = ["FORMATS", "read"]

CAMPUS_GAP = 30  # frames, a second


def read(
    folder: Path,
    format: str,
    network: Network,
    least: int = 1,
    log: Log | None = None,
    progress: Progress | None = None,
) -> Recording:
    """Read a folder; tracklets of fewer than ``least`` boxes are dropped and logged.

    ``log``: ``Log()`` counts faults and goes on; the default is ``Log(strict=True)``.
    """
    log = Log(strict=True) if log is None else log
    own, true = sources(folder, format, network, log)
    told = shares(progress, [*own, *true])
    tracklets: list[Tracklet] = []
    truth: list[Track] = []
    if format == "campus":
        for source in own:
            tracks = _gathered([source], format, network, log, told, jump=None).tracks()
            truth += tracks
            tracklets += _cut(tracks, network)
    else:
        tracklets = _each_id_in_one_file(own, format, network, log, told)
        truth = _gathered(true, format, network, log, told, jump=None).tracks()
    _every_camera(folder, tracklets, network, log)
    kept, dropped = _long_enough(tracklets, least)
    _one_length(folder, kept)
    if truth and all(t.truth is None for t in kept):  # what a table says itself stands
        kept = label(kept, truth)
    recording = Recording(network, kept, truth)
    for camera, start, end in silences(recording):
        found = f"nothing of camera {camera} from {start:.0f} to {end:.0f} s"
        log.note(SILENT, folder, None, found, "tracklets, as the other cameras have them")
    recording.dropped = dropped + log.dropped()
    return recording


def _gathered(
    files: Iterable[Source],
    format: str,
    network: Network,
    log: Log,
    told: dict[Source, Progress | None],
    jump: float | None = JUMP,
) -> Gathering:
    gathering = Gathering(network)
    for source in files:
        for chunk in chunks(source.path, format, network, log, camera=source.camera, jump=jump, progress=told[source]):
            gathering.add(chunk)
    return gathering


def _each_id_in_one_file(
    own: list[Source], format: str, network: Network, log: Log, told: dict[Source, Progress | None]
) -> list[Tracklet]:
    tracklets: list[Tracklet] = []
    taken: dict[tuple[str, int], Path] = {}
    for source in own:
        for tracklet in _gathered([source], format, network, log, told).tracklets():
            key = (tracklet.camera, tracklet.id)
            if taken.setdefault(key, source.path) != source.path:
                found, expected = f"id {key[1]} of camera {key[0]}", f"an id that {taken[key].name} has not"
                log.add(DUPLICATE, source.path, None, found, expected, len(tracklet.frames))
            else:
                tracklets.append(tracklet)
    return tracklets


def _every_camera(folder: Path, tracklets: list[Tracklet], network: Network, log: Log) -> None:
    seen = {t.camera for t in tracklets}
    for camera in network.cameras:
        if camera not in seen:
            log.add(SILENT, folder, None, f"no rows of camera {camera}", "rows of every camera of the links file")


def _long_enough(tracklets: list[Tracklet], least: int) -> tuple[list[Tracklet], list[Dropped]]:
    kept, dropped = [], []
    for tracklet in tracklets:
        if len(tracklet.frames) < least:
            what = f"tracklet {tracklet.id} at frame {int(tracklet.frames[0])}"
            dropped.append(Dropped(tracklet.camera, what, f"{len(tracklet.frames)} boxes, fewer than {least}"))
        else:
            kept.append(tracklet)
    return kept, dropped


def _one_length(folder: Path, tracklets: list[Tracklet]) -> None:
    lengths = {len(t.embedding): t.camera for t in tracklets if t.embedding is not None}
    if len(lengths) > 1:
        found = ", ".join(f"{length} numbers in camera {camera}" for length, camera in lengths.items())
        raise InputError(folder, None, f"embeddings of {found}", "embeddings of one length")


def _cut(tracks: list[Track], network: Network) -> list[Tracklet]:
    """Tracklets as a single-camera tracker would give them: a new one after each longer gap."""
    pieces = []
    for track in tracks:
        cuts = np.flatnonzero(np.diff(track.frames) > CAMPUS_GAP) + 1
        pieces += [
            (track, f, b) for f, b in zip(np.split(track.frames, cuts), np.split(track.boxes, cuts), strict=True)
        ]
    pieces.sort(key=lambda piece: int(piece[1][0]))
    tracklets = []
    for n, (track, frames, boxes) in enumerate(pieces, 1):
        first, last = network.cameras[track.camera].seconds(frames[[0, -1]]).tolist()
        tracklet = Tracklet(track.camera, n, frames, boxes, None, first, last, truth=track.id)
        tracklets.append(tracklet.in_zones(network))
    return tracklets
