"""The simulator's figures beside those of real networks, each measured on what it made, with a tolerance.

The real figures come of different networks (a hand-set table of 23 cameras, CAMPUS's auditorium, RoundaboutHD's
matches, a shop between two cameras), so each row says how it is counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.appearance import looks_of
from examples.mtmc.matching.candidates import candidates, true_predecessors
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.simulator import town
from examples.mtmc.simulator.city import city_network
from examples.mtmc.simulator.simulate import World

SHEET = 100  # passages of a link that are looked at together: RoundaboutHD's sheets have 96 to 129
Numbers = NDArray[np.float64]


@dataclass(frozen=True)
class Row:
    """A figure: what it says, what real networks have, and the least and most that is taken for alike."""

    says: str
    real: str
    least: float = -np.inf
    most: float = np.inf

    @property
    def tolerance(self) -> str:
        """The tolerance in words."""
        return "–" if np.isinf(self.least) else f"{self.least:g} to {self.most:g}"


ROWS = {
    "identities": Row("people seen in 40 minutes", "–", 300, 600),
    "tracklets": Row("tracklets of a recording", "–"),
    "linked": Row("share of camera pairs that are linked, a city of 23 cameras", "0.14 (36 of 253)", 0.13, 0.155),
    "linked_town": Row("the same in the town, 8 cameras", "–"),
    "window_quartile": Row("hand-set window, frames: lower quartile", "108", 95, 121),
    "window_median": Row("hand-set window, frames: median", "127", 112, 142),
    "window_upper": Row("hand-set window, frames: upper quartile", "185", 165, 205),
    "window_most": Row("hand-set window, frames: widest", "534", 480, 590),
    "spread_corridor": Row("sd of log transit, the corridor c2 to c3", "0.15", 0.12, 0.19),
    "spread_least": Row("sd / mean of transit: the least of a link", "0.07", 0.05, 0.13),
    "spread_most": Row("sd / mean of transit: the most of a link", "0.73", 0.50, 0.90),
    "asymmetry": Row("slower / faster direction, medians: median over pairs", "2.0 (6.8 s, back 13.8)", 1.6, 2.4),
    "asymmetry_most": Row("slower / faster direction, medians: most", "3.6 (2.3 s, back 8.3)", 2.9, 4.3),
    "dwell_lower": Row("delay past the shop, seconds: lower quartile", "33", 25, 43),
    "dwell_median": Row("delay past the shop, seconds: median", "458", 320, 620),
    "dwell_upper": Row("delay past the shop, seconds: upper quartile", "912", 700, 1200),
    "leaving": Row("share of those who set out that never arrive", "0.18", 0.15, 0.21),
    "leaving_least": Row("the same, least of a link", "0.10", 0.06, 0.15),
    "leaving_most": Row("the same, most of a link", "0.25", 0.20, 0.32),
    "rivals": Row("tracklets in the window, the true one included: mean", "3.2 and 6.6", 3, 7),
    "rivals_most": Row("the same: 90th percentile", "14", 10, 16),
    "rivals_dwell": Row("the same past the shop: mean", "–"),
    "overtaking": Row(f"pairs out of order, of a link's {SHEET} passages", "0.006 to 0.027", 0.006, 0.027),
    "tracklets_per_visit": Row("tracklets for each identity and camera", "1.6", 1.45, 1.75),
    "lookalikes": Row(f"share colour, make and model with another of {SHEET}", "0.21", 0.16, 0.26),
    "attribute_noise": Row("colour or make differ between two readings", "0.05", 0.03, 0.07),
    "cameras_1": Row("identities of one camera", "0.15 (56 of 362)", 0.11, 0.20),
    "cameras_2": Row("of two cameras", "0.44 (161)", 0.39, 0.49),
    "cameras_3": Row("of three", "0.20 (72)", 0.15, 0.25),
    "cameras_4": Row("of four or more", "0.20 (73)", 0.15, 0.25),
    "rank1": Row("nearest look elsewhere is the same person's, as it is", "–"),
    "rank1_centred": Row("the same, less each camera's mean look", "0.40 to 0.70 judged right", 0.40, 0.70),
}
REAL = {name: row.real for name, row in ROWS.items()}


def measure(*worlds: World) -> dict[str, float]:
    """Every row of the table, counted over one or more recordings of the town; 0 where there is too little to say.

    Strolls, which no camera saw, may be among them: for the rows that need many people and no cameras.
    """
    passages = [_delays(world) for world in worlds]
    pooled = {way: np.concatenate([p[way] for p in passages]) for way in passages[0]}
    dwell = np.concatenate([pooled[w.source, w.target] for w in town.WAYS if w.shop])
    seen = [_cameras(world) for world in worlds]
    shares = Counter(min(len(v), 4) for own in seen for v in own.values())
    people = sum(shares.values())
    recordings = [world.recording for world in worlds if world.recording.tracklets]
    figures = {
        "identities": 40 * people / sum(world.minutes for world in worlds),
        "tracklets": _mean([len(r.tracklets) for r in recordings]),
        "linked": _linked([(x.source, x.target) for x in city_network(23).links], 23),
        "linked_town": _linked([(x.source, x.target) for x in worlds[0].recording.network.links], len(town.POSITIONS)),
        **_windows(worlds[0].recording.network),
        **_transits(pooled),
        "dwell_lower": _quantile(dwell[~np.isnan(dwell)], 0.25),
        "dwell_median": _quantile(dwell[~np.isnan(dwell)], 0.5),
        "dwell_upper": _quantile(dwell[~np.isnan(dwell)], 0.75),
        **_rivals(recordings),
        **_sheets(worlds),
        "tracklets_per_visit": _per_visit(recordings),
        "attribute_noise": _attribute_noise(recordings),
        **{f"cameras_{n}": shares[n] / people for n in (1, 2, 3, 4)},
        "rank1": _mean([rank1(r, centred=False) for r in recordings]),
        "rank1_centred": _mean([rank1(r, centred=True) for r in recordings]),
    }
    return {name: float(np.nan_to_num(figures[name])) for name in ROWS}


def outside(figures: dict[str, float]) -> list[str]:
    """The rows that are not within their tolerance."""
    return [name for name, row in ROWS.items() if not row.least <= figures[name] <= row.most]


def _delays(world: World) -> dict[tuple[str, str], Numbers]:
    """Per way the delays of all who set out, in the order of leaving; NaN for those who never arrived."""
    own: dict[tuple[str, str], list[float]] = {(w.source, w.target): [] for w in town.WAYS}
    for passage in sorted(world.passages, key=lambda p: p.left):
        own[passage.source, passage.target].append(np.nan if passage.delay is None else passage.delay)
    return {way: np.array(delays) for way, delays in own.items()}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if len(values) else float("nan")


def _quantile(values: Numbers, at: float) -> float:
    return float(np.quantile(values, at)) if len(values) else float("nan")


def _linked(ends: list[tuple[str, str]], cameras: int) -> float:
    return len({frozenset(pair) for pair in ends if pair[0] != pair[1]}) / (cameras * (cameras - 1) / 2)


def _windows(network: Network) -> dict[str, float]:
    """Widths in frames of the hand-set windows between cameras; the shop's is left out, as its own row is."""
    shops = {(w.source, w.target) for w in town.WAYS if w.shop}
    links = [x for x in network.links if x.source != x.target and (x.source, x.target) not in shops]
    width = np.array([(x.window[1] - x.window[0]) * network.cameras[x.target].fps for x in links])
    at = {"window_quartile": 0.25, "window_median": 0.5, "window_upper": 0.75, "window_most": 1.0}
    return {name: _quantile(width, q) for name, q in at.items()}


