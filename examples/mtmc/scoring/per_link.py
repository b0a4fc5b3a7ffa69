"""Precision and recall of every link: which ways the tracker gets right, and which it does not."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Recording


@dataclass(frozen=True)
class LinkScore:
    """Passages from one camera to another: how many are true, how many were predicted, how many of these are right."""

    source: str
    target: str
    true: int
    predicted: int
    right: int

    @property
    def precision(self) -> float | None:
        """Right ones among the predicted."""
        return self.right / self.predicted if self.predicted else None

    @property
    def recall(self) -> float | None:
        """Right ones among the true."""
        return self.right / self.true if self.true else None


def per_link(recording: Recording, identity: NDArray[np.int64], scored: list[int] | None = None) -> list[LinkScore]:
    """Scores of all pairs of cameras between which somebody went, or was thought to.

    A passage is a pair of tracklets that follow each other in one identity; counted are those into the ``scored``
    tracklets (default: all).
    """
    truth = [-1 if t.truth is None else t.truth for t in recording.tracklets]
    counted = set(range(len(truth)) if scored is None else scored)
    true, predicted = (_passages(who, counted) for who in (truth, identity.tolist()))
    count: dict[tuple[str, str], list[int]] = defaultdict(lambda: [0, 0, 0])
    for n, pairs in enumerate((true, predicted, true & predicted)):
        for a, b in pairs:
            count[recording.tracklets[a].camera, recording.tracklets[b].camera][n] += 1
    order = {name: n for n, name in enumerate(recording.network.cameras)}
    return [LinkScore(*ends, *count[ends]) for ends in sorted(count, key=lambda ends: (order[ends[0]], order[ends[1]]))]


def _passages(who: list[int], counted: set[int]) -> set[tuple[int, int]]:
    last: dict[int, int] = {}
    found = set()
    for n, identity in enumerate(who):
        if identity < 0:
            continue
        if identity in last and n in counted:
            found.add((last[identity], n))
        last[identity] = n
    return found
