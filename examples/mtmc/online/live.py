"""Tracklets as they grow, and the cameras' memory of those that ended, bounded by the windows of the links."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.slots import KINDS, kind_of
from examples.mtmc.network.network import Link, Network
from examples.mtmc.recordings.tracklets import Tracklet

ROW = ("frame", "left", "top", "width", "height", "x", "y")
REUSE = 120.0  # seconds after which an id may be used anew


class Live:
    """One tracklet: its rows so far, what was decided about it, and whether it may still go on."""

    __slots__ = (
        "before", "camera", "count", "deadline",
        "ended", "first_of", "id", "last_frame", "look_sum", "looked", "part", "person",
        "placed", "rows", "taken", "time_in", "time_out", "whole",
    )  # fmt: skip

    def __init__(self, camera: str, id: int, part: int, time: float, deadline: float, placed: bool) -> None:
        self.camera, self.id, self.part, self.placed = camera, id, part, placed
        self.time_in = self.time_out = time
        self.deadline = deadline
        self.rows = np.empty((16, len(ROW)))
        self.count, self.last_frame = 0, -1
        self.look_sum: NDArray[np.float64] | None = None  # of ``looked`` embeddings
        self.looked = 0
        self.person: Person | None = None  # once decided
        self.taken: set[str] = set()  # slots (``Memory.slot``) in which another tracklet follows it
        self.before: list[Live] = []  # whom it follows; nobody remembers more than two generations
        self.ended = False
        self.first_of: Person | None = None  # the identity that it began, while that may yet turn out to be older
        self.whole: Tracklet | None = None  # once ended

    def add(self, rows: NDArray[np.float64], time_out: float) -> None:
        """Rows ``[n, 7]`` as ``ROW`` names them, in order of their frames, none seen before."""
        count, need = self.count, self.count + len(rows)
        if need > len(self.rows):
            larger = np.empty((max(need, 2 * len(self.rows)), len(ROW)))
            larger[:count] = self.rows[:count]
            self.rows = larger
        self.rows[count:need] = rows
        self.count = need
        self.time_out = max(self.time_out, time_out)
        if rows[0, 0] < self.last_frame:  # they came late
            own = self.rows[:need]
            self.rows[:need] = own[np.argsort(own[:, 0], kind="stable")]
        self.last_frame = int(self.rows[need - 1, 0])

    def see(self, embeddings: NDArray[np.generic]) -> None:
        """Embeddings of rows: the look is the mean of all of them."""
        self.looked += len(embeddings)
        total = embeddings.sum(0, dtype=np.float64)
        self.look_sum = total if self.look_sum is None else self.look_sum + total

    @property
    def look(self) -> NDArray[np.float64] | None:
        """How it looks, as far as it was seen."""
        return None if self.look_sum is None else self.look_sum / self.looked

    def tracklet(self, network: Network) -> Tracklet:
        """What is known of it now, in the form that recordings have."""
        if self.whole is not None:
            return self.whole
        rows = self.rows[: self.count]
        return Tracklet(
            self.camera,
            self.id,
            rows[:, 0].astype(np.int64),
            rows[:, 1:5],
            rows[:, 5:7] if self.placed else None,
            self.time_in,
            self.time_out,
            self.look,
        ).in_zones(network)

    def end(self, network: Network) -> None:
        """No more rows will come: keep what is known, and no spare room."""
        self.rows = self.rows[: self.count].copy()
        self.whole = self.tracklet(network)
        self.ended = True

    @property
    def order(self) -> tuple[float, float, str, int, int]:
        """The order of a recording's tracklets."""
        return (self.time_in, self.time_out, self.camera, self.id, self.part)


class Body:
    """Where somebody was when: the tracklets of one identity, or of several that an alias says are one."""

    __slots__ = ("persons", "tracklets")

    def __init__(self, person: Person) -> None:
        self.persons = [person]
        self.tracklets: list[Live] = []

    def swallow(self, other: Body) -> None:
        """Both are one."""
        self.tracklets = other.tracklets + self.tracklets
        self.persons += other.persons
        for person in other.persons:
            person.body = self

    def forget(self, since: float) -> None:
        """What ended before is met by nobody any more."""
        self.tracklets = [t for t in self.tracklets if not t.ended or t.time_out >= since]


class Person:
    """A global identity: its number, and where it was."""

    __slots__ = ("body", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.body = Body(self)


class Memory:
    """Tracklets of one camera that others may follow: those in view, and those that ended within its windows."""

    def __init__(self, links: list[Link]) -> None:
        self.slots = {slot_of(x) for x in links}
        self.horizon = max((x.window[1] for x in links), default=0.0)
        self.enter = any(x.measure == "enter" for x in links)
        self.view: dict[int, Live] = {}
        self.ended: list[Live] = []  # in order of their ends
        self.last_of: dict[int, Live] = {}  # the last tracklet of every id not yet forgotten

    def spent(self, tracklet: Live) -> bool:
        """Whether nobody can follow it any more."""
        return self.slots <= tracklet.taken

    def remember(self, tracklet: Live) -> None:
        """It ended."""
        insort(self.ended, tracklet, key=_time_out)

    def between(self, low: float, high: float, entering: bool) -> Iterator[Live]:
        """Those whose end (or start) so far lies within ``[low, high]`` and that nobody follows yet."""
        for t in self.ended[bisect_left(self.ended, low, key=_time_out) :]:
            if t.time_out > high and not entering:
                break
            if not self.spent(t) and (not entering or low <= t.time_in <= high):
                yield t
        for t in self.view.values():
            if not self.spent(t) and low <= (t.time_in if entering else t.time_out) <= high:
                yield t

    def forget(self, before: float) -> None:
        """Those whose windows have closed, and those that were taken, are of no more use."""
        self.ended = [t for t in self.ended[bisect_left(self.ended, before, key=_time_out) :] if not self.spent(t)]
        before = min(before, before + self.horizon - REUSE)
        self.last_of = {id: t for id, t in self.last_of.items() if not t.ended or t.time_out >= before}


def slot_of(link: Link) -> str:
    """The slot that a follower along a link takes: one for what comes in sequence, one for each overlapping camera."""
    return link.target if KINDS[kind_of(link)] == "overlap" else ""


def _time_out(tracklet: Live) -> float:
    return tracklet.time_out