def _transits(pooled: dict[tuple[str, str], Numbers]) -> dict[str, float]:
    """Spread, asymmetry and leaving over the ways that are neither an overlap nor past the shop."""
    plain = {(w.source, w.target) for w in town.WAYS if not (w.overlap or w.shop)}
    arrived = {way: pooled[way][~np.isnan(pooled[way])] for way in plain}
    arrived = {way: delays for way, delays in arrived.items() if len(delays) >= 10}
    spread = [float(d.std() / d.mean()) for d in arrived.values()]
    medians = {way: float(np.median(d)) for way, d in arrived.items()}
    both = [(medians[a, b], medians[b, a]) for a, b in medians if a < b and (b, a) in medians]
    ratio = np.array([max(pair) / min(pair) for pair in both])
    going = [pooled[w.source, w.target] for w in town.WAYS if not w.overlap]
    lost = [float(np.isnan(d).mean()) for d in going if len(d) >= 10]
    corridor = arrived.get(("c2", "c3"), np.ones(1))
    return {
        "spread_corridor": float(np.log(np.maximum(corridor, 0.1)).std()),
        "spread_least": min(spread, default=np.nan),
        "spread_most": max(spread, default=np.nan),
        "asymmetry": _quantile(ratio, 0.5),
        "asymmetry_most": _quantile(ratio, 1.0),
        "leaving": float(np.isnan(np.concatenate(going)).mean()),
        "leaving_least": min(lost, default=np.nan),
        "leaving_most": max(lost, default=np.nan),
    }


