"""Clock offsets of cameras whose views overlap, from places: two clocks agree when a walker stands where both see them.

Only overlapping views with places on the ground (world coordinates) tell clocks apart. A travel time cannot: an offset
between two cameras looks like a longer way there and a shorter one back, and ways do differ by direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording, Tracklet

LARGEST, STEP = 5.0, 0.05  # seconds: shifts that are tried
LEAST_SECONDS = 1.5  # of common view, after the shift
LEAST_WAY = 2.0  # metres: who stands still tells no time
LEAST_PAIRS = 5

Path = tuple[NDArray[np.float64], NDArray[np.float64]]  # times [n] and places [n, 2]


@dataclass(frozen=True)
class ClockDifference:
    """The clock of ``later`` is ``seconds`` (± ``error``) ahead of that of ``camera``, by ``pairs`` of tracklets."""

    camera: str
    later: str
    seconds: float
    error: float
    pairs: int


def clock_differences(recording: Recording) -> list[ClockDifference]:
    """What tracklets of one identity in two cameras say of their clocks, where five pairs or more do."""
    paths: dict[int, list[tuple[Tracklet, Path]]] = {}
    for t in recording.tracklets:
        if t.truth is not None and t.world is not None:
            known = ~np.isnan(t.world).any(1)
            times = recording.network.cameras[t.camera].seconds(t.frames[known])
            if known.sum() >= 5:
                paths.setdefault(t.truth, []).append((t, (times, t.world[known])))
    found: dict[tuple[str, str], list[float]] = {}
    order = {name: n for n, name in enumerate(recording.network.cameras)}
    for own in paths.values():
        for n, (one, path) in enumerate(own):
            for other, path_of_other in own[n + 1 :]:
                if one.camera == other.camera:
                    continue
                first, second = sorted([(one, path), (other, path_of_other)], key=lambda pair: order[pair[0].camera])
                shift = best_shift(first[1], second[1])
                if shift is not None:
                    found.setdefault((first[0].camera, second[0].camera), []).append(shift)
    result = []
    for (camera, later), shifts in sorted(found.items(), key=lambda item: [order[name] for name in item[0]]):
        if len(shifts) >= LEAST_PAIRS:
            middle = round(float(np.median(shifts)), 3)
            spread = 1.4826 * float(np.median(np.abs(np.array(shifts) - middle)))
            error = max(1.2533 * spread / len(shifts) ** 0.5, STEP)  # of a median; no finer than what is tried
            result.append(ClockDifference(camera, later, middle, error, len(shifts)))
    return result


def best_shift(one: Path, other: Path) -> float | None:
    """The s for which ``other`` at t + s is nearest to ``one`` at t, or None where that cannot be told."""
    if np.ptp(one[1], axis=0).max() < LEAST_WAY or np.ptp(other[1], axis=0).max() < LEAST_WAY:
        return None
    shifts = np.arange(-LARGEST, LARGEST + STEP / 2, STEP)
    distance = np.full(len(shifts), np.inf)
    for k, shift in enumerate(shifts):
        times = one[0] + shift
        inside = (times >= other[0][0]) & (times <= other[0][-1])
        if inside.sum() >= 3 and np.ptp(times[inside]) >= LEAST_SECONDS:
            there = np.stack([np.interp(times[inside], other[0], other[1][:, axis]) for axis in (0, 1)], 1)
            distance[k] = ((one[1][inside] - there) ** 2).sum(1).mean()
    k = int(distance.argmin())
    if not np.isfinite(distance[k]) or k in (0, len(shifts) - 1) or not np.isfinite(distance[k - 1 : k + 2]).all():
        return None  # at the edge of what was tried: the least may lie beyond
    return float(shifts[k])


def with_clocks(network: Network, differences: list[ClockDifference]) -> Network:
    """The network with clock offsets that agree with the differences best (weighted least squares).

    In every group of cameras that they join the first camera's clock stays; differences within twice their error stay
    as they are, since they are none that is known.
    """
    sure = [d for d in differences if abs(d.seconds) > 2 * d.error]
    if not sure:
        return network
    names = list(network.cameras)
    rows, values = [], []
    for d in differences:
        row = np.zeros(len(names))
        row[names.index(d.later)], row[names.index(d.camera)] = 1 / d.error, -1 / d.error
        rows.append(row)
        values.append(-d.seconds / d.error)
    for group in _groups(names, differences):
        row = np.zeros(len(names))
        row[names.index(group[0])] = 1e6  # the first one stays
        rows.append(row)
        values.append(0.0)
    change = np.linalg.lstsq(np.array(rows), np.array(values), rcond=None)[0]
    moved = {name: round(float(c), 3) for name, c in zip(names, change, strict=True)}
    cameras = {n: replace(c, clock_offset=round(c.clock_offset + moved[n], 6)) for n, c in network.cameras.items()}
    return replace(network, cameras=cameras)


def _groups(names: list[str], differences: list[ClockDifference]) -> list[list[str]]:
    group = {name: n for n, name in enumerate(names)}
    for d in differences:
        old, new = group[d.later], group[d.camera]
        group = {name: new if n == old else n for name, n in group.items()}
    return [[name for name in names if group[name] == n] for n in sorted(set(group.values()))]


def retimed(recording: Recording, network: Network) -> Recording:
    """The recording on the network's clocks."""
    tracklets = []
    for t in recording.tracklets:
        first, last = network.cameras[t.camera].seconds(t.frames[[0, -1]]).tolist()
        tracklets.append(replace(t, time_in=first, time_out=last))
    return Recording(network, tracklets, recording.truth, recording.dropped)
