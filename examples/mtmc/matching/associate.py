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
    slots = slots_of(recording, source, target)
    ways = [way(identities.copy(), source, target, slots, gain) for way in (_assigned, _greedy)]
    for edge in max(ways, key=lambda edges: float(gain[edges].sum())):
        identities.join(int(source[edge]), int(target[edge]))
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
        allowed = [e for e in picked[np.argsort(-gain[picked], kind="stable")].tolist()
                   if identities.join(int(source[e]), int(target[e]))]  # fmt: skip
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
    left, entered = set[int](), set[int]()
    useful = np.flatnonzero(gain > 0)
    for edge in useful[np.argsort(-gain[useful], kind="stable")].tolist():
        out, into = int(slots.out_of[edge]), int(slots.into[edge])
        if out not in left and into not in entered and identities.join(int(source[edge]), int(target[edge])):
            left.add(out)
            entered.add(into)
            joined.append(edge)
    return joined


def assign(source: NDArray[np.int64], target: NDArray[np.int64], gain: NDArray[np.float64]) -> NDArray[np.int64]:
    """The edges (by number) of the best one-to-one assignment; solved apart wherever the candidates fall apart."""
    _, left = np.unique(source, return_inverse=True)
    _, right = np.unique(target, return_inverse=True)
    n, m = int(left.max()) + 1, int(right.max()) + 1
    both = coo_matrix((np.ones(len(gain)), (left, n + right)), shape=(n + m, n + m))
    count, part = connected_components(both, directed=False)
    order = np.argsort(part[left], kind="stable")
    edges = np.split(order, np.searchsorted(part[left][order], np.arange(1, count)))
    picked = []
    for own in edges:
        if len(own) == 1:
            picked.append(own)
            continue
        if (left[own] == left[own[0]]).all() or (right[own] == right[own[0]]).all():
            picked.append(own[[gain[own].argmax()]])  # all want one and the same: the best has it
            continue
        _, i = np.unique(left[own], return_inverse=True)
        _, j = np.unique(right[own], return_inverse=True)
        value = np.zeros((int(i.max()) + 1, int(j.max()) + 1))  # 0: nobody
        number = np.full(value.shape, -1, dtype=np.int64)
        value[i, j], number[i, j] = gain[own], own
        rows, columns = linear_sum_assignment(value, maximize=True)
        chosen = number[rows, columns]
        picked.append(chosen[chosen >= 0])
    return np.concatenate(picked) if picked else np.zeros(0, dtype=np.int64)


class Identities:
    """Groups of tracklets that may grow together unless two of one camera would be there at once."""

    def __init__(self, recording: Recording) -> None:
        cameras = {name: n for n, name in enumerate(recording.network.cameras)}
        self.group = list(range(len(recording.tracklets)))
        self.spans = [[(cameras[t.camera], t.time_in, t.time_out)] for t in recording.tracklets]

    def copy(self) -> Identities:
        """The same groups, to try what may grow together."""
        other = copy.copy(self)
        other.group, other.spans = list(self.group), list(self.spans)
        return other

    def find(self, n: int) -> int:
        """The group of a tracklet."""
        while self.group[n] != n:
            self.group[n] = self.group[self.group[n]]
            n = self.group[n]
        return n

    def join(self, a: int, b: int) -> bool:
        """Join the groups of two tracklets; False where they are one already or two would be seen at once."""
        a, b = self.find(a), self.find(b)
        if a == b or any(_at_once(x, y) for x in self.spans[a] for y in self.spans[b]):
            return False
        self.group[b] = a
        self.spans[a] = self.spans[a] + self.spans[b]  # a new list: copies keep theirs
        return True

    def labels(self) -> NDArray[np.int64]:
        """Identities numbered in the order of their first tracklets."""
        roots = [self.find(n) for n in range(len(self.group))]
        number = {root: n for n, root in enumerate(dict.fromkeys(roots))}
        return np.array([number[root] for root in roots], dtype=np.int64)


def _at_once(x: tuple[int, float, float], y: tuple[int, float, float]) -> bool:
    return x[0] == y[0] and x[1] <= y[2] and y[1] <= x[2]
