"""Rows become tracklets: who is in view, who has ended and is remembered, who waits for an identity."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.online.arrivals import Arrivals
from examples.mtmc.online.live import Live, Memory
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import DUPLICATE, LATE, SILENT, Log

SILENCE = 30.0  # seconds after which a camera without rows is noted


class Sightings:
    """The tracklets of all cameras as they begin, go on and end.

    ``latency`` sets the deadline of those that begin; ``patience`` is how long one may be out of sight, ``late`` how
    late a row may come. Rows that are left out, and cameras that fall silent, are noted in ``log``.
    """

    def __init__(self, network: Network, latency: float, patience: float, log: Log) -> None:
        self.network, self.latency, self.patience, self.log = network, latency, patience, log
        self.late = max(latency, patience)
        self.undecided: list[Live] = []
        self.doubted: list[Live] = []  # began an identity, have ended since: perhaps they followed somebody after all
        self.closed: list[Live] = []  # decided and ended: nothing about them will change
        self.names = list(network.cameras)
        self.memory = {name: Memory([x for x in network.links if x.source == name]) for name in self.names}
        self.arrivals = Arrivals(network)
        self.newest = -np.inf  # the latest row
        self._seen = dict.fromkeys(self.names, -np.inf)  # the latest row of every camera
        self._silent: set[str] = set()

    def take(self, rows: Chunk, now: float) -> None:
        """Rows of one step of time."""
        late = rows.time < now - self.late
        if late.any():
            found = f"a row of second {rows.time[late][0]:.2f} at second {now:.2f}"
            self._note(LATE, rows, found, f"rows late by at most {self.late:g} s", late)
            rows = rows.take(~late)
            if not len(rows):
                return
        self.newest = max(self.newest, float(rows.time.max()))
        rows = rows.take(np.lexsort((rows.frame, rows.id, rows.camera)))
        same = (np.diff(rows.camera) == 0) & (np.diff(rows.id) == 0)
        twice = np.concatenate([[False], same & (np.diff(rows.frame) == 0)])
        if twice.any():
            self._note(DUPLICATE, rows, "a frame of an id twice", "every frame once", twice)
            rows = rows.take(~twice)
        table = np.column_stack([rows.frame, rows.box, rows.world])
        cuts = np.flatnonzero((np.diff(rows.camera) != 0) | (np.diff(rows.id) != 0)) + 1
        camera, id, frame, time = rows.camera.tolist(), rows.id.tolist(), rows.frame.tolist(), rows.time.tolist()
        for first, last in pairwise([0, *cuts.tolist(), len(rows)]):
            name = self.names[camera[first]]
            self._seen[name] = max(self._seen[name], time[last - 1])
            tracklet = self.memory[name].view.get(id[first])
            goes_on = tracklet is not None and frame[first] > tracklet.last_frame
            if tracklet is None or not goes_on or time[first] - tracklet.time_out > self.patience:
                self._begin(rows.take(slice(first, last)), table[first:last], tracklet)
                continue
            tracklet.add(table[first:last], time[last - 1])
            if rows.embedding is not None:
                tracklet.see(rows.embedding[first:last])

    def _note(self, kind: str, rows: Chunk, found: str, expected: str, which: NDArray[np.bool_]) -> None:
        if not which.any():
            return
        line = int(rows.line[which][0])
        self.log.note(kind, "stream", line if line > 0 else None, found, expected, int(which.sum()))

    def _begin(self, rows: Chunk, table: NDArray[np.float64], tracklet: Live | None) -> None:
        """Rows of one id, in order of their frames, that do not simply go on with its ``tracklet``."""
        camera, id = self.names[int(rows.camera[0])], int(rows.id[0])
        memory = self.memory[camera]
        left_out = np.zeros(len(rows), dtype=bool)
        if tracklet is not None and float(rows.time[0]) - tracklet.time_out > self.patience:
            self.end(tracklet)
            tracklet = None
        if tracklet is None:
            before = memory.last_of.get(id)
            if before is not None:
                left_out = rows.time <= before.time_out
                self._note(LATE, rows, f"a row of id {id} of camera {camera} that had ended", "rows in time", left_out)
            if left_out.all():
                return
            first, placed = int(left_out.argmin()), bool(np.isfinite(rows.world).all())
            part, start = (0 if before is None else before.part + 1), float(rows.time[first])
            tracklet = Live(camera, id, part, start, start + self.latency, placed)
            memory.view[id] = memory.last_of[id] = tracklet
            self.undecided.append(tracklet)
            self.arrivals.start(tracklet)
        else:
            # Late ones find their place; a start is moved back no more, since others may have been told of it.
            twice = np.isin(rows.frame, tracklet.rows[: tracklet.count, 0])
            early = ~twice & (rows.time < tracklet.time_in)
            self._note(DUPLICATE, rows, f"a frame of id {id} of camera {camera} twice", "every frame once", twice)
            self._note(LATE, rows, f"a row before the first of id {id} of camera {camera}", "that one first", early)
            left_out = twice | early
            if left_out.all():
                return
        tracklet.add(table[~left_out], float(rows.time[~left_out][-1]))
        if rows.embedding is not None:
            tracklet.see(rows.embedding[~left_out])

    def end(self, tracklet: Live) -> None:
        """Nobody sees it any more."""
        memory = self.memory[tracklet.camera]
        del memory.view[tracklet.id]
        tracklet.end(self.network)
        self.arrivals.end(tracklet)
        if not memory.spent(tracklet):
            memory.remember(tracklet)
        if tracklet.first_of is not None:
            self.doubted.append(tracklet)
        if tracklet.person is not None:
            self.closed.append(tracklet)

    def end_all(self, now: float) -> None:
        """What is out of sight has ended. A camera's own clock says so; where it is silent, that of the others does."""
        for name, memory in self.memory.items():
            clock = max(self._seen[name], now - self.late)
            for tracklet in [t for t in memory.view.values() if clock - t.time_out > self.patience]:
                self.end(tracklet)

    def finish(self) -> None:
        """No more rows will come."""
        for name in self.names:
            for tracklet in list(self.memory[name].view.values()):
                self.end(tracklet)
            if self._seen[name] == -np.inf:
                self.log.note(
                    SILENT, "stream", None, f"no row of camera {name}", "rows of every camera of the links file"
                )

    def tidy(self, now: float) -> None:
        """Note silent cameras, forget what no window reaches any more."""
        oldest = min((t.time_in for t in self.undecided), default=now)
        for name, memory in self.memory.items():
            silent = now - self._seen[name]
            if silent <= SILENCE:
                self._silent.discard(name)
            elif name not in self._silent and self._seen[name] > -np.inf:
                self._silent.add(name)
                self.log.note(SILENT, "stream", None, f"no row of camera {name} since {self._seen[name]:.1f} s", "rows")
            memory.forget(min(oldest, now - self.late) - memory.horizon - self.patience)
        self.arrivals.forget(min(oldest, now - self.late))
        self._forget_meetings(now)

    def view(self) -> list[Live]:
        """Those in view."""
        return [t for memory in self.memory.values() for t in memory.view.values()]

    def _forget_meetings(self, now: float) -> None:
        """Nobody who is or will be here can have met those who ended before all in view, or still in doubt, came."""
        since = min((t.time_in for t in [*self.undecided, *self.doubted, *self.view()]), default=now)
        since = min(since, now - self.late)
        for memory in self.memory.values():
            for tracklet in memory.ended:
                if tracklet.person is not None:
                    tracklet.person.body.forget(since)
