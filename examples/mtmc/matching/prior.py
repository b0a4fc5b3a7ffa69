"""The prior of a pair, before any picture is looked at: log P(A → B) + log p(Δt | A → B) − log p_background(Δt).

The background is a stranger: unrelated tracklets enter B at a rate λ_B per second whatever left A, so that
log p_background = log λ_B, the rate around the time at which b enters. Zones say more: those who take a way leave A
and enter B by its own zones, strangers by any, z_out and z_in as often as tracklets there do. Where views overlap so do
places (``places.py``). Against "nobody", with P(start | B) and P(end | A), the prior log-odds of a pair are

    link   log P(A→B)
    travel log p(Δt | A→B) − log λ_B
    zone   log P(z_out, z_in | A→B) − log P(z_out | A) P(z_in | B)
    place  log p(d | one person) − log p(d | two)
    nobody − log P(start | B) − log P(end | A), and where views overlap − 2 log (1 − P(A → B))

whose sum is what "prior alone" associates by when there are no embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.matching.places import place_evidence
from examples.mtmc.matching.slots import KINDS, kinds
from examples.mtmc.network.network import Link, Network
from examples.mtmc.network.travel import log_densities
from examples.mtmc.network.zones import zone_names, zone_shares
from examples.mtmc.recordings.tracklets import Recording

MOST_LINK = 0.95  # no view overlaps another so well that nobody is missed
LEAST_SHARE = 1e-3  # of a pair of zones that no passage was seen to take: unlikely, not impossible


@dataclass(frozen=True, eq=False)
class Prior:
    """Per candidate ``link [E]`` (probabilities) and the log ratios ``travel, zone, place [E]``, 0 where nothing is
    known; per tracklet ``starts, ends [N]``."""

    link: NDArray[np.float64]
    travel: NDArray[np.float64]
    zone: NDArray[np.float64]
    place: NDArray[np.float64]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]
    overlap: NDArray[np.bool_]  # [E], whether the views of a pair overlap

    def log_odds(self, pairs: Candidates) -> NDArray[np.float64]:
        """Prior log-odds of each pair against both of its ends being nobody."""
        return np.asarray(np.log(self.link) + self.travel + self.zone + self.place + self.nobody(pairs))

    def nobody(self, pairs: Candidates) -> NDArray[np.float64]:
        """Minus the log probability that each pair's ends are followed by nobody and follow nobody, in its slots."""
        in_sequence = np.log(self.starts[pairs.target]) + np.log(self.ends[pairs.source])
        elsewhere = 2 * np.log1p(-np.minimum(self.link, MOST_LINK))  # neither is seen by the other's camera
        return -np.where(self.overlap, elsewhere, in_sequence)


@dataclass(frozen=True, eq=False)
class Rates:
    """How many tracklets start per second: in each camera over all, and ``around [N]`` the start of each tracklet."""

    camera: dict[str, float]
    around: NDArray[np.float64]


def prior_of(
    recording: Recording, pairs: Candidates, network: Network | None = None, rates: Rates | None = None
) -> Prior:
    """The prior of every candidate, by what ``network`` (default: the recording's own) believes.

    ``rates`` are those of the recording unless given, as they are where it is a small part of what was seen.
    """
    network = network or recording.network
    rate = (rates or rates_of(recording)).around
    link, travel, zone = (np.zeros(len(pairs)) for _ in range(3))
    used, which = np.unique(pairs.link, return_inverse=True)
    links = [recording.network.links[n] for n in used.tolist()]
    known = [(n, believed) for n, x in enumerate(links) if (believed := network.link(x.source, x.target))]
    place = np.full(len(links), -1, dtype=np.int64)  # a link that the network does not know keeps probability 0
    place[[n for n, _ in known]] = np.arange(len(known))
    own = np.flatnonzero(place[which] >= 0)
    row = place[which[own]]
    if len(own):
        link[own] = np.array([x.prior for _, x in known])[row]
        travel[own] = log_densities([x.density for _, x in known], row, pairs.delay[own]) - np.log(
            rate[pairs.target[own]]
        )
    for n, given in known:
        if given.zones:
            own = np.flatnonzero(which == n)
            zone[own] = zone_evidence(recording, network, given, pairs.source[own], pairs.target[own])
    overlap = kinds(recording, pairs) == KINDS.index("overlap")
    starts = np.array([network.cameras[t.camera].starts for t in recording.tracklets])
    ends = np.array([network.cameras[t.camera].ends for t in recording.tracklets])
    return Prior(link, travel, zone, place_evidence(recording, pairs), starts, ends, overlap)


def zone_evidence(
    recording: Recording, network: Network, link: Link, source: NDArray[np.int64], target: NDArray[np.int64]
) -> NDArray[np.float64]:
    """The log ratio of the zones by which ``source`` leaves and ``target`` enters; 0 where the link has none."""
    share = zone_shares(link, network)
    if share is None:
        return np.zeros(len(source))
    tracklets = recording.tracklets
    leave, enter = zone_names(network.cameras[link.source]), zone_names(network.cameras[link.target])
    left = np.array([leave.index(t.zone_out) for t in tracklets if t.camera == link.source])
    entered = np.array([enter.index(t.zone_in) for t in tracklets if t.camera == link.target])
    by_chance = np.outer(
        (np.bincount(left, minlength=len(leave)) + 1) / (len(left) + len(leave)),
        (np.bincount(entered, minlength=len(enter)) + 1) / (len(entered) + len(enter)),
    )
    ratio = np.log(np.maximum(share, LEAST_SHARE) / by_chance)
    rows = np.array([leave.index(tracklets[n].zone_out) for n in source], dtype=np.int64)
    columns = np.array([enter.index(tracklets[n].zone_in) for n in target], dtype=np.int64)
    return np.asarray(ratio[rows, columns])


def rates_of(recording: Recording) -> Rates:
    """The rates that the recording itself shows."""
    return Rates(arrival_rates(recording), local_rates(recording))


def arrival_rates(recording: Recording) -> dict[str, float]:
    """Tracklets that start per second in each camera; needs no labels."""
    seconds = max(recording.duration, 1.0)
    count = dict.fromkeys(recording.network.cameras, 0.5)
    for tracklet in recording.tracklets:
        count[tracklet.camera] += 1
    return {name: n / seconds for name, n in count.items()}


def local_rates(recording: Recording, seconds: float = 60.0) -> NDArray[np.float64]:
    """Per tracklet, the rate at which others start in its camera around its own start.

    Half of it is counted within ``seconds`` around, half is the rate over the whole recording: people come in bursts.
    """
    overall = arrival_rates(recording)
    order = {name: n for n, name in enumerate(recording.network.cameras)}
    camera = np.array([order[t.camera] for t in recording.tracklets], dtype=np.int64)
    time_in = np.array([t.time_in for t in recording.tracklets])
    rates = np.zeros(len(recording.tracklets))
    for name, number in order.items():
        own = np.flatnonzero(camera == number)
        starts = time_in[own]  # ascending, as the recording is
        others = np.searchsorted(starts, starts + seconds / 2, "right") - np.searchsorted(starts, starts - seconds / 2)
        rates[own] = ((others - 1) / seconds + overall[name]) / 2
    return rates
