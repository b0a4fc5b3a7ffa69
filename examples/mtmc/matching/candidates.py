"""Which tracklet may follow which: only along a directed link, within its window."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Recording


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


def candidates(recording: Recording, asked: NDArray[np.bool_] | None = None) -> Candidates:
    """All pairs that a link and its window allow, in the order of the links; later ones among ``asked [N]`` alone."""
    tracklets, links = recording.tracklets, recording.network.links
    number = {name: n for n, name in enumerate(recording.network.cameras)}
    camera = np.array([number[t.camera] for t in tracklets], dtype=np.int64)
    time_in = np.array([t.time_in for t in tracklets], dtype=np.float64)
    time_out = np.array([t.time_out for t in tracklets], dtype=np.float64)
    targets = np.arange(len(tracklets)) if asked is None else np.flatnonzero(asked)
    # Every link with every later tracklet at its end, link by link.
    into = targets[np.argsort(camera[targets], kind="stable")]
    first = np.searchsorted(camera[into], np.arange(len(number) + 1))
    end = np.array([number[x.target] for x in links], dtype=np.int64)
    link, later = _ranges(first[end], first[end + 1])
    later = into[later]
    parts = []
    for entering, event in ((False, time_out), (True, time_in)):
        own = np.array([x.measure == "enter" for x in links], dtype=bool)[link] == entering
        if own.any():
            parts.append(_within_windows(recording, link[own], later[own], camera, time_in, event))
    if not parts:
        nothing = np.zeros(0, dtype=np.int64)
        return Candidates(nothing, nothing, nothing, np.zeros(0))
    source, target, link, delay = (np.concatenate([part[k] for part in parts]) for k in range(4))
    keep = source < target  # the recording is in order of starts: nobody follows a later one
    within = np.array([x.source == x.target for x in links], dtype=bool)[link]
    keep &= ~within | (time_out[source] < time_in[target])
    reach = np.array([np.inf if x.reach is None or x.source != x.target else x.reach for x in links])[link]
    near = np.flatnonzero(keep & np.isfinite(reach))
    keep[near] = _within_reach(recording, source[near], target[near], reach[near])
    kept = np.flatnonzero(keep)
    if len(parts) > 1:
        kept = kept[np.argsort(link[kept], kind="stable")]
    return Candidates(source[kept], target[kept], link[kept], delay[kept])


def _ranges(first: NDArray[np.int64], last: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """For every range its number, as often as it has members, and the members."""
    count = np.maximum(last - first, 0)
    number = np.repeat(np.arange(len(count)), count)
    return number, first[number] + np.arange(len(number)) - (np.cumsum(count) - count)[number]


def _within_windows(
    recording: Recording,
    link: NDArray[np.int64],
    target: NDArray[np.int64],
    camera: NDArray[np.int64],
    time_in: NDArray[np.float64],
    event: NDArray[np.float64],
) -> tuple[NDArray[np.int64], ...]:
    """For (link, later tracklet) the earlier ones whose ``event`` lies within the window: one search for all.

    Cameras lie one behind the other on one axis of time. An axis so long rounds times; what is found is a little more
    than the window, and cut to it by the times themselves.
    """
    links, names = recording.network.links, list(recording.network.cameras)
    number = {name: n for n, name in enumerate(names)}
    begin = np.array([number[x.source] for x in links], dtype=np.int64)[link]
    window = np.array([x.window for x in links], dtype=np.float64).reshape(-1, 2)[link]
    zero = min(float(event.min()), float(time_in.min()))
    long = max(float(event.max()), float(time_in.max())) - zero + 2.0
    slack = 1e-9 * long * (len(names) + 1)
    order = np.lexsort((event, camera))
    axis = camera[order] * long + (event[order] - zero)
    low, high = time_in[target] - window[:, 1], time_in[target] - window[:, 0]
    first = np.searchsorted(axis, begin * long + np.clip(low - zero - slack, 0, long - 1), "left")
    last = np.searchsorted(axis, begin * long + np.clip(high - zero + slack, -1, long - 1), "right")
    pair, place = _ranges(first, last)
    source = order[place]
    exact = (event[source] >= low[pair]) & (event[source] <= high[pair]) & (camera[source] == begin[pair])
    source, pair = source[exact], pair[exact]
    return source, target[pair], link[pair], time_in[target[pair]] - event[source]


def _within_reach(
    recording: Recording, source: NDArray[np.int64], target: NDArray[np.int64], reach: NDArray[np.float64]
) -> NDArray[np.bool_]:
    """Whether one can walk from the last box of the earlier to the first of the later in the time between them."""
    tracklets = recording.tracklets
    end = np.array([tracklets[n].boxes[-1] for n in source]).reshape(-1, 4)
    start = np.array([tracklets[n].boxes[0] for n in target]).reshape(-1, 4)
    between = np.array([tracklets[b].time_in - tracklets[a].time_out for a, b in zip(source, target, strict=True)])
    way = np.hypot(*(end[:, :2] + end[:, 2:] / 2 - start[:, :2] - start[:, 2:] / 2).T)
    return np.asarray(way <= np.maximum(end[:, 3], start[:, 3]) * (1 + reach * between))


def true_predecessors(recording: Recording) -> NDArray[np.int64]:
    """For each tracklet the one of the same identity that starts last before it, or −1."""
    before = np.full(len(recording.tracklets), -1, dtype=np.int64)
    last: dict[int, int] = {}
    for n, tracklet in enumerate(recording.tracklets):
        if tracklet.truth is not None:
            before[n] = last.get(tracklet.truth, -1)
            last[tracklet.truth] = n
    return before
