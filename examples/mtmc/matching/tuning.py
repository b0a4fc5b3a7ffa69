"""One search for every method's threshold: the one that gives the best IDF1 on the training period."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import quick_idf1

QUANTILES = (0.0, 0.005, 0.01, 0.02, 0.035, 0.05, 0.08, 0.12, 0.18, 0.25, 0.35, 0.45, 0.6, 0.75, 0.9)
FINER = 7  # thresholds tried between the neighbours of the best


def tune(
    recording: Recording,
    gain: NDArray[np.float64],
    true: NDArray[np.bool_],
    identities: Callable[[NDArray[np.float64]], NDArray[np.int64]],
) -> float:
    """The threshold τ for which ``identities(gain − τ)`` scores best on the labelled ``recording``.

    Tried are quantiles of the gains of ``true`` links, from one that keeps all to one that keeps few, then a finer grid
    between the neighbours of the best.
    """
    finite = gain[true & np.isfinite(gain)]
    if len(finite) == 0:
        return float("inf")
    tried: dict[float, float] = {}

    def best(grid: NDArray[np.float64]) -> float:
        for t in grid.tolist():
            if t not in tried:
                tried[t] = quick_idf1(recording, identities(gain - t))
        return max(tried, key=lambda t: (tried[t], t))

    grid = np.unique(np.quantile(finite, QUANTILES) - 1e-6)
    place = int(np.searchsorted(grid, best(grid)))
    return best(np.linspace(grid[max(place - 1, 0)], grid[min(place + 1, len(grid) - 1)], FINER + 2))
