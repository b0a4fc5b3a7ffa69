"""Links that nobody wrote down, found in labelled tracklets."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from examples.mtmc.network.network import Link, Network
from examples.mtmc.network.travel import SHRINKAGE, TYPICAL, window_of
from examples.mtmc.recordings.tracklets import Recording, Tracklet

LEAST_PASSAGES = 3
LONGEST = 1800.0  # seconds: who comes back later has been somewhere else
FRAGMENT_WINDOW = 4.0, 15.0  # seconds, least and most, in which one tracklet of a camera may go on as another


def discovered(recording: Recording, least: int = LEAST_PASSAGES, longest: float = LONGEST) -> Network:
    """The recording's network with a link for every direction that ``least`` passages or more took and that it has not.

    A passage is one tracklet of an identity and its next. Within a camera the window holds nine of ten. Else it holds
    every delay that was seen, and all but a thousandth of a density around them, which is the wider the fewer there
    were.
    """
    network = recording.network
    passages: dict[tuple[str, str], list[tuple[Tracklet, Tracklet]]] = {}
    last: dict[int, Tracklet] = {}
    for tracklet in recording.tracklets:  # in order of their starts
        if tracklet.truth is None:
            continue
        before = last.get(tracklet.truth)
        if before is not None and tracklet.time_in - before.time_out <= longest:
            passages.setdefault((before.camera, tracklet.camera), []).append((before, tracklet))
        last[tracklet.truth] = tracklet
    links = [
        _link(source, target, pairs)
        for (source, target), pairs in sorted(passages.items(), key=lambda item: _order(network, *item[0]))
        if len(pairs) >= least and network.link(source, target) is None
    ]
    return replace(network, links=(*network.links, *links))


def _order(network: Network, source: str, target: str) -> tuple[int, int]:
    return network.index(source), network.index(target)


def _link(source: str, target: str, pairs: list[tuple[Tracklet, Tracklet]]) -> Link:
    delays = np.array([later.time_in - earlier.time_out for earlier, later in pairs])
    if source == target:
        after = delays[delays > 0]
        high = float(np.quantile(after, 0.9)) if len(after) else 0.0  # the others went and came back
        return Link(source, target, (0.0, _rounded(np.clip(high, *FRAGMENT_WINDOW), np.ceil)), reach=_reach(pairs))
    kind = "lognormal" if delays.min() > 0 else "normal"
    values = np.log(delays) if kind == "lognormal" else delays
    typical = max(TYPICAL[kind], float(values.std()) if len(values) >= 20 else TYPICAL[kind])
    square = ((values - values.mean()) ** 2).sum()
    spread = np.sqrt((square + SHRINKAGE * typical**2) / (len(values) - 1 + SHRINKAGE) * (1 + 1 / len(values)))
    centre = float(np.exp(values.mean()) if kind == "lognormal" else values.mean())
    low, high = window_of(kind, ((1.0, centre, float(spread)),))
    low, high = min(low, float(delays.min())), max(high, float(delays.max()))
    return Link(source, target, (_rounded(low, np.floor), _rounded(high, np.ceil)))


def _reach(pairs: list[tuple[Tracklet, Tracklet]]) -> float:
    """Box heights a second (plus one) within which nineteen of twenty pieces go on, one at least."""
    needed = []
    for earlier, later in pairs:
        end, start = earlier.boxes[-1], later.boxes[0]
        way = np.hypot(*(end[:2] + end[2:] / 2 - start[:2] - start[2:] / 2)) / max(end[3], start[3])
        delay = later.time_in - earlier.time_out
        if delay > 0:
            needed.append((way - 1) / delay)
    return max(1.0, _rounded(float(np.quantile(needed, 0.95)), np.ceil)) if needed else 1.0


def _rounded(value: float, towards: np.ufunc) -> float:
    return round(float(towards(value * 10)) / 10, 1)
