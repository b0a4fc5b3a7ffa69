"""Rows of one id in order, each once: what comes late is put in its place, as far as a buffer of rows allows."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.chunk import Chunk, joined
from examples.mtmc.recordings.cleaning import DUPLICATE, GAP, LATE, OUT_OF_ORDER, Log
from examples.mtmc.recordings.clocks import NEW_IDS

REMEMBERED = 100_000  # ids whose last frame is surely remembered; twice as many at most
ASCENDING = "ascending frames within an id, each once"


class Order:
    """Passes rows on with ascending frames in every id; the last ``slack`` rows wait for those that are late.

    ``gap`` is the longest time in seconds between two rows of an id, or None where ids may be away for any time.
    """

    def __init__(self, network: Network, log: Log, name: str, slack: int, gap: float | None) -> None:
        self.log, self.name, self.slack = log, name, 0 if log.strict else slack
        self.gaps = np.array([np.inf if gap is None else max(gap * c.fps, 1) for c in network.cameras.values()])
        self.waiting: list[Chunk] = []
        self.late: set[int] = set()  # lines that wait out of order
        self.last: dict[tuple[int, int], tuple[int, int]] = {}  # of an id: its latest frame, and how often it began
        self.earlier: dict[tuple[int, int], tuple[int, int]] = {}  # the same of ids that were not seen lately

    def push(self, chunk: Chunk) -> Chunk | None:
        """The rows that wait no longer."""
        chunk = joined([*self.waiting, chunk])
        if self.slack:
            chunk = self._sorted(chunk)
        ready = len(chunk) - self.slack
        self.waiting = [chunk.take(slice(max(ready, 0), None))] if self.slack else []
        return self._ascending(chunk.take(slice(0, ready))) if ready > 0 else None

    def finish(self) -> Chunk | None:
        """The rows that are left."""
        rest, self.waiting = self.waiting, []
        return self._ascending(rest[0]) if rest and len(rest[0]) else None

    def _sorted(self, chunk: Chunk) -> Chunk:
        """Each id's rows by frame, in the places that the id's rows have; but never over a gap."""
        arrival = np.arange(len(chunk))
        came = np.lexsort((arrival, chunk.id, chunk.camera))
        step = np.abs(np.diff(chunk.frame[came], prepend=chunk.frame[came[0]]))
        stretch = np.empty(len(chunk), dtype=np.int64)
        stretch[came] = np.cumsum(step > self.gaps[chunk.camera[came]])
        should = np.lexsort((arrival, chunk.frame, stretch, chunk.id, chunk.camera))
        late = should[came < should]  # rows that go to an earlier place
        if not len(late):
            return chunk
        self.late.update(chunk.line[late].tolist())
        place = np.empty(len(chunk), dtype=np.int64)
        place[came] = should
        return chunk.take(place)

    def _ascending(self, chunk: Chunk) -> Chunk | None:
        keep = np.ones(len(chunk), dtype=bool)
        began = np.zeros(len(chunk), dtype=np.int64)
        line, gaps = chunk.line.tolist(), self.gaps.tolist()
        rows = zip(chunk.camera.tolist(), chunk.id.tolist(), chunk.frame.tolist(), strict=True)
        for k, (camera, id, frame) in enumerate(rows):
            key = (camera, id)
            before = self.last.get(key) or self.earlier.get(key)
            latest, starts = before or (frame - 1, 0)
            late = line[k] in self.late
            self.late.discard(line[k])
            away = frame - latest
            if abs(away) > gaps[camera]:
                found = f"frame {frame} of id {id} after frame {latest}"
                expected = ASCENDING if away < 0 else "a tracklet: no tracker bridges so long a gap within an id"
                self.log.add(GAP, self.name, line[k], found, expected)
                starts += 1
            elif away <= 0:
                kind = DUPLICATE if away == 0 else LATE
                found = f"frame {frame} of id {id} after frame {latest}"
                self.log.add(kind, self.name, line[k], found, ASCENDING)
                keep[k] = False
                continue
            if late:
                self.log.add(OUT_OF_ORDER, self.name, line[k], f"frame {frame} of id {id} out of order", ASCENDING)
            began[k] = starts
            self.last[key] = (frame, starts)
        if len(self.last) > REMEMBERED:
            self.last, self.earlier = {}, self.last
        if keep.all() and not began.any():
            return chunk
        kept = replace(chunk, id=chunk.id + NEW_IDS * began).take(keep)
        return kept if len(kept) else None
