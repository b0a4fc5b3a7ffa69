"""From scores to probabilities: one temperature and one offset, fitted where truth is known, checked where it is not.

    P(pair is true | gain) = sigmoid((gain − offset) / temperature)

is Platt's scaling (Platt, 1999). What a probability is worth is seen in a reliability diagram: of the pairs given
80 %, four in five should be true.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import expit, log_expit


@dataclass(frozen=True)
class Calibration:
    """Scores are turned into log-odds by ``(gain − offset) / temperature``; 1 and 0 leave them as they are."""

    temperature: float = 1.0
    offset: float = 0.0

    def log_odds(self, gain: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated log-odds ``[E]``."""
        return np.asarray((gain - self.offset) / self.temperature)

    def probability(self, gain: NDArray[np.float64]) -> NDArray[np.float64]:
        """Calibrated probabilities ``[E]``."""
        return np.asarray(expit(self.log_odds(gain)))


def fit_calibration(gain: NDArray[np.float64], true: NDArray[np.bool_]) -> Calibration:
    """The temperature and offset of highest likelihood, with Platt's smoothed targets against too few examples.

    >>> rng = np.random.default_rng(0)
    >>> gain = rng.normal(0, 6, 20_000)
    >>> true = rng.random(20_000) < 1 / (1 + np.exp(-(gain - 1) / 3))
    >>> found = fit_calibration(gain, true)
    >>> round(found.temperature, 1), round(found.offset, 1)
    (3.0, 1.0)
    """
    finite = np.isfinite(gain)
    gain, true = gain[finite], true[finite]
    hits, misses = int(true.sum()), int((~true).sum())
    if hits == 0 or misses == 0:
        return Calibration()
    goal = np.where(true, (hits + 1) / (hits + 2), 1 / (misses + 2))

    def cost(x: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        slope = np.exp(x[0])
        z = slope * (gain - x[1])
        wrong = expit(z) - goal
        value = -float((goal * log_expit(z) + (1 - goal) * log_expit(-z)).mean())
        return value, np.array([float((wrong * z).mean()), -slope * float(wrong.mean())])

    found = minimize(cost, np.zeros(2), jac=True, method="L-BFGS-B", bounds=[(-5.0, 5.0), (-50.0, 50.0)])
    return Calibration(float(np.exp(-found.x[0])), float(found.x[1]))


@dataclass(frozen=True, eq=False)
class Reliability:
    """Bins between ``edges [bins + 1]``: mean ``predicted`` probability, ``observed`` share of true pairs, ``count``.

    Empty bins have NaN for both shares.
    """

    edges: NDArray[np.float64]
    predicted: NDArray[np.float64]
    observed: NDArray[np.float64]
    count: NDArray[np.int64]

    @property
    def error(self) -> float:
        """Expected calibration error: |observed − predicted|, weighted by the pairs of each bin."""
        some = self.count > 0
        if not some.any():
            return 0.0
        gap = np.abs(self.observed[some] - self.predicted[some])
        return float((gap * self.count[some]).sum() / self.count.sum())


def reliability(probability: NDArray[np.float64], true: NDArray[np.bool_], bins: int = 10) -> Reliability:
    """How often pairs are true, by what probability they were given, in ``bins`` of equal width.

    >>> r = reliability(np.array([0.1, 0.1, 0.9, 0.9]), np.array([False, False, True, False]), bins=2)
    >>> r.count.tolist(), r.observed.tolist(), round(r.error, 2)
    ([2, 2], [0.0, 0.5], 0.25)
    """
    edges = np.linspace(0, 1, bins + 1)
    number = np.clip(np.searchsorted(edges, probability, "right") - 1, 0, bins - 1)
    count = np.bincount(number, minlength=bins)
    with np.errstate(invalid="ignore"):
        predicted = np.bincount(number, weights=probability, minlength=bins) / count
        observed = np.bincount(number, weights=true, minlength=bins) / count
    return Reliability(edges, predicted, observed, count)
