"""Where two cameras see the same ground, one person stands at one place in both: the distance is evidence.

For two tracklets of overlapping views that last at the same time, d is the median distance of their world places
over instants of that time. Measured places of one person differ by an error of σ metres, those of two people are as
far apart as people are:

    place = log p(d; σ) − log p(d; σ_background),    p a Rayleigh density, the length of a normal error in the plane

Both spreads are read from the recording, without labels: σ_background from all candidates of the link, σ from the
nearest candidate of each tracklet.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.recordings.tracklets import Recording

INSTANTS = 8  # of the common time at which places are compared
TYPICAL, COUNT = 1.0, 5.0  # metres of error that are believed before any are seen, and how many passages they count for
FLOOR = 0.03  # the share of places that are simply wrong: no distance says more than this against a pair
MEDIAN = np.sqrt(2 * np.log(2))  # of a Rayleigh density with σ = 1


def place_evidence(recording: Recording, pairs: Candidates) -> NDArray[np.float64]:
    """The log ratio of every candidate ``[E]``; 0 where views do not overlap or places or a common time are missing."""
    evidence = np.zeros(len(pairs))
    links = recording.network.links
    overlap = np.array([x.source != x.target and x.window[0] < 0 for x in links], dtype=bool)
    placed = np.array([t.world is not None for t in recording.tracklets], dtype=bool)
    if not overlap.any() or not placed.any():
        return evidence
    judged = np.flatnonzero(overlap[pairs.link] & placed[pairs.source] & placed[pairs.target])
    distance = common_distance(recording, pairs.source[judged], pairs.target[judged])
    known = np.isfinite(distance)
    judged, distance = judged[known], distance[known]
    for link in np.unique(pairs.link[judged]):
        own = pairs.link[judged] == link
        d, target = distance[own], pairs.target[judged[own]]
        nearest = np.full(len(recording.tracklets), np.inf)
        np.minimum.at(nearest, target, d)
        nearest = nearest[np.isfinite(nearest)]
        error = (np.median(nearest) / MEDIAN * len(nearest) + COUNT * TYPICAL) / (len(nearest) + COUNT)
        background = max(float(np.sqrt((d**2).mean() / 2)), 2 * error)
        ratio = 2 * np.log(background / error) - d**2 / 2 * (error**-2 - background**-2)
        evidence[judged[own]] = np.log((1 - FLOOR) * np.exp(ratio) + FLOOR)
    return evidence


def common_distance(recording: Recording, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.float64]:
    """Median distance in metres of two tracklets' places over their common time; NaN where they have none."""
    tracklets = recording.tracklets
    time_in, time_out = (np.array([getattr(t, name) for t in tracklets]) for name in ("time_in", "time_out"))
    start = np.maximum(time_in[source], time_in[target])
    end = np.minimum(time_out[source], time_out[target])
    common = end >= start
    used = np.unique(np.concatenate([source[common], target[common]]))
    if len(used) == 0:
        return np.full(len(source), np.nan)
    instants = start[common, None] + (end - start)[common, None] * np.linspace(0, 1, INSTANTS)
    # One table of all places in order of (tracklet, time): every place at every instant by one interpolation.
    long = float(time_out.max() - time_in.min()) + 1
    row = np.full(len(tracklets), -1)
    row[used] = np.arange(len(used))
    base = time_in.min()
    own = [tracklets[n] for n in used]
    seconds = [recording.network.cameras[t.camera].seconds(t.frames) - base for t in own]
    axis = np.concatenate([s + long * n for n, s in enumerate(seconds)])
    world = np.concatenate([np.zeros((0, 2)) if t.world is None else t.world for t in own])

    def places(who: NDArray[np.int64]) -> NDArray[np.float64]:
        at = (instants - base + long * row[who][:, None]).ravel()
        return np.stack([np.interp(at, axis, world[:, k]) for k in range(2)], -1).reshape(len(who), INSTANTS, 2)

    result = np.full(len(source), np.nan)
    apart = places(source[common]) - places(target[common])
    result[common] = np.median(np.linalg.norm(apart, axis=-1), axis=1)
    return result
