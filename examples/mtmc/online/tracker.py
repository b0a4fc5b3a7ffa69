"""The online tracker: rows in, decisions out, each within ``latency`` seconds of the tracklet's first box.

Time is that of the rows. It goes on in steps: whenever rows of a new step come, and before they are looked at, every
tracklet whose time would run out during that step is decided by what is known then. Candidates are the tracklets that
ended, or are still in view, within the windows of the links and that nobody follows yet; the same matcher and the same
assignment as offline judge them, together with the tracklets whose time is not up yet, so that a rival who has just
come may win. What is decided is final.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.associate import Identities, associate
from examples.mtmc.matching.candidates import Candidates, candidates
from examples.mtmc.matching.companions import TOGETHER
from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.matching.methods import match, scene
from examples.mtmc.network.network import Network
from examples.mtmc.online.arrivals import Arrivals
from examples.mtmc.online.decisions import Decision
from examples.mtmc.online.live import Body, Live, Memory, Person, slot_of
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import DUPLICATE, LATE, SILENT, Log
from examples.mtmc.recordings.tracklets import Recording

STEP = 0.5  # seconds of the stream at most between two looks at what is due
GRAIN = 0.1  # and at most this share of the latency; a tracklet is decided one to two steps before its time is up
PATIENCE = 2.0  # seconds after which a tracklet that is not seen any more has ended
SILENCE = 30.0  # seconds after which a camera without rows is noted


class OnlineTracker:
    """Identities within ``latency`` seconds of the stream, final once they are given.

    ``matcher`` and its threshold ``tau`` judge as they do offline; None: link prior and travel time alone. ``step`` is
    the grain of time (default: a tenth of ``latency``, half a second at most), ``patience`` how long a tracklet may be
    out of sight. Rows may come late by ``latency`` (at least ``patience``); later ones are left out and counted in
    ``log``.

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
    ) -> None:
        step = min(STEP, GRAIN * latency) if step is None else step
        if not latency >= 0 or not step >= 0 or not patience >= 0:
            raise ValueError(f"latency, step, patience are {latency}, {step}, {patience}; seconds from 0 on")
        self.network, self.matcher, self.tau = network, matcher, tau
        self.latency, self.step, self.patience = latency, min(step, latency), patience
        self.late = max(latency, patience)
        self.log = Log() if log is None else log
        self.time = -np.inf
        self.ended = False
        self.undecided: list[Live] = []
        self.doubted: list[Live] = []  # began an identity, have ended since: perhaps they followed somebody after all
        self.number = 0
        self._names = list(network.cameras)
        self._index = {name: n for n, name in enumerate(self._names)}
        self._seen = dict.fromkeys(self._names, -np.inf)  # the latest row of every camera
        self._silent: set[str] = set()
        self._into = {name: [x for x in network.links if x.target == name] for name in self._names}
        self._memory = {name: Memory([x for x in network.links if x.source == name]) for name in self._names}
        self._slots = [slot_of(link) for link in network.links]
        self._link = {(link.source, link.target): n for n, link in enumerate(network.links)}
        self._windows = np.array([link.window for link in network.links], dtype=np.float64).reshape(-1, 2)
        self.recent: list[Live] = []  # decided lately: companions of those who are not
        self._arrivals = Arrivals(network)
        self._decisions: list[Decision] = []
        self._closed: list[Live] = []
        self.newest = -np.inf  # the latest row
        self.heard = 0.0  # when it came, by whatever clock its owner uses
        self._tidied = -np.inf

    def push(self, chunk: Chunk) -> None:
        """Rows of any cameras, in any order of time within the allowed lateness."""
        order = np.lexsort((chunk.id, chunk.camera, chunk.time))
        step = np.floor(chunk.time[order] / self.step) if self.step else chunk.time[order]
        for own in np.split(order, np.flatnonzero(np.diff(step)) + 1):
            if len(own):
                time = float(chunk.time[own[0]])
                self._advance(float(np.floor(time / self.step) * self.step) if self.step else time)
                self._take(chunk.take(own))

    def now(self, seconds: float) -> None:
        """Time goes on to ``seconds`` without rows, but by no more than what makes every tracklet due."""
        if self.newest > -np.inf:
            self._advance(min(seconds, self.newest + self.latency))

    def _advance(self, seconds: float) -> None:
        """What is due until ``seconds`` is decided, by the rows before."""
        while self.undecided and not self.ended:
            due = min(t.deadline for t in self.undecided)
            at = max(float(np.floor(due / self.step - 1) * self.step) if self.step else due, self.time)
            if at > seconds or (at == seconds and not self.step):
                break
            self.time = at
            # Two steps ahead, so that a whole one is left for the computing.
            self._decide(max(at + 2 * self.step, float(np.nextafter(due, np.inf))))
        if seconds > self.time:
            self.time = seconds
            self._tidy()

    def decided(self) -> list[Decision]:
        """The decisions since the last call."""
        given, self._decisions = self._decisions, []
        return given

    def closed(self) -> list[Live]:
        """The tracklets that are decided and have ended, since the last call: nothing about them will change."""
        given, self._closed = self._closed, []
        return given

    def stop(self) -> None:
        """No more rows are wanted: what is decided ends here, what is not stays so."""
        self.undecided, self.doubted = [], []
        for tracklet in self._view():
            self._end(tracklet)

    def finish(self) -> None:
        """The stream has ended: everything is decided."""
        self.ended = True
        for name in self._names:
            for tracklet in list(self._memory[name].view.values()):
                self._end(tracklet)
            if self._seen[name] == -np.inf:
                self.log.note(
                    SILENT, "stream", None, f"no row of camera {name}", "rows of every camera of the links file"
                )
        self._decide(np.inf)

    # Rows ------------------------------------------------------------------------------------------------------------

    def _take(self, rows: Chunk) -> None:
        """Rows of one step of time."""
        late = rows.time < self.time - self.late
        if late.any():
            found = f"a row of second {rows.time[late][0]:.2f} at second {self.time:.2f}"
            self._note(LATE, rows, found, f"rows late by at most {self.late:g} s", late)
            rows = rows.take(~late)
            if not len(rows):
                return
        self.newest = max(self.newest, float(rows.time.max()))
        rows = rows.take(np.lexsort((rows.frame, rows.id, rows.camera)))
        same = (np.diff(rows.camera) == 0) & (np.diff(rows.id) == 0)
        twice = np.concatenate([[False], same & (np.diff(rows.frame) == 0)])
        if twice.any():
            self._note(DUPLICATE, rows, "a frame of an id twice", "every frame once", twice)
            rows = rows.take(~twice)
        table = np.column_stack([rows.frame, rows.box, rows.world])
        cuts = np.flatnonzero((np.diff(rows.camera) != 0) | (np.diff(rows.id) != 0)) + 1
        camera, id, frame, time = rows.camera.tolist(), rows.id.tolist(), rows.frame.tolist(), rows.time.tolist()
        for first, last in pairwise([0, *cuts.tolist(), len(rows)]):
            name = self._names[camera[first]]
            self._seen[name] = max(self._seen[name], time[last - 1])
            tracklet = self._memory[name].view.get(id[first])
            goes_on = tracklet is not None and frame[first] > tracklet.last_frame
            if tracklet is None or not goes_on or time[first] - tracklet.time_out > self.patience:
                self._begin(rows.take(slice(first, last)), table[first:last], tracklet)
                continue
            tracklet.add(table[first:last], time[last - 1])
            if rows.embedding is not None:
                tracklet.see(rows.embedding[first:last])

    def _note(self, kind: str, rows: Chunk, found: str, expected: str, which: NDArray[np.bool_]) -> None:
        if not which.any():
            return
        line = int(rows.line[which][0])
        self.log.note(kind, "stream", line if line > 0 else None, found, expected, int(which.sum()))

    def _begin(self, rows: Chunk, table: NDArray[np.float64], tracklet: Live | None) -> None:
        """Rows of one id, in order of their frames, that do not simply go on with its ``tracklet``."""
        camera, id = self._names[int(rows.camera[0])], int(rows.id[0])
        memory = self._memory[camera]
        left_out = np.zeros(len(rows), dtype=bool)
        if tracklet is not None and float(rows.time[0]) - tracklet.time_out > self.patience:
            self._end(tracklet)
            tracklet = None
        if tracklet is None:
            before = memory.last_of.get(id)
            if before is not None:
                left_out = rows.time <= before.time_out
                self._note(LATE, rows, f"a row of id {id} of camera {camera} that had ended", "rows in time", left_out)
            if left_out.all():
                return
            first, placed = int(left_out.argmin()), bool(np.isfinite(rows.world).all())
            part, start = (0 if before is None else before.part + 1), float(rows.time[first])
            tracklet = Live(camera, id, part, start, start + self.latency, placed)
            memory.view[id] = memory.last_of[id] = tracklet
            self.undecided.append(tracklet)
            self._arrivals.start(tracklet)
        else:
            # Late ones find their place; a start is moved back no more, since others may have been told of it.
            twice = np.isin(rows.frame, tracklet.rows[: tracklet.count, 0])
            early = ~twice & (rows.time < tracklet.time_in)
            self._note(DUPLICATE, rows, f"a frame of id {id} of camera {camera} twice", "every frame once", twice)
            self._note(LATE, rows, f"a row before the first of id {id} of camera {camera}", "that one first", early)
            left_out = twice | early
            if left_out.all():
                return
        tracklet.add(table[~left_out], float(rows.time[~left_out][-1]))
        if rows.embedding is not None:
            tracklet.see(rows.embedding[~left_out])

    def _end(self, tracklet: Live) -> None:
        memory = self._memory[tracklet.camera]
        del memory.view[tracklet.id]
        tracklet.end(self.network)
        self._arrivals.end(tracklet)
        if not memory.spent(tracklet):
            memory.remember(tracklet)
        if tracklet.first_of is not None:
            self.doubted.append(tracklet)
        if tracklet.person is not None:
            self._closed.append(tracklet)

    def _tidy(self) -> None:
        """Once a second: end what is out of sight, note silent cameras, forget what no window reaches any more."""
        if self.time < self._tidied + 1 and self.step:
            return
        self._tidied = self.time
        oldest = min((t.time_in for t in self.undecided), default=self.time)
        for name, memory in self._memory.items():
            silent = self.time - self._seen[name]
            if silent <= SILENCE:
                self._silent.discard(name)
            elif name not in self._silent and self._seen[name] > -np.inf:
                self._silent.add(name)
                self.log.note(SILENT, "stream", None, f"no row of camera {name} since {self._seen[name]:.1f} s", "rows")
            memory.forget(min(oldest, self.time - self.late) - memory.horizon - self.patience)
        self._arrivals.forget(min(oldest, self.time - self.late))
        self._forget_meetings()

    def _view(self) -> list[Live]:
        return [t for memory in self._memory.values() for t in memory.view.values()]

    def _forget_meetings(self) -> None:
        """Nobody who is or will be here can have met those who ended before all in view, or still in doubt, came."""
        since = min((t.time_in for t in [*self.undecided, *self.doubted, *self._view()]), default=self.time)
        since = min(since, self.time - self.late)
        for memory in self._memory.values():
            for tracklet in memory.ended:
                if tracklet.person is not None:
                    tracklet.person.body.forget(since)

    # Decisions -------------------------------------------------------------------------------------------------------

    def _decide(self, until: float) -> None:
        """Give every tracklet whose deadline lies before ``until`` its identity."""
        for name, memory in self._memory.items():
            # A camera's own clock says what is out of sight; where it is silent, that of the others does.
            clock = max(self._seen[name], self.time - self.late)
            for tracklet in [t for t in memory.view.values() if clock - t.time_out > self.patience]:
                self._end(tracklet)
        due = [t for t in self.undecided if t.deadline < until or self.ended]
        doubted, self.doubted = [t for t in self.doubted if t.first_of is not None], []
        joins = self._assign([*self.undecided, *doubted])
        self._settle(due, joins)
        for tracklet in doubted:
            for join in joins.get(tracklet, []):
                if join.earlier.person is not None:
                    self._follow(tracklet, join)
            tracklet.first_of = None
        self.undecided = [t for t in self.undecided if t.person is None]
        oldest = min((t.time_in for t in self.undecided), default=self.time)
        self.recent = [t for t in [*self.recent, *due] if t.time_in >= oldest - TOGETHER]

    def _assign(self, asked: list[Live]) -> dict[Live, list[Join]]:
        """For those who follow somebody: whom, the best first."""
        sources = list(self._sources(asked))
        others = [*sources, *self.recent]
        nodes = sorted({*asked, *others, *(b for t in others for b in t.before)}, key=lambda t: t.order)
        recording = Recording(self.network, [t.tracklet(self.network) for t in nodes])
        pairs, may_join = self._pairs(nodes, set(asked), recording)
        if not may_join.any():
            return {}
        rates = self._arrivals.rates(nodes, np.inf if self.ended else self.time)
        looks = self._arrivals.looks_of(nodes, self.ended)
        given = scene(recording, self.network, pairs=pairs, looks=looks, rates=rates)
        if self.matcher is None:
            with np.errstate(divide="ignore"):
                gain = given.prior.log_odds(pairs) - self.tau
        else:
            gain = match(self.matcher, given).gain.double().numpy() - self.tau
        may = np.unique([pairs.source[may_join], pairs.target[may_join]])
        chains = Chains(nodes, may.tolist(), self._index)
        associate(recording, pairs.source[may_join], pairs.target[may_join], gain[may_join], chains)
        place = {(a, b): n for n, (a, b) in enumerate(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))}
        joins: dict[Live, list[Join]] = {}
        for a, b in chains.joins:
            n = place[a, b]
            slot = self._slots[int(pairs.link[n])]
            joins.setdefault(nodes[b], []).append(Join(nodes[a], slot, float(gain[n])))
        return {target: sorted(found, key=lambda join: -join.score) for target, found in joins.items()}

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
                yield from self._memory[link.source].between(first - high, last - low, link.measure == "enter")

    def _settle(self, due: list[Live], joins: dict[Live, list[Join]]) -> None:
        """Decide those who are due, and whomever they follow: all who belong together at once."""
        chosen, waiting = set(due), list(due)
        while waiting:
            earlier = [x.earlier for x in joins.get(waiting.pop(), []) if x.earlier.person is None]
            waiting += [t for t in earlier if t not in chosen]
            chosen.update(earlier)
        group = {t: t for t in chosen}

        def find(t: Live) -> Live:
            while group[t] is not t:
                group[t] = group[group[t]]
                t = group[t]
            return t

        best: dict[Live, Join] = {}  # of a group, whom it follows most surely of those who have an identity
        for tracklet in chosen:
            for join in joins.get(tracklet, []):
                if join.earlier.person is None:
                    group[find(tracklet)] = find(join.earlier)
        for tracklet in chosen:
            own = find(tracklet)
            for join in joins.get(tracklet, []):
                if join.earlier.person is not None and (own not in best or join.score > best[own].score):
                    best[own] = join
        persons = {own: join.earlier.person for own, join in best.items()}
        for tracklet in sorted(chosen, key=lambda t: t.order):
            own = find(tracklet)
            person = persons.get(own)
            if person is None:
                self.number += 1
                person = persons[own] = Person(self.number)
            if not joins.get(tracklet) and not tracklet.ended:
                tracklet.first_of = person  # there is more to see of it
            self._name(tracklet, person, joins.get(tracklet, []))

    def _name(self, tracklet: Live, person: Person, joins: list[Join]) -> None:
        tracklet.person = person
        person.body.tracklets.append(tracklet)
        if tracklet.ended:
            self._closed.append(tracklet)
        self._tell("identity", tracklet, joins[0] if joins else None, person)
        for join in joins:
            self._follow(tracklet, join)

    def _follow(self, tracklet: Live, join: Join) -> None:
        """It follows somebody; where that one's identity is another, both are one."""
        own, other = tracklet.person, join.earlier.person
        assert own is not None and other is not None
        join.earlier.taken.add(join.slot)
        tracklet.before.append(join.earlier)
        for grandparent in join.earlier.before:
            grandparent.before = []
        if own.body is not other.body:
            own.body.swallow(other.body)
            self._tell("alias", tracklet, join, other)

    def _tell(self, kind: str, tracklet: Live, join: Join | None, person: Person) -> None:
        assert tracklet.person is not None
        self._decisions.append(
            Decision(
                kind,
                self.time,
                person.number,
                tracklet.camera,
                tracklet.id,
                tracklet.part,
                tracklet.time_in,
                after_camera=None if join is None else join.earlier.camera,
                after_id=None if join is None else join.earlier.id,
                after_part=None if join is None else join.earlier.part,
                score=None if join is None else join.score,
                alias_of=tracklet.person.number if kind == "alias" else None,
            )
        )


