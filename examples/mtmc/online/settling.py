"""Who is who, for good: a number for each identity, decisions as they are made, aliases where two are one."""

from __future__ import annotations

from examples.mtmc.online.decisions import Decision
from examples.mtmc.online.live import Live, Person
from examples.mtmc.online.weighing import Join


class Settling:
    """Gives identities, counted from 1, and tells of it."""

    def __init__(self) -> None:
        self.number = 0
        self.decisions: list[Decision] = []

    def settle(self, due: list[Live], joins: dict[Live, list[Join]], now: float) -> list[Live]:
        """Decide those who are due, and whomever they follow: all who belong together at once; who that was."""
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
        ordered = sorted(chosen, key=lambda t: t.order)
        for tracklet in ordered:
            own = find(tracklet)
            person = persons.get(own)
            if person is None:
                self.number += 1
                person = persons[own] = Person(self.number)
            if not joins.get(tracklet) and not tracklet.ended:
                tracklet.first_of = person  # there is more to see of it
            self._name(tracklet, person, joins.get(tracklet, []), now)
        return ordered

    def _name(self, tracklet: Live, person: Person, joins: list[Join], now: float) -> None:
        tracklet.person = person
        person.body.tracklets.append(tracklet)
        self._tell("identity", tracklet, joins[0] if joins else None, person, now)
        for join in joins:
            self.follow(tracklet, join, now)

    def follow(self, tracklet: Live, join: Join, now: float) -> None:
        """It follows somebody; where that one's identity is another, both are one."""
        own, other = tracklet.person, join.earlier.person
        assert own is not None and other is not None
        join.earlier.taken.add(join.slot)
        tracklet.before.append(join.earlier)
        for grandparent in join.earlier.before:
            grandparent.before = []
        if own.body is not other.body:
            own.body.swallow(other.body)
            self._tell("alias", tracklet, join, other, now)

    def _tell(self, kind: str, tracklet: Live, join: Join | None, person: Person, now: float) -> None:
        assert tracklet.person is not None
        self.decisions.append(
            Decision(
                kind,
                now,
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
