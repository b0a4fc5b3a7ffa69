"""The prior of a pair, before any picture is looked at: log P(A → B) + log p(Δt | A → B) − log p_background(Δt).

The background is a stranger: unrelated tracklets enter B at a rate λ_B per second whatever left A, so that
log p_background = log λ_B, the rate around the time at which b enters. Against "nobody", with P(start | B) and
P(end | A), the prior log-odds of a pair are

    log P(A→B) + log p(Δt | A→B) − log λ_B − log P(start | B) − log P(end | A)

which is what "prior alone" associates by when there are no embeddings.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording


@dataclass(frozen=True, eq=False)
class Prior:
    """Per candidate ``link [E]`` (probabilities) and ``travel [E]`` (log ratios); per tracklet ``starts, ends [N]``."""

    link: NDArray[np.float64]
    travel: NDArray[np.float64]
    starts: NDArray[np.float64]
    ends: NDArray[np.float64]

    def log_odds(self, pairs: Candidates) -> NDArray[np.float64]:
        """Prior log-odds of each pair against both of its ends being nobody."""
        alone = np.log(self.starts[pairs.target]) + np.log(self.ends[pairs.source])
        return np.asarray(np.log(self.link) + self.travel - alone)


def prior_of(recording: Recording, pairs: Candidates, network: Network | None = None) -> Prior:
    """The prior of every candidate, by what ``network`` (default: the recording's own) believes."""
    network = network or recording.network
    rate = local_rates(recording)
    link = np.zeros(len(pairs))
    travel = np.zeros(len(pairs))
    for number, given in enumerate(recording.network.links):
        own = pairs.link == number
        believed = network.link(given.source, given.target)
        if believed is None or not own.any():
            continue  # a link that the network does not know keeps probability 0
        link[own] = believed.prior
        travel[own] = believed.density.log_density(pairs.delay[own]) - np.log(rate[pairs.target[own]])
    starts = np.array([network.cameras[t.camera].starts for t in recording.tracklets])
    ends = np.array([network.cameras[t.camera].ends for t in recording.tracklets])
    return Prior(link, travel, starts, ends)


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
    rates = np.zeros(len(recording.tracklets))
    for name in recording.network.cameras:
        own = np.array([n for n, t in enumerate(recording.tracklets) if t.camera == name], dtype=np.int64)
        starts = np.array([recording.tracklets[n].time_in for n in own])  # ascending, as the recording is
        others = np.searchsorted(starts, starts + seconds / 2, "right") - np.searchsorted(starts, starts - seconds / 2)
        rates[own] = ((others - 1) / seconds + overall[name]) / 2
    return rates
