"""From gains of links to identities: assignment, chained, with one tracklet per camera and time in an identity."""

from __future__ import annotations

import copy

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from examples.mtmc.matching.slots import Slots, slots_of
from examples.mtmc.recordings.tracklets import Recording

Chosen = NDArray[np.int64]


def associate(
    recording: Recording,
    source: NDArray[np.int64],
    target: NDArray[np.int64],
    gain: NDArray[np.float64],
    identities: Identities | None = None,
) -> NDArray[np.int64]:
    """An identity (0, 1, …) for every tracklet.

    Every tracklet has at most one successor and one predecessor in sequence, and one partner in each view that
    overlaps its own (``slots.py``); leaving a slot to "nobody" gains 0, so links of positive gain alone are taken, and
    those that make the sum largest. A link that would put two simultaneous tracklets of one camera into one identity
    is refused, the best links first, and what its ends may do instead is assigned again until nothing more is gained.
    The sum is never below that of taking the best link that is left, again and again. ``identities`` are those to
    begin with (default: all alone); they grow.
    """
    identities = identities or Identities(recording)
    useful = np.flatnonzero(gain > 0)
    source, target, gain = source[useful], target[useful], gain[useful]
    slots = slots_of(recording, source, target)
    ways = [(own := identities.copy(), way(own, source, target, slots, gain)) for way in (_assigned, _greedy)]
    grown, _ = max(ways, key=lambda way: float(gain[way[1]].sum()))
    identities.become(grown)
    return identities.labels()


def _assigned(
    identities: Identities, source: Chosen, target: Chosen, slots: Slots, gain: NDArray[np.float64]
) -> list[int]:
    """The links that assignments pick and identities allow, in the order in which they are joined."""
    joined: list[int] = []
    useful = np.flatnonzero(gain > 0)
    left = np.zeros(len(slots.owner_out), dtype=bool)
    entered = np.zeros(len(slots.owner_in), dtype=bool)
    while len(useful):
        picked = useful[assign(slots.out_of[useful], slots.into[useful], gain[useful])]
        best_first = picked[np.argsort(-gain[picked], kind="stable")]
        ends = zip(best_first.tolist(), source[best_first].tolist(), target[best_first].tolist(), strict=True)
        allowed = [edge for edge, a, b in ends if identities.join(a, b)]
        joined += allowed
        left[slots.out_of[allowed]] = entered[slots.into[allowed]] = True
        if len(allowed) == len(picked):
            break
        rest = useful[~np.isin(useful, picked)]
        useful = rest[~left[slots.out_of[rest]] & ~entered[slots.into[rest]]]
    return joined


def _greedy(
    identities: Identities, source: Chosen, target: Chosen, slots: Slots, gain: NDArray[np.float64]
) -> list[int]:
    """The best links first, whatever they cost others."""
    joined: list[int] = []
    left, entered = bytearray(len(slots.owner_out)), bytearray(len(slots.owner_in))
    useful = np.flatnonzero(gain > 0)
    useful = useful[np.argsort(-gain[useful], kind="stable")]
    columns = (x[useful].tolist() for x in (slots.out_of, slots.into, source, target))
    for edge, out, into, a, b in zip(useful.tolist(), *columns, strict=True):
        if not left[out] and not entered[into] and identities.join(a, b):
            left[out] = entered[into] = 1
            joined.append(edge)
    return joined


