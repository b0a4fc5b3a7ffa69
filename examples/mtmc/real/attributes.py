"""Categorical looks as a dot product, and order as a bias: the same operator as everywhere.

    logit(a, b) = Σ_k log P(x_k, y_k | one vehicle) / P(x_k) P(y_k)  +  log P(b | order, a)  +  log P(a is seen again)
    logit(a, nobody) = log P(a is not seen again)

With y_k redrawn by mistake with probability δ_k, an attribute that agrees counts log((1 − δ_k) / f(y_k) + δ_k), one
that does not log δ_k: rare values say more. A model is judged within its make. One-hot vectors make it a dot product.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

import attnops
from examples.mtmc.real.match_table import Crossing, Looks

FLOOR = 0.03  # the share of vehicles that keep to no order
Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Learned:
    """What other crossings show: mistakes δ, how often each value is seen, who is lost, and how far order is kept."""

    mistakes: tuple[float, float, float]  # of colour, make, and model within its make
    count: dict[tuple[str, ...], int]  # of ("colour", value), ("make", value), ("model", make, value), and kinds alone
    lost: float  # share of the leaving that do not enter
    fresh: float  # share of the entering that did not leave
    spread: float  # mean distance from the alignment, in tracklet numbers

    def frequency(self, kind: str, *value: str) -> float:
        """How often a value is seen, one unseen kind counted too."""
        whole = self.count.get((kind, *value[:-1]), 0)
        return (self.count.get((kind, *value), 0) + 0.5) / (whole + 1.0)


def _keys(looks: Looks) -> list[tuple[str, ...]]:
    colour, make, model = looks
    return [("colour", colour), ("make", make), ("model", make, model)]


def learn(others: list[Crossing]) -> Learned:
    """Count on labelled crossings; each rate is drawn a little towards 5 % and 15 %."""
    unequal, total = np.zeros(3), np.zeros(3)
    count: Counter[tuple[str, ...]] = Counter()
    for crossing in others:
        for looks in crossing.leaving_looks + crossing.entering_looks:
            for key in _keys(looks):
                count[key] += 1
                count[key[:-1]] += 1
        for n in np.flatnonzero(crossing.true >= 0):
            x, y = crossing.leaving_looks[n], crossing.entering_looks[crossing.true[n]]
            judged = np.array([True, True, x[1] == y[1]])  # a model within its make
            unequal += judged & np.array([x[k] != y[k] for k in range(3)])
            total += judged
    mistakes = (unequal + 0.5) / (total + 10.0)
    leaving, entering = (sum(len(getattr(c, side)) for c in others) for side in ("leaving", "entering"))
    seen = sum(int((c.true >= 0).sum()) for c in others)
    first = Learned(
        tuple(mistakes.tolist()),
        dict(count),
        (leaving - seen + 1.5) / (leaving + 10),
        (entering - seen + 1.5) / (entering + 10),
        spread=1.0,
    )
    away = np.concatenate([_away(c, align(gains(c, first)))[c.true >= 0] for c in others])
    return Learned(first.mistakes, first.count, first.lost, first.fresh, float(away.mean()) + 1.0)


def _away(crossing: Crossing, path: list[tuple[int, int]]) -> Floats:
    return np.abs(crossing.entering[crossing.true] - expected(crossing, path))


def vectors(looks: list[Looks], learned: Learned, number: dict[tuple[str, ...], int], weighted: bool) -> torch.Tensor:
    """One-hot rows; ``weighted`` by what agreement adds to disagreement, so that q · k is the log ratio."""
    rows = torch.zeros(len(looks), len(number))
    colour, make, model = learned.mistakes
    for n, own in enumerate(looks):
        for key, mistake in zip(_keys(own), (colour, make, model), strict=True):
            agree = np.log((1 - mistake) / learned.frequency(*key) + mistake) - np.log(mistake)
            if key[0] == "make":
                agree += np.log(model)  # makes agree, so models are judged: log δ unless they agree too
            rows[n, number[key]] = agree if weighted else 1.0
    return rows


def gains(crossing: Crossing, learned: Learned, order: tuple[Floats, Floats] | None = None) -> Floats:
    """Log-odds of every pair against nobody at both ends; ``order``: log P(b | a) and log P(a | b)."""
    leaving, entering = crossing.leaving_looks, crossing.entering_looks
    keys = dict.fromkeys(key for looks in leaving + entering for key in _keys(looks))
    number = {key: n for n, key in enumerate(keys)}
    shape = len(leaving), len(entering)
    ahead, back = order or (np.full(shape, -np.log(shape[1])), np.full(shape, -np.log(shape[0])))
    weighted, plain = vectors(leaving, learned, number, True), vectors(entering, learned, number, False)
    after = _log_odds(weighted, plain, ahead, learned, learned.lost)
    before = _log_odds(plain, weighted, back.T, learned, learned.fresh).T
    return np.asarray((after + before) / 2)


def _log_odds(query: torch.Tensor, key: torch.Tensor, order: Floats, learned: Learned, nobody: float) -> Floats:
    """One attention of the queries over the keys and "nobody": the log weight of each key less that of nobody."""
    unlike = np.log(learned.mistakes[0]) + np.log(learned.mistakes[1])  # what disagreement in all says
    prior = np.log1p(-nobody) + unlike + order
    bias = torch.from_numpy(np.column_stack([prior, np.full(len(prior), np.log(nobody))]))
    keys = torch.cat([key, torch.zeros(1, key.shape[1])])
    value = torch.zeros(1, len(keys), 1, dtype=torch.float64)
    result = attnops.attend(
        query.double()[None], keys.double()[None], value, bias=bias[None], scale=1.0, return_weights=True
    )
    assert isinstance(result, attnops.AttentionOutput) and result.weights is not None
    log_weight = result.weights[0].clamp_min(1e-300).log()
    odds: Floats = (log_weight[:, :-1] - log_weight[:, -1:]).numpy()
    return odds


def align(gain: Floats) -> list[tuple[int, int]]:
    """The pairs of largest total gain among those that never cross: first in, first out, with leaving and joining."""
    n, m = gain.shape
    best = np.zeros((n + 1, m + 1))
    for i in range(n):
        taken = np.maximum(best[i, :-1] + gain[i], best[i, 1:])
        best[i + 1, 1:] = np.maximum.accumulate(taken)
    path, i, j = [], n, m
    while i and j:
        if best[i, j] == best[i - 1, j]:
            i -= 1
        elif best[i, j] == best[i, j - 1]:
            j -= 1
        else:
            i, j = i - 1, j - 1
            path.append((i, j))
    return path[::-1]


def expected(crossing: Crossing, path: list[tuple[int, int]]) -> Floats:
    """The tracklet number with which each of the leaving should enter, by the others of the path before and after."""
    result = np.zeros(len(crossing.leaving))
    for n, left in enumerate(crossing.leaving):
        others = [(a, b) for a, b in path if a != n]
        if not others:
            result[n] = float(crossing.entering.mean())
            continue
        a, b = (list(x) for x in zip(*others, strict=True))
        result[n] = np.interp(left, crossing.leaving[a], crossing.entering[b])
    return result


def order_prior(crossing: Crossing, learned: Learned, path: list[tuple[int, int]]) -> tuple[Floats, Floats]:
    """log P(b | a) and log P(a | b) by order alone: the nearer to the alignment the likelier, a few anywhere."""
    distance = np.abs(crossing.entering - expected(crossing, path)[:, None])
    near = np.exp(-distance / learned.spread)

    def log_share(axis: int) -> Floats:
        return np.asarray(np.log((1 - FLOOR) * near / near.sum(axis, keepdims=True) + FLOOR / near.shape[axis]))

    return log_share(1), log_share(0)
