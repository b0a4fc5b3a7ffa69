"""One search for every method's threshold: the one that gives the best IDF1 on the training period."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import quick_idf1

STEPS = 16


def tune(
    recording: Recording,
    gain: NDArray[np.float64],
    true: NDArray[np.bool_],
    identities: Callable[[NDArray[np.float64]], NDArray[np.int64]],
) -> float:
    """The threshold τ for which ``identities(gain − τ)`` scores best on the labelled ``recording``.

    Tried are quantiles of the gains of ``true`` links, from one that keeps nearly all to one that keeps few.
    """
    finite = gain[true & np.isfinite(gain)]
    if len(finite) == 0:
        return float("inf")
    grid = np.unique(np.quantile(finite, np.linspace(0, 0.9, STEPS)) - 1e-6)
    results = [quick_idf1(recording, identities(gain - t)) for t in grid]
    return float(grid[int(np.argmax(results))])