def _rivals(recordings: list[Recording]) -> dict[str, float]:
    """How many tracklets of the same link are in the window of one that truly came along it, itself included."""
    counts: dict[str, list[float]] = {"between": [], "dwell": []}
    for recording in recordings:
        pairs, before = candidates(recording), true_predecessors(recording)
        links = recording.network.links
        shops = {(w.source, w.target) for w in town.WAYS if w.shop}
        kind = np.array(
            ["same" if x.source == x.target else "dwell" if (x.source, x.target) in shops else "between" for x in links]
        )[pairs.link]
        group = pairs.target * len(links) + pairs.link
        _, at, size = np.unique(group, return_inverse=True, return_counts=True)
        true = before[pairs.target] == pairs.source
        for name, found in counts.items():
            found += size[at[true & (kind == name)]].tolist()
    between = counts["between"]
    return {
        "rivals": _mean(between),
        "rivals_most": _quantile(np.array(between), 0.9),
        "rivals_dwell": _mean(counts["dwell"]),
    }


def _sheets(worlds: tuple[World, ...]) -> dict[str, float]:
    """Overtaking and look-alikes among the passages of one link, a sheet of them at a time."""
    inverted, alike = [], []
    for world in worlds:
        by_way: dict[tuple[str, str], list[tuple[float, float, int]]] = {}
        for p in sorted(world.passages, key=lambda p: p.left):
            by_way.setdefault((p.source, p.target), []).append(
                (p.left, np.nan if p.delay is None else p.left + p.delay, p.identity)
            )
        plain = {(w.source, w.target) for w in town.WAYS if not (w.overlap or w.shop)}
        for way in plain & set(by_way):
            rows = by_way[way]
            for first in range(0, len(rows), SHEET):
                sheet = rows[first : first + SHEET]
                came = np.array([row[1] for row in sheet])
                came = came[~np.isnan(came)]
                if len(sheet) < SHEET / 2:
                    continue
                later = np.triu(np.ones((len(came), len(came)), dtype=bool), 1)
                inverted.append(float((came[:, None] > came)[later].mean()))
                looks = [world.attributes[row[2]] for row in sheet]
                count = Counter(looks)
                alike.append(float(np.mean([count[look] > 1 for look in looks])))
    return {
        "overtaking": _mean(inverted),
        "lookalikes": _mean(alike),
    }


def _cameras(world: World) -> dict[int, set[str]]:
    seen: dict[int, set[str]] = {}
    for visit in world.visits:
        seen.setdefault(visit.identity, set()).add(visit.camera)
    return seen


def _per_visit(recordings: list[Recording]) -> float:
    known = [[(t.truth, t.camera) for t in r.tracklets if t.truth is not None] for r in recordings]
    return sum(map(len, known)) / max(sum(len(set(keys)) for keys in known), 1)


def _attribute_noise(recordings: list[Recording]) -> float:
    """How often colour or make differ between consecutive tracklets of one identity."""
    differ = []
    for recording in recordings:
        before = true_predecessors(recording)
        for later in np.flatnonzero(before >= 0):
            a, b = recording.tracklets[before[later]].attributes, recording.tracklets[later].attributes
            differ.append(a[:2] != b[:2])
    return _mean(differ)


def rank1(recording: Recording, centred: bool) -> float:
    """How often the nearest look in another camera is of the same identity, where there is one."""
    looks = looks_of(recording) if centred else np.stack([t.embedding for t in recording.tracklets])  # type: ignore[misc]
    camera = np.array([recording.network.index(t.camera) for t in recording.tracklets])
    who = np.array([-1 if t.truth is None else t.truth for t in recording.tracklets])
    alike = looks @ looks.T
    alike[camera[:, None] == camera] = -np.inf
    elsewhere = ((who[:, None] == who) & (camera[:, None] != camera)).any(1) & (who >= 0)
    return float((who[alike.argmax(1)] == who)[elsewhere].mean())
