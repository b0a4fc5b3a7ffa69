"""Identities of the stream as the association sees them: those given before go on, and it is known who was joined."""

from __future__ import annotations

import numpy as np

from examples.mtmc.matching.associate import Identities
from examples.mtmc.online.live import Body, Live


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
