"""The simulator's figures beside those of real networks, measured on what it made."""

from __future__ import annotations

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.appearance import looks_of
from examples.mtmc.matching.candidates import candidates, true_predecessors
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.simulator.simulate import World

REAL = {
    "rivals": "3.2 and 6.6",
    "rivals_dwell": "–",
    "tracklets_per_visit": "1.6",
    "overtaking": "0.006-0.027",
    "leaving": "0.10-0.25 a link, 0.18 over all",
    "transit_spread": "log-sd 0.15; sd/mean 0.07-0.73",
    "dwell_median": "458 (quartiles 33, 912)",
    "cameras_per_identity": "0.15/0.44/0.20/0.20",
    "rank1": "–",
    "rank1_centred": "0.40-0.70 is judged right",
}


def measure(world: World) -> dict[str, float | str]:
    """What the table of real figures lists, for one simulated recording."""
    recording = world.recording
    pairs = candidates(recording)
    before = true_predecessors(recording)
    links = recording.network.links
    dwell = np.array([x.window[1] - x.window[0] > 600 for x in links])[pairs.link]
    between = np.array([x.source != x.target for x in links])[pairs.link] & ~dwell
    true = before[pairs.target] == pairs.source

    def rivals(kept: NDArray[np.bool_]) -> float:
        groups = Counter(zip(pairs.target[kept].tolist(), pairs.link[kept].tolist(), strict=True))
        hit = zip(pairs.target[kept & true].tolist(), pairs.link[kept & true].tolist(), strict=True)
        return float(np.mean([groups[key] for key in hit]))

    visits = {(t.truth, t.camera) for t in recording.tracklets if t.truth is not None}
    known = sum(t.truth is not None for t in recording.tracklets)
    spread, inverted = [], []
    out = np.array([t.time_out for t in recording.tracklets])
    for number in range(len(links)):
        own = true & between & (pairs.link == number)
        delays = pairs.delay[own]
        if len(delays) > 10 and links[number].window[0] > 0:
            spread.append(float(np.log(delays).std()))
            left, came = out[pairs.source[own]], out[pairs.source[own]] + delays
            crossed = (left[:, None] < left) & (came[:, None] > came)
            inverted.append(2 * float(crossed.mean()))
    per_identity = Counter(len(v) for v in _cameras(world).values())
    total = sum(per_identity.values())
    shares = [per_identity[1], per_identity[2], per_identity[3], total - sum(per_identity[n] for n in (1, 2, 3))]
    moves = sum(len(v) for v in _walks(world).values())
    return {
        "identities": float(total),
        "tracklets": float(len(recording.tracklets)),
        "rivals": rivals(between),
        "rivals_dwell": rivals(dwell) if (dwell & true).any() else 0.0,
        "tracklets_per_visit": known / len(visits),
        "overtaking": float(np.mean(inverted)) if inverted else 0.0,
        "leaving": total / moves,
        "transit_spread": float(np.mean(spread)) if spread else 0.0,
        "dwell_median": float(np.median(pairs.delay[true & dwell])) if (true & dwell).any() else 0.0,
        "cameras_per_identity": "/".join(f"{n / total:.2f}" for n in shares),
        "rank1": rank1(recording, centred=False),
        "rank1_centred": rank1(recording, centred=True),
    }


def _cameras(world: World) -> dict[int, set[str]]:
    seen: dict[int, set[str]] = {}
    for visit in world.visits:
        seen.setdefault(visit.identity, set()).add(visit.camera)
    return seen


def _walks(world: World) -> dict[int, list[str]]:
    seen: dict[int, list[str]] = {}
    for visit in world.visits:
        seen.setdefault(visit.identity, []).append(visit.camera)
    return seen


def rank1(recording: Recording, centred: bool) -> float:
    """How often the nearest look in another camera is of the same identity, where there is one."""
    looks = looks_of(recording) if centred else np.stack([t.embedding for t in recording.tracklets])  # type: ignore[misc]
    camera = np.array([recording.network.index(t.camera) for t in recording.tracklets])
    who = np.array([-1 if t.truth is None else t.truth for t in recording.tracklets])
    alike = looks @ looks.T
    alike[camera[:, None] == camera] = -np.inf
    elsewhere = ((who[:, None] == who) & (camera[:, None] != camera)).any(1) & (who >= 0)
    return float((who[alike.argmax(1)] == who)[elsewhere].mean())
