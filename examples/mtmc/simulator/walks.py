"""Who walks where: people come alone or in groups, pass from camera to camera, and leave in view or on the way."""

from __future__ import annotations

import math
from bisect import bisect
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.simulator import town
from examples.mtmc.simulator.town import OUT, Preset, Way

WARM_UP = 1800.0  # seconds of arrivals before the recording starts, so that it starts in the middle of life
STRETCH = 60.0  # seconds for which the rate of arrivals stays as it is
SIZES, SIZE_SHARES = (2, 3, 4), (0.6, 0.25, 0.15)  # of groups
LAG = 0.6  # seconds (sd) that one of a group walks before or behind the others
PARTS = 0.03  # of a group's members on each way
STAY_MEDIAN, STAY_LOG_SD, STAY_LEAST, STAY_MOST = 14.0, 0.4, 8.0, 60.0
MOST_VISITS = 12
T = TypeVar("T")


@dataclass(frozen=True)
class Visit:
    """One identity in one camera, on the true clock; ``came`` and ``goes`` are the next cameras, or "out"."""

    identity: int
    camera: str
    start: float
    end: float
    came: str = OUT
    goes: str = OUT
    group: int = 0  # those of one group walk together
    step: int = 0  # which visit of the group's walk it is


@dataclass(frozen=True)
class Passage:
    """One identity that set out along a way, and how long it took; None where it never arrived."""

    identity: int
    source: str
    target: str
    left: float
    delay: float | None


def walk(
    rng: np.random.Generator, preset: Preset, seconds: float, per_minute: float, first_id: int
) -> tuple[list[Visit], list[Passage]]:
    """Visits that start within ``seconds``, and every passage of the same people that starts within them."""
    visits: list[Visit] = []
    passages: list[Passage] = []
    identity = 0
    for number, (clock, size) in enumerate(_arrivals(rng, preset, seconds, per_minute)):
        members = np.arange(identity, identity + size)
        identity += size
        _follow(rng, clock, members, number, visits, passages)
    inside = [v for v in visits if 0 <= v.start < seconds]
    number_of = {old: first_id + n for n, old in enumerate(sorted({v.identity for v in inside}))}
    seen = [Visit(number_of[v.identity], v.camera, v.start, v.end, v.came, v.goes, v.group, v.step) for v in inside]
    gone = [p for p in passages if 0 <= p.left < seconds and p.identity in number_of]
    return seen, [Passage(number_of[p.identity], p.source, p.target, p.left, p.delay) for p in gone]


def _arrivals(rng: np.random.Generator, preset: Preset, seconds: float, per_minute: float) -> list[tuple[float, int]]:
    """When groups come (of one, mostly) and how large they are: Poisson at a rate that differs by stretches."""
    mean_size = float(np.dot(SIZES, SIZE_SHARES))
    several = preset.groups / (preset.groups + mean_size * (1 - preset.groups))  # of groups
    rate = per_minute / 60 / (1 - several + several * mean_size)
    shape = 1 / preset.bursts**2
    arrivals: list[tuple[float, int]] = []
    for start in np.arange(-WARM_UP, seconds, STRETCH):
        own = rate * rng.gamma(shape, 1 / shape)
        times = np.sort(rng.uniform(start, start + STRETCH, rng.poisson(own * STRETCH)))
        size = np.where(rng.random(len(times)) < several, rng.choice(SIZES, len(times), p=SIZE_SHARES), 1)
        arrivals += zip(times.tolist(), size.tolist(), strict=True)
    return [(time, size) for time, size in arrivals if time < seconds]


def _follow(
    rng: np.random.Generator,
    clock: float,
    members: NDArray[np.int64],
    group: int,
    visits: list[Visit],
    passages: list[Passage],
) -> None:
    """One group from its entrance on: the members keep together, each a little before or behind the others."""
    camera = _one_of(rng, list(town.ENTRANCES), list(town.ENTRANCES.values()))
    came, time = OUT, clock
    lag = rng.normal(0, LAG, len(members)) if len(members) > 1 else np.zeros(1)
    for step in range(MOST_VISITS):
        stay = min(max(STAY_MEDIAN * math.exp(rng.normal(0, STAY_LOG_SD)), STAY_LEAST), STAY_MOST)
        leaves = town.LEAVES_AT_ONCE if step == 0 else town.LEAVES[camera]
        way = None if rng.random() < leaves or step == MOST_VISITS - 1 else _choose(rng, camera, came)
        goes = way.target if way else OUT
        visits += [
            Visit(who, camera, time + late, time + stay + late, came, goes, group, step)
            for who, late in zip(members.tolist(), lag.tolist(), strict=True)
        ]
        if way is None:
            return
        delay, left = _delay(rng, way), time + stay + lag
        if not way.overlap and len(members) > 1:
            lag = rng.normal(0, LAG, len(members))
        arrives = np.full(len(members), rng.random() >= way.lost)
        if len(members) > 1 and not way.overlap:
            arrives &= rng.random(len(members)) >= PARTS
        took = time + stay + delay + lag - left
        passages += [
            Passage(int(members[n]), way.source, way.target, float(left[n]), float(took[n]) if arrives[n] else None)
            for n in range(len(members))
        ]
        members, lag = members[arrives], lag[arrives]
        if not len(members):
            return
        time, came, camera = time + stay + delay, camera, way.target


def _choose(rng: np.random.Generator, camera: str, came: str) -> Way:
    ways = [way for way in town.WAYS if way.source == camera]
    return _one_of(rng, ways, [way.share * (town.TURNS_BACK if way.target == came else 1.0) for way in ways])


def _one_of(rng: np.random.Generator, things: Sequence[T], shares: Sequence[float]) -> T:
    bounds = list(accumulate(shares))
    return things[min(bisect(bounds, rng.random() * bounds[-1]), len(things) - 1)]


def _delay(rng: np.random.Generator, way: Way) -> float:
    if way.overlap:  # bounds under half of the least stay, so that nobody is in three views at once
        return min(max(rng.normal(way.median, way.log_sd), -3.8), -0.8)
    if rng.random() < way.shop:
        return float(rng.lognormal(np.log(town.SHOP_MEDIAN), town.SHOP_LOG_SD))
    delay = float(rng.lognormal(np.log(way.median), way.log_sd))
    if rng.random() < way.stops:
        delay += float(rng.exponential(town.STOP_SECONDS))
    return delay
