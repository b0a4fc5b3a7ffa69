"""What the transit histograms are drawn from: delays seen on a link, and the density that was learned for it."""

from __future__ import annotations

from typing import Any

import numpy as np

from examples.mtmc.page.view import View

MOST = 60  # links that a page draws
BARS = 24


def transit_data(view: View) -> list[dict[str, Any]]:
    """The busiest links between two cameras, with densities per second at bars and along a line."""
    busiest = sorted(
        (pair for pair, delays in view.delays.items() if pair[0] != pair[1] and len(delays) > 2),
        key=lambda pair: -len(view.delays[pair]),
    )
    return [shown for pair in busiest[:MOST] if (shown := _link(view, pair)) is not None]


def _link(view: View, pair: tuple[str, str]) -> dict[str, Any] | None:
    link = view.network.link(*pair) or view.recording.network.link(*pair)
    if link is None:
        return None
    delays = np.asarray(view.delays[pair], dtype=np.float64)
    low = min(max(link.window[0], 0.0) if link.window[0] >= 0 else link.window[0], float(delays.min()))
    high = float(np.quantile(delays, 0.97)) * 1.3 if link.window[0] >= 0 else link.window[1]
    high = max(high, low + 1.0)
    density, edges = np.histogram(delays, np.linspace(low, high, BARS + 1))
    share = density / len(delays) / (edges[1] - edges[0])
    at = np.linspace(low, high, 120)
    learned = np.exp(link.density.log_density(at))
    names = list(view.recording.network.cameras)
    return {
        "source": names.index(pair[0]),
        "target": names.index(pair[1]),
        "count": len(delays),
        "beyond": int((delays > high).sum()),
        "median": round(float(np.median(delays)), 1),
        "typical": round(float(link.density.centre), 1),
        "low": round(low, 3),
        "step": round((high - low) / BARS, 5),
        "seen": [_short(x) for x in share],
        "at": [round(low, 3), round((high - low) / (len(at) - 1), 5)],
        "learned": [_short(x) for x in learned],
    }


def _short(value: float) -> float:
    return float(f"{value:.3g}")
