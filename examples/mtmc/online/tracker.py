"""The online tracker: rows in, decisions out, each within ``latency`` seconds of the tracklet's first box.

Time is that of the rows. It goes on in steps: whenever rows of a new step come, and before they are looked at, every
tracklet whose time would run out during that step is decided by what is known then. Candidates are the tracklets that
ended, or are still in view, within the windows of the links and that nobody follows yet; the same matcher and the same
assignment as offline judge them, together with the tracklets whose time is not up yet, so that a rival who has just
come may win. What is decided is final.
"""

from __future__ import annotations

import numpy as np

from examples.mtmc.matching.companions import TOGETHER
from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.network.network import Network
from examples.mtmc.online.decisions import Decision
from examples.mtmc.online.live import Live
from examples.mtmc.online.settling import Settling
from examples.mtmc.online.sightings import Sightings
from examples.mtmc.online.weighing import Weighing
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import Log

STEP, LEAD = 0.5, 0.75  # seconds of the stream at most between two looks at what is due, and from there to a deadline
GRAIN, SPARE = 0.1, 0.15  # and at most these shares of the latency
PATIENCE = 2.0  # seconds after which a tracklet that is not seen any more has ended


class OnlineTracker:
    """Identities within ``latency`` seconds of the stream, final once they are given.

    ``matcher`` and its threshold ``tau`` judge as they do offline; None: link prior and travel time alone. ``step`` is
    the grain of time (default: a tenth of ``latency``, half a second at most), ``patience`` how long a tracklet may be
    out of sight. Decided is one step or less before ``lead`` seconds are left, the time for computing (default: 15 % of
    ``latency``, three quarters of a second at most). Rows may come late by ``latency`` (at least ``patience``); later
    ones are left out and counted in ``log``.

    With ``latency=inf`` all is decided by ``finish``, exactly as offline.
    """

    def __init__(
        self,
        network: Network,
        matcher: Matcher | None,
        tau: float,
        latency: float = 5.0,
        step: float | None = None,
        patience: float = PATIENCE,
        log: Log | None = None,
        lead: float | None = None,
    ) -> None:
        step = min(STEP, GRAIN * latency) if step is None else step
        lead = min(LEAD, SPARE * latency) if lead is None else lead
        if not latency >= 0 or not step >= 0 or not patience >= 0 or not lead >= 0:
            raise ValueError(f"latency, step, patience, lead are {latency}, {step}, {patience}, {lead}; seconds from 0")
        self.latency, self.step, self.lead = latency, min(step, latency), min(lead, latency)
        self.log = Log() if log is None else log
        self.time = -np.inf
        self.ended = False
        self.heard = 0.0  # when the latest row came, by whatever clock its owner uses
        self.recent: list[Live] = []  # decided lately: companions of those who are not
        self.sightings = Sightings(network, latency, patience, self.log)
        self.weighing = Weighing(network, matcher, tau, self.sightings.memory, self.sightings.arrivals)
        self.settling = Settling()
        self._tidied = -np.inf

    @property
    def newest(self) -> float:
        """The time of the latest row."""
        return self.sightings.newest

    @property
    def number(self) -> int:
        """How many identities were given."""
        return self.settling.number

    def push(self, chunk: Chunk) -> None:
        """Rows of any cameras, in any order of time within the allowed lateness."""
        order = np.lexsort((chunk.id, chunk.camera, chunk.time))
        step = np.floor(chunk.time[order] / self.step) if self.step else chunk.time[order]
        for own in np.split(order, np.flatnonzero(np.diff(step)) + 1):
            if len(own):
                time = float(chunk.time[own[0]])
                self._advance(float(np.floor(time / self.step) * self.step) if self.step else time)
                self.sightings.take(chunk.take(own), self.time)

    def now(self, seconds: float) -> None:
        """Time goes on to ``seconds`` without rows, but by no more than what makes every tracklet due."""
        if self.newest > -np.inf:
            self._advance(min(seconds, self.newest + self.latency))

    def _advance(self, seconds: float) -> None:
        """What is due until ``seconds`` is decided, by the rows before."""
        while self.sightings.undecided and not self.ended:
            due = min(t.deadline for t in self.sightings.undecided)
            at = max(float(np.floor((due - self.lead) / self.step) * self.step) if self.step else due, self.time)
            if at > seconds or (at == seconds and not self.step):
                break
            self.time = at
            self._decide(max(at + self.step + self.lead, float(np.nextafter(due, np.inf))))
        if seconds > self.time:
            self.time = seconds
            if self.time >= self._tidied + 1 or not self.step:
                self._tidied = self.time
                self.sightings.tidy(self.time)

    def decided(self) -> list[Decision]:
        """The decisions since the last call."""
        given, self.settling.decisions = self.settling.decisions, []
        return given

    def closed(self) -> list[Live]:
        """The tracklets that are decided and have ended, since the last call: nothing about them will change."""
        given, self.sightings.closed = self.sightings.closed, []
        return given

    def stop(self) -> None:
        """No more rows are wanted: what is decided ends here, what is not stays so."""
        self.sightings.undecided, self.sightings.doubted = [], []
        for tracklet in self.sightings.view():
            self.sightings.end(tracklet)

    def finish(self) -> None:
        """The stream has ended: everything is decided."""
        self.ended = True
        self.sightings.finish()
        self._decide(np.inf)

    def _decide(self, until: float) -> None:
        """Give every tracklet whose deadline lies before ``until`` its identity."""
        own = self.sightings
        own.end_all(self.time)
        due = [t for t in own.undecided if t.deadline < until or self.ended]
        doubted, own.doubted = [t for t in own.doubted if t.first_of is not None], []
        now = np.inf if self.ended else self.time
        joins = self.weighing.joins([*own.undecided, *doubted], self.recent, now)
        given = self.settling.settle(due, joins, self.time)
        own.closed += [t for t in given if t.ended]
        for tracklet in doubted:
            for join in joins.get(tracklet, []):
                if join.earlier.person is not None:
                    self.settling.follow(tracklet, join, self.time)
            tracklet.first_of = None
        own.undecided = [t for t in own.undecided if t.person is None]
        oldest = min((t.time_in for t in own.undecided), default=self.time)
        self.recent = [t for t in [*self.recent, *due] if t.time_in >= oldest - TOGETHER]