@dataclass(frozen=True)
class Join:
    """Somebody to follow, in which of his slots, and by what log-odds less the threshold."""

    earlier: Live
    slot: str
    score: float


class Chains(Identities):
    """Identities that go on from those given before, and who was joined to whom.

    ``asked`` are the numbers of those of ``nodes`` that may be joined to others: of these, where their identities were
    is known too.
    """

    def __init__(self, nodes: list[Live], asked: list[int], cameras: dict[str, int]) -> None:
        self.count = len(nodes)
        self.camera = [cameras[t.camera] for t in nodes]
        self.time_in = [t.time_in for t in nodes]
        self.time_out = [t.time_out if t.ended else np.inf for t in nodes]
        self.group, self.ring = list(range(self.count)), list(range(self.count))
        self.joins: list[tuple[int, int]] = []
        place = {t: n for n, t in enumerate(nodes)}
        bodies: dict[Body, dict[Live, None]] = {}
        for n in asked:
            person = nodes[n].person
            if person is not None:  # its body may have forgotten it
                bodies.setdefault(person.body, dict.fromkeys(person.body.tracklets))[nodes[n]] = None
        for tracklets in bodies.values():
            own = [place[t] if t in place else self._beside(t, cameras) for t in tracklets]
            for n, following in zip(own, [*own[1:], own[0]], strict=True):
                self.group[n], self.ring[n] = own[0], following

    def _beside(self, tracklet: Live, cameras: dict[str, int]) -> int:
        """Somebody who is no node any more, but of an identity that is."""
        self.camera.append(cameras[tracklet.camera])
        self.time_in.append(tracklet.time_in)
        self.time_out.append(tracklet.time_out if tracklet.ended else np.inf)
        self.group.append(len(self.group))
        self.ring.append(len(self.ring))
        return len(self.ring) - 1

    def copy(self) -> Chains:
        """The same, to try what may grow together."""
        other = super().copy()
        assert isinstance(other, Chains)
        other.joins = list(self.joins)
        return other

    def become(self, other: Identities) -> None:
        """What a copy of it has grown to, and by which joins."""
        assert isinstance(other, Chains)
        super().become(other)
        self.joins = other.joins

    def join(self, a: int, b: int) -> bool:
        """As it does; and remembers."""
        joined = super().join(a, b)
        if joined:
            self.joins.append((a, b))
        return joined
