"""How long a link takes: densities of the delay between leaving one camera and entering another."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

FLOOR = 0.03  # the share of passages that follow no rule, spread evenly over the window
TYPICAL = {"lognormal": 0.3, "normal": 1.5}  # spreads of real links (of the log; in seconds), to start from
LEAST = {"lognormal": 0.05, "normal": 0.2}
SHRINKAGE = 2.0  # how many passages a typical spread, or a centre that was given, counts for


@dataclass(frozen=True)
class TravelTime:
    """A mixture of lognormals (delays in seconds, positive) or of normals, with a uniform floor over the window.

        p(Δt) = (1 − ε) Σ_k w_k LogNormal(Δt; log median_k, log_sd_k) + ε / (hi − lo)

    ``components`` are (weight, centre, spread): median and sd of the log for "lognormal", mean and sd in seconds for
    "normal", which an overlap with its negative delays needs.
    """

    kind: str
    components: tuple[tuple[float, float, float], ...]
    window: tuple[float, float]

    def log_density(self, delay: ArrayLike) -> NDArray[np.float64]:
        """log p(Δt) per second; −inf outside the window."""
        delay = np.asarray(delay, dtype=np.float64)
        low, high = self.window
        density = np.full(delay.shape, FLOOR / (high - low))
        for weight, centre, spread in self.components:
            density += (1 - FLOOR) * weight * _density(self.kind, delay, centre, spread)
        inside = (delay >= low) & (delay <= high)
        return np.where(inside, np.log(density), -np.inf)

    @property
    def centre(self) -> float:
        """The typical delay: the median or mean of the heaviest component."""
        return max(self.components)[1]

    def stretched(self, factor: float) -> TravelTime:
        """The same belief with every delay ``factor`` times as long: for asking what a wrong prior costs."""
        return TravelTime(self.kind, tuple((w, c * factor, s) for w, c, s in self.components), self.window)


def _density(kind: str, delay: NDArray[np.float64], centre: ArrayLike, spread: ArrayLike) -> NDArray[np.float64]:
    centre, spread = np.asarray(centre, dtype=np.float64), np.asarray(spread, dtype=np.float64)
    if kind == "normal":
        return np.asarray(np.exp(-0.5 * ((delay - centre) / spread) ** 2) / (spread * math.sqrt(2 * math.pi)))
    positive = np.maximum(delay, 1e-9)
    z = (np.log(positive) - np.log(centre)) / spread
    return np.where(delay > 0, np.exp(-0.5 * z**2) / (positive * spread * math.sqrt(2 * math.pi)), 0.0)


def log_densities(
    travels: Sequence[TravelTime], which: NDArray[np.int64], delay: NDArray[np.float64]
) -> NDArray[np.float64]:
    """``travels[which[n]].log_density(delay[n])`` for every n, all travel times in one go.

    >>> slow, fast = (TravelTime("lognormal", ((1.0, centre, 0.3),), (1.0, 60.0)) for centre in (30.0, 10.0))
    >>> log_densities([slow, fast], np.array([1, 0]), np.array([12.0, 12.0])).round(3).tolist()
    [-2.409, -6.488]
    """
    result = np.empty(len(delay))
    for kind in TYPICAL:
        own = [n for n, travel in enumerate(travels) if travel.kind == kind]
        place = np.full(len(travels), -1)
        place[own] = np.arange(len(own))
        here = np.flatnonzero(place[which] >= 0)
        if not len(here):
            continue
        row, d = place[which[here]], delay[here]
        window = np.array([travels[n].window for n in own])[row]
        density = FLOOR / (window[:, 1] - window[:, 0])
        for k in range(max(len(travels[n].components) for n in own)):
            # A mixture of fewer components has others of no weight.
            parts = [travels[n].components[k] if k < len(travels[n].components) else (0.0, 1.0, 1.0) for n in own]
            weight, centre, spread = np.array(parts)[row].T
            density = density + (1 - FLOOR) * weight * _density(kind, d, centre, spread)
        inside = (d >= window[:, 0]) & (d <= window[:, 1])
        result[here] = np.where(inside, np.log(density), -np.inf)
    return result


def from_window(window: tuple[float, float]) -> TravelTime:
    """What a window alone says: delays spread widely around its middle."""
    low, high = window
    if low <= 0:
        return TravelTime("normal", ((1.0, (low + high) / 2, (high - low) / 4),), window)
    return TravelTime("lognormal", ((1.0, math.sqrt(low * high), max(math.log(high / low) / 4, 0.1)),), window)


EXTREME = 3.0902  # standard normal quantile that a thousandth lies beyond


def window_of(
    kind: str, components: tuple[tuple[float, float, float], ...], positive: bool = False
) -> tuple[float, float]:
    """The window that holds each component but for a thousandth at either end; ``positive``: from 0 on."""
    lows, highs = [], []
    for _, centre, spread in components:
        way = EXTREME * spread
        lows.append(centre * math.exp(-way) if kind == "lognormal" else centre - way)
        highs.append(centre * math.exp(way) if kind == "lognormal" else centre + way)
    return (max(min(lows), 0.0) if positive else min(lows)), max(highs)


def fit(delays: ArrayLike, window: tuple[float, float], given: TravelTime | None = None) -> TravelTime:
    """Fit by expectation-maximisation with shrinkage, so that few passages say little.

    Spreads are drawn towards the typical ones of real links, centres towards ``given`` where there is one, and the
    density is that of the next passage: the fewer there were, the wider. Two components where there are twenty
    passages or more (walkers who stop, a shop on the way), else one.
    """
    guess = given or from_window(window)
    delays = np.asarray(delays, dtype=np.float64)
    inside = delays[(delays >= window[0]) & (delays <= window[1])]
    if len(inside) == 0:
        return guess
    kind = "lognormal" if window[0] > 0 else "normal"
    values = np.log(inside) if kind == "lognormal" else inside
    parts = 2 if len(values) >= 20 else 1
    whole = max(float(values.std()), LEAST[kind]) if parts == 2 else TYPICAL[kind]
    anchor = float(values.mean())
    if given is not None and given.kind == kind:
        anchor = math.log(given.centre) if kind == "lognormal" else given.centre
    pull = SHRINKAGE if given is not None else 0.25
    centres = np.quantile(values, [0.35, 0.9]) if parts == 2 else np.array([anchor])
    spreads, weights = np.full(parts, whole / parts), np.full(parts, 1 / parts)
    for _ in range(60):
        log_p = -0.5 * ((values[:, None] - centres) / spreads) ** 2 - np.log(spreads) + np.log(weights)
        share = np.exp(log_p - log_p.max(1, keepdims=True))
        share /= share.sum(1, keepdims=True)
        count = share.sum(0)
        before = centres
        weights = (count + 1) / (count + 1).sum()
        centres = ((share * values[:, None]).sum(0) + pull * anchor) / (count + pull)
        square = (share * (values[:, None] - centres) ** 2).sum(0)
        spreads = np.sqrt((square + SHRINKAGE * whole**2) / (np.maximum(count - 1, 0) + SHRINKAGE))
        spreads = np.maximum(spreads, LEAST[kind])
        if np.allclose(centres, before, rtol=1e-5):
            break
    spreads *= np.sqrt(1 + 1 / (count + pull))  # for the next passage: the centre itself is uncertain
    middle = np.exp(centres) if kind == "lognormal" else centres
    rounded = [[round(float(x), 6) for x in c] for c in zip(weights, middle, spreads, strict=True)]  # for the file
    if kind == "lognormal":
        rounded = [[w, max(c, 1e-6), s] for w, c, s in rounded]
    rounded[0][0] = round(1 - sum(c[0] for c in rounded[1:]), 6)
    return TravelTime(kind, tuple((w, c, s) for w, c, s in rounded), window)
