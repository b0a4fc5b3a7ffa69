"""Matches of tracklets as a table: who was seen again where, as people label it or as ``track`` found it.

    camera_from,tracklet_from,camera_to,tracklet_to[,score]      an empty tracklet_to: was not seen again

``identities.csv`` of ``track`` is one too: its columns camera, tracklet, after_camera, after_tracklet and score (the
log-odds of the match; 3 is 95 %).
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from scipy.cluster.hierarchy import DisjointSet

from examples.mtmc.errors import InputError
from examples.mtmc.recordings.cleaning import MALFORMED, UNKNOWN, Log
from examples.mtmc.recordings.text import blocks
from examples.mtmc.recordings.tracklets import Recording

LABELS = ("camera_from", "tracklet_from", "camera_to", "tracklet_to")
FOUND = ("after_camera", "after_tracklet", "camera", "tracklet")
End = tuple[str, int]
Match = tuple[int, End, End | None, float | None]  # line, from, to, score


def labelled_by(
    path: Path, recording: Recording, least_score: float | None = None, log: Log | None = None
) -> tuple[Recording, bool]:
    """The recording of the tracklets that the table names, with identities as its matches make them; and whether the
    table says of everyone whether they were seen again (labels do; matches that were found do not).

    Matches with a score below ``least_score`` are passed over. A line that names a tracklet which the recording has
    not is a fault.
    """
    log = log or Log(strict=True)
    place = {(t.camera, t.id): n for n, t in enumerate(recording.tracklets)}
    named = DisjointSet()
    complete, best = True, -math.inf
    for line, start, end, score in _matches(path, log):
        best = max(best, -math.inf if score is None else score)
        if least_score is not None and (score is None or score < least_score):
            complete = False
            continue
        complete &= score is None
        missing = [who for who in (start, end) if who is not None and who not in place]
        if missing:
            found = f"tracklet {missing[0][1]} of camera {missing[0][0]}"
            log.add(UNKNOWN, path, line, found, "a tracklet of the recording")
            continue
        named.add(place[start])
        if end is not None:
            named.add(place[end])
            named.merge(place[start], place[end])
    if least_score is not None and best < least_score:
        found = "no match that has a score" if best == -math.inf else f"no match with a score above {best:g}"
        raise InputError(path, None, found, f"one of at least {least_score:g} (--least-score)")
    kept = []
    for identity, members in enumerate(named.subsets(), 1):
        kept += [replace(recording.tracklets[n], truth=identity) for n in members]
    if not kept:
        raise InputError(path, None, "no match that counts", "at least one")
    return Recording(recording.network, kept), complete


def _matches(path: Path, log: Log) -> Iterator[Match]:
    if not path.is_file():
        raise InputError(path, None, "no such file", "a table of matches")
    names: list[str] = []
    columns: list[int] = []
    for block in blocks(path, log):
        for line, text in block:
            try:
                cells = next(csv.reader((text,), strict=True))
            except csv.Error:
                cells = []
            if not names:
                names = [cell.strip() for cell in cells]
                columns = _columns(path, names)
                continue
            if len(cells) != len(names):
                log.add(MALFORMED, path, line, f"{len(cells)} columns", f"{len(names)}, as the header has")
                continue
            camera_from, from_, camera_to, to, score = (cells[k].strip() if k >= 0 else "" for k in columns)
            if not from_ and names[columns[0]] == FOUND[0]:
                continue  # the first of an identity follows nobody
            try:
                start = (camera_from, int(from_))
                end = (camera_to, int(to)) if to else None
                value = float(score) if score else None
                if value is not None and not math.isfinite(value):
                    raise ValueError
                yield line, start, end, value
            except ValueError:
                expected = "whole numbers of tracklets, and a finite number as a score"
                log.add(MALFORMED, path, line, f"{from_!r:.30}, {to!r:.30}, {score!r:.30}", expected)


def _columns(path: Path, names: list[str]) -> list[int]:
    for wanted in (LABELS, FOUND):
        if all(name in names for name in wanted):
            return [names.index(n) if n in names else -1 for n in (*wanted, "score")]
    raise InputError(path, 1, f"columns {', '.join(names):.200}", f"columns {', '.join(LABELS)}")
