"""What the matcher has to beat: each gives every candidate a gain, to which the same association is applied."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.associate import Identities
from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.matching.prior import Prior
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording


def no_association(recording: Recording) -> NDArray[np.int64]:
    """Every tracklet an identity of its own."""
    return np.arange(len(recording.tracklets))


def oracle(recording: Recording) -> NDArray[np.int64]:
    """The true identity of every tracklet; clutter stays alone."""
    names: dict[object, int] = {}
    keys = [("true", t.truth) if t.truth is not None else ("nobody", n) for n, t in enumerate(recording.tracklets)]
    return np.array([names.setdefault(key, len(names)) for key in keys], dtype=np.int64)


def fifo_gain(pairs: Candidates, network: Network, recording: Recording) -> NDArray[np.float64]:
    """Minus the distance of a delay from its link's typical one, in standard deviations: how unusual it may be."""
    distance = np.zeros(len(pairs))
    for number, given in enumerate(recording.network.links):
        own = pairs.link == number
        link = network.link(given.source, given.target)
        if link is None:
            distance[own] = np.inf
            continue
        _, centre, spread = max(link.density.components)
        if link.density.kind == "normal":
            distance[own] = np.abs(pairs.delay[own] - centre) / spread
        else:
            distance[own] = np.abs(np.log(np.maximum(pairs.delay[own], 1e-9) / centre)) / spread
    return -distance


def first_in_first_out(recording: Recording, pairs: Candidates, gain: NDArray[np.float64]) -> NDArray[np.int64]:
    """Who enters is the one who left longest ago, among those not yet taken whose delay is near enough (gain > 0)."""
    identities = Identities(recording)
    kept = np.flatnonzero(gain > 0)
    out = np.array([t.time_out for t in recording.tracklets])
    order = kept[np.lexsort((out[pairs.source[kept]], pairs.target[kept]))]
    gone, come = set(), set()
    for edge in order.tolist():
        a, b = int(pairs.source[edge]), int(pairs.target[edge])
        if a not in gone and b not in come and identities.join(a, b):
            gone.add(a)
            come.add(b)
    return identities.labels()


def time_gain(prior: Prior) -> NDArray[np.float64]:
    """The travel-time log ratio alone; a link that is not believed in gives −inf."""
    return np.where(prior.link > 0, prior.travel, -np.inf)


def appearance_pairs(recording: Recording) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Every pair of tracklets that are not in one camera at once, in order of their starts: no links, no windows."""
    camera = np.array([recording.network.index(t.camera) for t in recording.tracklets])
    time_in = np.array([t.time_in for t in recording.tracklets])
    time_out = np.array([t.time_out for t in recording.tracklets])
    at_once = (camera[:, None] == camera) & (time_in[:, None] <= time_out) & (time_in <= time_out[:, None])
    source, target = np.nonzero(np.triu(~at_once, k=1))
    return source, target


def appearance_gain(
    looks: NDArray[np.float64], source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The cosine of two looks, each less the mean look of its camera."""
    return np.asarray((looks[source] * looks[target]).sum(1))
