"""Where a person who stands here in one view stands in another that overlaps it: learned from the other people.

No calibration is needed: the way from a box in one view (its foot point and height) to the point in the other is a
quadratic map, fitted by ridge regression to people whom both see. What is left over says whether two tracklets are one:

    place(a, b) = log t₃(r; 0, s) − log N(r; m, σ),     r = mean over common frames of point_b − map(point_a)

s is the leftover of other people's own pairs (each judged by a map without them), m and σ that of other strangers.
Both directions are asked, and the mean is taken. Everything is fitted without both identities of the pair judged.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import norm, t

from examples.mtmc.recordings.tracklets import Recording

COMMON = 10  # frames that two tracklets must share
RIDGE = 0.1  # in shares of one pair
TYPICAL, WEIGHT = 0.1, 2.0  # the leftover to start from, of a picture's half, and how many pairs it counts for
FREEDOM = 3.0
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Shared:
    """Two tracklets of overlapping views that are seen at once, as the regression needs them."""

    source: int
    target: int
    who: frozenset[int]  # the true identities: one or two
    features: Floats  # mean over common frames
    point: Floats  # the same of the other view
    gram: Floats
    cross: Floats


def shared(recording: Recording, source: str, target: str, size: tuple[float, float]) -> list[Shared]:
    """All pairs of labelled tracklets that the two views see at once."""
    labelled = [(n, x) for n, x in enumerate(recording.tracklets) if x.truth is not None]
    pairs = []
    for a, first in labelled:
        for b, second in labelled:
            if first.camera != source or second.camera != target:
                continue
            _, i, j = np.intersect1d(first.frames, second.frames, return_indices=True)
            if len(i) >= COMMON:
                x, y = _features(first.boxes[i], size), _point(second.boxes[j], size)
                who = frozenset((int(first.truth or 0), int(second.truth or 0)))
                n = len(i)
                pairs.append(Shared(a, b, who, x.mean(0), y.mean(0), x.T @ x / n, x.T @ y / n))
    return pairs


def _point(boxes: Floats, size: tuple[float, float]) -> Floats:
    """The middle of a box's top edge and its height, in halves of the picture."""
    left, top, width, height = boxes.T
    return np.stack([2 * left + width, 2 * top, 2 * height], 1) / [size[0], size[1], size[1]] - [1, 1, 0]


def _features(boxes: Floats, size: tuple[float, float]) -> Floats:
    """1, the foot point, the height, and their products."""
    x, top, h = _point(boxes, size).T
    y = top + h
    return np.stack([np.ones_like(x), x, y, h, x * x, x * y, y * y, x * h], 1)


def _map(pairs: list[Shared]) -> Floats:
    gram, cross = sum(p.gram for p in pairs), sum(p.cross for p in pairs)
    ridge = RIDGE * np.eye(len(np.asarray(gram)))
    ridge[0, 0] = 0.0
    return np.asarray(np.linalg.solve(gram + ridge, cross))


def place_odds(
    recording: Recording, overlapping: list[tuple[str, str]], size: tuple[float, float]
) -> dict[tuple[int, int], float]:
    """The log-odds of every pair of tracklets (a < b) that overlapping views see at once, by place alone."""
    odds: dict[tuple[int, int], float] = {}
    for one, other in overlapping:
        there, back = (
            _one_direction(shared(recording, source, target, size)) for source, target in ((one, other), (other, one))
        )
        odds |= {(min(a, b), max(a, b)): (there[a, b] + back[b, a]) / 2 for a, b in there}
    return odds


def _one_direction(pairs: list[Shared]) -> dict[tuple[int, int], float]:
    learned = {who: _learn([p for p in pairs if not p.who & who]) for who in {p.who for p in pairs}}
    odds = {}
    for pair in pairs:
        given = learned[pair.who]
        if given is None:
            odds[pair.source, pair.target] = 0.0  # too few others: place says nothing
            continue
        mapping, spread, mean, strange = given
        rest = pair.point - pair.features @ mapping
        ratio = t.logpdf(rest, FREEDOM, 0.0, spread) - norm.logpdf(rest, mean, strange)
        odds[pair.source, pair.target] = float(ratio.sum())
    return odds


def _learn(others: list[Shared]) -> tuple[Floats, Floats, Floats, Floats] | None:
    """The map, the leftovers' spread of true pairs, and mean and spread of strangers'."""
    true, strangers = [p for p in others if len(p.who) == 1], [p for p in others if len(p.who) == 2]
    if len({p.who for p in true}) < 3 or len(strangers) < 3:
        return None
    mapping = _map(true)
    without = {who: _map([q for q in true if q.who != who]) for who in {p.who for p in true}}
    rest = np.stack([p.point - p.features @ without[p.who] for p in true])
    strange = np.stack([p.point - p.features @ mapping for p in strangers])
    variance = np.median(rest**2, 0) / 0.455  # the median of a squared standard normal
    spread = np.sqrt((variance * len(rest) + WEIGHT * TYPICAL**2) / (len(rest) + WEIGHT))
    return mapping, spread, strange.mean(0), strange.std(0)
