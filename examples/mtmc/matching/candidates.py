"""Which tracklet may follow which: only along a directed link, within its window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Recording, Tracklet


@dataclass(frozen=True, eq=False)
class Candidates:
    """Pairs (earlier, later) of tracklets: ``source [E]``, ``target [E]``, ``link [E]`` into the network's links,
    and ``delay [E]`` in seconds as the link measures it."""

    source: NDArray[np.int64]
    target: NDArray[np.int64]
    link: NDArray[np.int64]
    delay: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.source)

    def rivals(self, count: int) -> NDArray[np.int64]:
        """How many candidates each of ``count`` later tracklets has."""
        return np.bincount(self.target, minlength=count)


def candidates(recording: Recording) -> Candidates:
    """All pairs that a link and its window allow, in the order of the links."""
    tracklets = recording.tracklets
    by_camera: dict[str, list[int]] = {}
    for n, tracklet in enumerate(tracklets):
        by_camera.setdefault(tracklet.camera, []).append(n)
    time_in = np.array([t.time_in for t in tracklets])
    time_out = np.array([t.time_out for t in tracklets])
    parts: list[tuple[NDArray[np.int64], NDArray[np.int64], int]] = []
    for number, link in enumerate(recording.network.links):
        sources = np.array(by_camera.get(link.source, []), dtype=np.int64)
        targets = np.array(by_camera.get(link.target, []), dtype=np.int64)
        event = (time_in if link.measure == "enter" else time_out)[sources]
        order = np.argsort(event, kind="stable")
        sources, event = sources[order], event[order]
        first = np.searchsorted(event, time_in[targets] - link.window[1], "left")
        last = np.searchsorted(event, time_in[targets] - link.window[0], "right")
        count = last - first
        target = np.repeat(targets, count)
        offset = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count)
        source = sources[np.repeat(first, count) + offset] if len(target) else target
        keep = source < target  # the recording is in order of starts: nobody follows a later one
        if link.source == link.target:
            keep &= time_out[source] < time_in[target]
            if link.reach is not None:
                keep[keep] = [
                    _within_reach(tracklets[a], tracklets[b], link.reach)
                    for a, b in zip(source[keep], target[keep], strict=True)
                ]
        parts.append((source[keep], target[keep], number))
    source = np.concatenate([p[0] for p in parts]) if parts else np.zeros(0, np.int64)
    target = np.concatenate([p[1] for p in parts]) if parts else np.zeros(0, np.int64)
    link_of = np.concatenate([np.full(len(p[0]), p[2]) for p in parts]) if parts else np.zeros(0, np.int64)
    entering = np.array([x.measure == "enter" for x in recording.network.links], dtype=bool)
    event = np.where(entering[link_of], time_in[source], time_out[source]) if len(source) else np.zeros(0)
    return Candidates(source, target, link_of.astype(np.int64), time_in[target] - event if len(source) else event)


def _within_reach(a: Tracklet, b: Tracklet, reach: float) -> bool:
    """Whether one can walk from the last box of ``a`` to the first of ``b`` in the time between them."""
    end, start = a.boxes[-1], b.boxes[0]
    way = np.hypot(*(end[:2] + end[2:] / 2 - start[:2] - start[2:] / 2))
    size = max(end[3], start[3])
    return bool(way <= size * (1 + reach * (b.time_in - a.time_out)))


def true_predecessors(recording: Recording) -> NDArray[np.int64]:
    """For each tracklet the one of the same identity that starts last before it, or −1."""
    before = np.full(len(recording.tracklets), -1, dtype=np.int64)
    last: dict[int, int] = {}
    for n, tracklet in enumerate(recording.tracklets):
        if tracklet.truth is not None:
            before[n] = last.get(tracklet.truth, -1)
            last[tracklet.truth] = n
    return before
