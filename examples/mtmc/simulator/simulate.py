"""People walk through the town: who is truly where, when, and what a perfect camera would draw around them."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording, Track
from examples.mtmc.simulator import town
from examples.mtmc.simulator.sensing import Looks, see

WARM_UP = 600.0  # seconds of arrivals before the recording starts, so that it starts in the middle of life


@dataclass(frozen=True)
class Visit:
    """One identity in one camera, on the true clock."""

    identity: int
    camera: str
    start: float
    end: float


@dataclass(frozen=True)
class World:
    """What the simulator knows: the recording that cameras give, and every true visit."""

    recording: Recording
    visits: list[Visit] = field(default_factory=list)


def simulate(
    seed: int, minutes: float, identities_per_minute: float = 7.5, start: float = 0.0, day: int = 0, first_id: int = 1
) -> World:
    """Record ``minutes`` of the town from ``start`` seconds on.

    ``seed`` sets the cameras (their colours and clocks), ``seed`` and ``day`` the people: two days of one seed show
    other people to the same cameras.
    """
    cameras = np.random.default_rng([seed, 1])
    clock_error = {name: float(cameras.normal(0, 0.3)) for name in town.POSITIONS}
    looks = Looks(cameras, list(town.POSITIONS))
    people = np.random.default_rng([seed, 2, day])
    visits = _walks(people, 60 * minutes, identities_per_minute, first_id)
    known = town.network()
    truth = [_perfect(known, people, visit, clock_error[visit.camera], start) for visit in visits]
    tracklets, dropped = see(people, known, truth, looks)
    return World(Recording(known, tracklets, truth, dropped), visits)


def _walks(rng: np.random.Generator, seconds: float, per_minute: float, first_id: int) -> list[Visit]:
    """Poisson arrivals at the unwatched entrances, each followed until it leaves."""
    visits: list[Visit] = []
    clock, identity = -WARM_UP, first_id
    names, shares = list(town.ENTRANCES), np.array(list(town.ENTRANCES.values()))
    while True:
        clock += rng.exponential(60 / per_minute)
        if clock >= seconds:
            break
        camera, before, time = str(rng.choice(names, p=shares / shares.sum())), None, clock
        for _ in range(12):
            stay = float(np.clip(rng.lognormal(np.log(14), 0.4), 5, 60))
            visits.append(Visit(identity, camera, time, time + stay))
            leaves = town.LEAVES_AT_ONCE if before is None else town.LEAVES[camera]
            if rng.random() < leaves:
                break
            way = _choose(rng, camera, before)
            time, before, camera = time + stay + _delay(rng, way), camera, way.target
        identity += 1
    inside = [v for v in visits if 0 <= v.start < seconds]
    number = {old: first_id + n for n, old in enumerate(sorted({v.identity for v in inside}))}
    return [Visit(number[v.identity], v.camera, v.start, v.end) for v in inside]


def _choose(rng: np.random.Generator, camera: str, before: str | None) -> town.Way:
    ways = [way for way in town.WAYS if way.source == camera]
    share = np.array([way.share * (town.TURNS_BACK if way.target == before else 1.0) for way in ways])
    return ways[int(rng.choice(len(ways), p=share / share.sum()))]


def _delay(rng: np.random.Generator, way: town.Way) -> float:
    if way.overlap:
        return float(max(rng.normal(way.median, way.log_sd), -4.9))
    if rng.random() < way.shop:
        return float(rng.lognormal(np.log(town.SHOP_MEDIAN), town.SHOP_LOG_SD))
    delay = float(rng.lognormal(np.log(way.median), way.log_sd))
    if rng.random() < town.STOPS:
        delay += float(rng.exponential(town.STOP_SECONDS))
    return delay


def _perfect(net: Network, rng: np.random.Generator, visit: Visit, clock_error: float, start: float) -> Track:
    """The true boxes: a walk across a 1920x1080 picture at one depth, on the camera's own (wrong) clock."""
    fps = net.cameras[visit.camera].fps
    frames = np.arange(
        int((start + visit.start + clock_error) * fps) + 1, int((start + visit.end + clock_error) * fps) + 1
    )
    frames = frames[frames >= 1]
    if len(frames) == 0:
        frames = np.array([1])
    depth = rng.uniform(0, 1)
    height = 120 + 200 * depth + rng.normal(0, 8)
    foot = 500 + 500 * depth
    across = np.linspace(0.04, 0.96, len(frames)) * 1920
    if rng.random() < 0.5:
        across = across[::-1]
    sway = 12 * np.sin(np.arange(len(frames)) / 9 + rng.uniform(0, 6))
    boxes: NDArray[np.float64] = np.stack(
        [across - 0.2 * height, foot - height + sway, np.full(len(frames), 0.4 * height), np.full(len(frames), height)],
        1,
    )
    return Track(visit.camera, visit.identity, frames.astype(np.int64), boxes)