def assign(source: NDArray[np.int64], target: NDArray[np.int64], gain: NDArray[np.float64]) -> NDArray[np.int64]:
    """The edges (by number) of the best one-to-one assignment; solved apart wherever the candidates fall apart."""
    if not len(gain):
        return np.zeros(0, dtype=np.int64)
    _, left = np.unique(source, return_inverse=True)
    _, right = np.unique(target, return_inverse=True)
    n, m = int(left.max()) + 1, int(right.max()) + 1
    both = coo_matrix((np.ones(len(gain)), (left, n + right)), shape=(n + m, n + m))
    count, part = connected_components(both, directed=False)
    own = part[left]
    ends = [np.bincount(part[k : k + size], minlength=count) for k, size in ((0, n), (n, m))]
    # Where all want one and the same, the best has it.
    star = np.minimum(*ends)[own] == 1
    order = np.lexsort((-gain, own))
    order = order[star[order]]
    picked = [order[np.diff(own[order], prepend=-1) != 0]]
    order = np.flatnonzero(~star)
    order = order[np.argsort(own[order], kind="stable")]
    for among in np.split(order, np.flatnonzero(np.diff(own[order])) + 1):
        if len(among):
            picked.append(_best(left[among], right[among], gain[among], among))
    return np.concatenate(picked)


def _best(left: Chosen, right: Chosen, gain: NDArray[np.float64], number: Chosen) -> Chosen:
    """Of edges that hang together, the numbers of those that the best assignment takes."""
    _, i = np.unique(left, return_inverse=True)
    _, j = np.unique(right, return_inverse=True)
    value = np.zeros((int(i.max()) + 1, int(j.max()) + 1))  # 0: nobody
    edge = np.full(value.shape, -1, dtype=np.int64)
    value[i, j], edge[i, j] = gain, number
    chosen: Chosen = edge[linear_sum_assignment(value, maximize=True)]
    return chosen[chosen >= 0]


class Identities:
    """Groups of tracklets that may grow together unless two of one camera would be there at once.

    ``group`` leads to the tracklet that stands for all, ``ring`` from each to another of its group and round. Plain
    lists: an object for each would be gone through, again and again, by the interpreter's search for garbage.
    """

    def __init__(self, recording: Recording) -> None:
        number = {name: n for n, name in enumerate(recording.network.cameras)}
        self.count = len(recording.tracklets)
        self.camera = [number[t.camera] for t in recording.tracklets]
        # Times side by side in memory, wherever the tracklets' own lie.
        self.time_in = np.array([t.time_in for t in recording.tracklets], dtype=np.float64).tolist()
        self.time_out = np.array([t.time_out for t in recording.tracklets], dtype=np.float64).tolist()
        self.group, self.ring = list(range(self.count)), list(range(self.count))

    def copy(self) -> Identities:
        """The same groups, to try what may grow together."""
        other = copy.copy(self)
        other.group, other.ring = list(self.group), list(self.ring)
        return other

    def become(self, other: Identities) -> None:
        """What a copy of it has grown to."""
        self.group, self.ring = other.group, other.ring

    def find(self, n: int) -> int:
        """The group of a tracklet."""
        while self.group[n] != n:
            self.group[n] = self.group[self.group[n]]
            n = self.group[n]
        return n

    def join(self, a: int, b: int) -> bool:
        """Join the groups of two tracklets; False where they are one already or two would be seen at once."""
        a, b = self.find(a), self.find(b)
        if a == b or self._meet(a, b):
            return False
        self.group[b] = a
        self.ring[a], self.ring[b] = self.ring[b], self.ring[a]  # two rings become one
        return True

    def _meet(self, a: int, b: int) -> bool:
        """Whether two of one camera would be there at once."""
        ring, camera, time_in, time_out = self.ring, self.camera, self.time_in, self.time_out
        x = a
        while True:
            here, start, end = camera[x], time_in[x], time_out[x]
            y = b
            while True:
                if camera[y] == here and start <= time_out[y] and time_in[y] <= end:
                    return True
                y = ring[y]
                if y == b:
                    break
            x = ring[x]
            if x == a:
                return False

    def labels(self) -> NDArray[np.int64]:
        """Identities numbered in the order of their first tracklets."""
        roots = [self.find(n) for n in range(self.count)]
        number = {root: n for n, root in enumerate(dict.fromkeys(roots))}
        return np.array([number[root] for root in roots], dtype=np.int64)
