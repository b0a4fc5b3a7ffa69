"""Whom the undecided may follow, weighed: candidates, the matcher's gains, the assignment, as they are offline."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from examples.mtmc.matching.associate import associate
from examples.mtmc.matching.candidates import Candidates, candidates
from examples.mtmc.matching.graph import build_graph
from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.matching.prior import prior_of
from examples.mtmc.network.network import Network
from examples.mtmc.online.arrivals import Arrivals
from examples.mtmc.online.chains import Chains
from examples.mtmc.online.live import Live, Memory, slot_of
from examples.mtmc.recordings.tracklets import Recording


@dataclass(frozen=True)
class Join:
    """Somebody to follow, in which of his slots, and by what log-odds less the threshold."""

    earlier: Live
    slot: str
    score: float


class Weighing:
    """What ``matcher`` (None: link prior and travel time alone) and its threshold ``tau`` say of the tracklets in
    ``memory``, beside the ``arrivals`` so far."""

    def __init__(
        self, network: Network, matcher: Matcher | None, tau: float, memory: dict[str, Memory], arrivals: Arrivals
    ) -> None:
        self.network, self.matcher, self.tau = network, matcher, tau
        self.memory, self.arrivals = memory, arrivals
        self._index = {name: n for n, name in enumerate(network.cameras)}
        self._into = {name: [x for x in network.links if x.target == name] for name in network.cameras}
        self._slots = [slot_of(link) for link in network.links]
        self._link = {(link.source, link.target): n for n, link in enumerate(network.links)}
        self._windows = np.array([link.window for link in network.links], dtype=np.float64).reshape(-1, 2)

    def joins(self, asked: list[Live], recent: list[Live], now: float) -> dict[Live, list[Join]]:
        """For those of ``asked`` who follow somebody: whom, the best first. The stream has ended where ``now`` is inf.

        ``recent`` were decided lately: companions of those who are not.
        """
        others = [*self._sources(asked), *recent]
        nodes = sorted({*asked, *others, *(b for t in others for b in t.before)}, key=lambda t: t.order)
        recording = Recording(self.network, [t.tracklet(self.network) for t in nodes])
        pairs, may_join = self._pairs(nodes, set(asked), recording)
        if not may_join.any():
            return {}
        gain = self._gain(recording, pairs, nodes, now) - self.tau
        chosen = np.flatnonzero(may_join & (gain > 0))
        source, target, gain = pairs.source[chosen], pairs.target[chosen], gain[chosen]
        ends = list(zip(source.tolist(), target.tolist(), strict=True))
        chains = Chains(nodes, sorted({n for pair in ends for n in pair}), self._index)
        associate(recording, source, target, gain, chains)
        place = {pair: n for n, pair in enumerate(ends)}
        joins: dict[Live, list[Join]] = {}
        for a, b in chains.joins:
            n = place[a, b]
            slot = self._slots[int(pairs.link[chosen[n]])]
            joins.setdefault(nodes[b], []).append(Join(nodes[a], slot, float(gain[n])))
        return {target: sorted(found, key=lambda join: -join.score) for target, found in joins.items()}

    def _gain(self, recording: Recording, pairs: Candidates, nodes: list[Live], now: float) -> NDArray[np.float64]:
        """The log-odds of every candidate ``[E]``."""
        rates = self.arrivals.rates(nodes, now)
        prior = prior_of(recording, pairs, self.network, rates)
        if self.matcher is None:
            with np.errstate(divide="ignore"):
                return prior.log_odds(pairs)
        looks = self.arrivals.looks_of(nodes, now == np.inf)
        graph = build_graph(recording, pairs, prior, looks, self.network, rates)
        with torch.no_grad():
            return np.asarray(self.matcher(graph).gain.double().numpy())

    def _pairs(self, nodes: list[Live], asked: set[Live], recording: Recording) -> tuple[Candidates, NDArray[np.bool_]]:
        """What is asked about, those candidates whose slots are free; and what was decided lately, to learn from."""
        pairs = candidates(recording, np.array([t in asked for t in nodes], dtype=bool))
        taken = np.array([len(t.taken) for t in nodes], dtype=np.int64)
        free = taken[pairs.source] == 0
        for n in np.flatnonzero(~free).tolist():
            free[n] = self._slots[int(pairs.link[n])] not in nodes[int(pairs.source[n])].taken
        place = {t: n for n, t in enumerate(nodes)}
        decided = [
            (place[before], place[t], self._link[before.camera, t.camera])
            for t in nodes
            if t not in asked
            for before in t.before
            if before in place
        ]
        source, target, link = np.array(decided, dtype=np.int64).reshape(-1, 3).T
        start = np.array([nodes[n].time_in for n in target.tolist()])
        event = np.array(
            [
                nodes[n].time_in if self.network.links[k].measure == "enter" else nodes[n].time_out
                for n, k in zip(source.tolist(), link.tolist(), strict=True)
            ]
        )
        chosen = Candidates(
            np.concatenate([pairs.source[free], source]),
            np.concatenate([pairs.target[free], target]),
            np.concatenate([pairs.link[free], link]),
            np.concatenate([pairs.delay[free], start - event]),
        )
        may_join = np.arange(len(chosen)) < int(free.sum())
        inside = may_join | self._inside(chosen)
        kept = Candidates(chosen.source[inside], chosen.target[inside], chosen.link[inside], chosen.delay[inside])
        return kept, may_join[inside]

    def _inside(self, pairs: Candidates) -> NDArray[np.bool_]:
        """Whether a delay lies within its window still: an end that was not known then may have come later."""
        window = self._windows[pairs.link]
        return np.asarray((window[:, 0] <= pairs.delay) & (pairs.delay <= window[:, 1]))

    def _sources(self, asked: list[Live]) -> Iterable[Live]:
        """Whom the windows let them follow: a little more, since a camera is asked once for all."""
        starts: dict[str, list[float]] = {}
        for tracklet in asked:
            starts.setdefault(tracklet.camera, []).append(tracklet.time_in)
        for camera, times in starts.items():
            first, last = min(times), max(times)
            for link in self._into[camera]:
                low, high = link.window
                yield from self.memory[link.source].between(first - high, last - low, link.measure == "enter")
