"""Pictures: the match matrix, the learned bias b_ij, and the travel times with their learned densities."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording, Tracklet

SHOWN = 48  # tracklets a picture can hold legibly


def shown_tracklets(recording: Recording, pairs: Candidates) -> NDArray[np.int64]:
    """Consecutive tracklets from the middle of the recording, where life is busy."""
    middle = max(0, len(recording.tracklets) // 2 - SHOWN // 2)
    return np.arange(middle, min(len(recording.tracklets), middle + SHOWN))


def match_matrix(
    path: Path, recording: Recording, pairs: Candidates, gain: NDArray[np.float64], identity: NDArray[np.int64]
) -> None:
    """Match probability of earlier (column) and later (row); what was joined is framed, what is true is dotted."""
    shown = shown_tracklets(recording, pairs)
    image = _image(shown, pairs, 1 / (1 + np.exp(-np.clip(gain, -30, 30))))
    figure, axes = _square(recording, shown, "match score: σ(log-odds against nobody)")
    picture = axes.imshow(image, cmap="Blues", vmin=0, vmax=1, interpolation="nearest")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="match score")
    position = {int(n): k for k, n in enumerate(shown)}
    who = identity[shown]
    last: dict[int, int] = {}
    joined, true = [], []
    last_true: dict[int, int] = {}
    for row, n in enumerate(shown.tolist()):
        if int(who[row]) in last:
            joined.append((last[int(who[row])], row))
        last[int(who[row])] = row
        truth = recording.tracklets[n].truth
        if truth is not None:
            if truth in last_true:
                true.append((last_true[truth], row))
            last_true[truth] = position[n]
    if joined:
        x, y = zip(*joined, strict=True)
        axes.scatter(x, y, marker="s", s=34, facecolors="none", edgecolors="#d95f02", linewidths=1.3, label="joined")
    if true:
        x, y = zip(*true, strict=True)
        axes.scatter(x, y, marker=".", s=14, color="black", label="true")
    if joined or true:
        axes.legend(loc="upper right", framealpha=1)
    _save(figure, path)


def bias_matrix(path: Path, recording: Recording, pairs: Candidates, bias: NDArray[np.float64]) -> None:
    """The learned prior b_ij that the operator adds; blank where no link and window allow a pair."""
    shown = shown_tracklets(recording, pairs)
    image = _image(shown, pairs, bias)
    finite = image[np.isfinite(image)]
    reach = float(np.abs(finite).max()) if len(finite) else 1.0
    figure, axes = _square(recording, shown, "learned bias b_ij = log P(link) + w · log travel-time ratio")
    picture = axes.imshow(image, cmap="RdBu", vmin=-reach, vmax=reach, interpolation="nearest")
    figure.colorbar(picture, ax=axes, shrink=0.8, label="b_ij (log-odds)")
    _save(figure, path)


def transits(path: Path, recording: Recording, pairs: Candidates, true: NDArray[np.bool_], network: Network) -> None:
    """Delays seen on each link under the density that was learned for it."""
    numbers = [n for n, x in enumerate(network.links) if x.source != x.target and (true & (pairs.link == n)).sum() > 2]
    numbers = sorted(numbers, key=lambda n: -int((true & (pairs.link == n)).sum()))[:16]
    columns = min(4, max(1, len(numbers)))
    rows = -(-len(numbers) // columns) or 1
    figure = Figure(
        figsize=(3.2 * columns, 2.3 * rows),
    )
    figure.subplots_adjust(
        left=0.02, right=0.99, top=1 - 0.35 / (2.3 * rows), bottom=0.6 / (2.3 * rows), hspace=0.45, wspace=0.08
    )
    grid = figure.subplots(rows, columns, squeeze=False)
    for axes in grid.flat[len(numbers) :]:
        axes.axis("off")
    for axes, n in zip(grid.flat, numbers, strict=False):
        link, delays = network.links[n], pairs.delay[true & (pairs.link == n)]
        high = float(np.quantile(delays, 0.97)) * 1.3 if link.window[0] >= 0 else link.window[1]
        low = min(link.window[0], float(delays.min()))
        axes.hist(delays, bins=np.linspace(low, high, 25).tolist(), density=True, color="#9ecae1")
        at = np.linspace(low, high, 300)
        axes.plot(at, np.exp(link.density.log_density(at)), color="#d95f02", linewidth=1.5)
        axes.set_title(plain(f"{link.source} → {link.target}  (n = {len(delays)})"), fontsize=9)
        axes.set_yticks([])
        axes.tick_params(labelsize=8)
    figure.supxlabel("seconds from leaving to entering (bars: seen, line: learned density)", fontsize=9)
    _save(figure, path)


def plain(text: str) -> str:
    """Text that matplotlib takes as it stands: no formulas in camera names."""
    return text.replace("$", r"\$")


def _image(shown: NDArray[np.int64], pairs: Candidates, value: NDArray[np.float64]) -> NDArray[np.float64]:
    image = np.full((len(shown), len(shown)), np.nan)
    if len(shown):
        inside = (pairs.source >= shown[0]) & (pairs.source <= shown[-1])
        inside &= (pairs.target >= shown[0]) & (pairs.target <= shown[-1])
        image[pairs.target[inside] - shown[0], pairs.source[inside] - shown[0]] = value[inside]
    return image


def _name(tracklet: Tracklet) -> str:
    return plain(f"{tracklet.camera[:16]} #{tracklet.id}")


def _square(recording: Recording, shown: NDArray[np.int64], title: str) -> tuple[Figure, Any]:
    figure = Figure(figsize=(10, 8.2))
    figure.subplots_adjust(left=0.11, right=1.02, bottom=0.11, top=0.96)
    axes = figure.add_subplot()
    names = [_name(recording.tracklets[n]) for n in shown.tolist()]
    axes.set_xticks(range(len(names)), names, rotation=90, fontsize=7)
    axes.set_yticks(range(len(names)), names, fontsize=7)
    axes.set_xlabel("earlier tracklet (key)")
    axes.set_ylabel("later tracklet (query)")
    axes.set_title(title, fontsize=11)
    axes.set_facecolor("#d0d0d0")  # no pair
    return figure, axes


def _save(figure: Figure, path: Path) -> None:
    FigureCanvasAgg(figure)
    figure.savefig(path, dpi=110)
