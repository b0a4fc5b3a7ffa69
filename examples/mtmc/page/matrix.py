"""What the match matrix and the reasons are drawn from: candidates with their log-odds, part by part."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from examples.mtmc.page.errors import joins
from examples.mtmc.page.view import View

REASONS = ("appearance", "link", "time", "zone", "place", "company", "nobody")
MOST = 60_000  # candidates that a page holds; beyond, those that matter most are kept


def pair_data(view: View) -> dict[str, Any]:
    """Columns over candidates: both ends, the score, the delay, and the reasons that add up to the score."""
    if view.pairs is None or view.gain is None:
        return {"source": [], "target": [], "gain": [], "delay": [], "probability": [], "reasons": {}, "left_out": 0}
    pairs, gain = view.pairs, view.gain
    kept = kept_pairs(view)
    probability = expit(gain) if view.probability is None else view.probability
    data: dict[str, Any] = {
        "source": pairs.source[kept].tolist(),
        "target": pairs.target[kept].tolist(),
        "gain": _rounded(gain[kept]),
        "delay": _rounded(pairs.delay[kept]),
        "probability": [float(x) for x in np.round(np.nan_to_num(probability[kept]), 3)],
        "reasons": {},
        "left_out": len(pairs) - len(kept),
    }
    if view.reasons is not None:
        columns = {name: np.asarray(getattr(view.reasons, name), dtype=np.float64)[kept] for name in REASONS}
        data["reasons"] = {name: _rounded(value) for name, value in columns.items() if np.any(value)}
    return data


def kept_pairs(view: View) -> NDArray[np.int64]:
    """The candidates that a page holds: all, or those joined, those true, and then those of the highest scores."""
    assert view.pairs is not None and view.gain is not None
    count = len(view.pairs)
    if count <= MOST:
        return np.arange(count)
    size = len(view.recording.tracklets)
    key = view.pairs.source * size + view.pairs.target
    wanted = joins(view.identity) + (joins(view.true) if view.true is not None else [])
    needed = np.isin(key, np.array([a * size + b for a, b in wanted], dtype=np.int64))
    order = np.lexsort((-np.nan_to_num(view.gain, neginf=-1e9), ~needed))
    return np.sort(order[:MOST])


def _rounded(values: NDArray[np.float64]) -> list[float]:
    """Two digits after the point; infinities become ±999, which no true score reaches."""
    return [float(x) for x in np.round(np.nan_to_num(values, nan=0.0, posinf=999.0, neginf=-999.0), 2)]
