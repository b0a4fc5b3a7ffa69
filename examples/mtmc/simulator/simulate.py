"""A day in the town: who is truly where and when, and the recording that its cameras make of it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np

from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.simulator import town
from examples.mtmc.simulator.looks import Attributes, Looks, drawn
from examples.mtmc.simulator.pictures import perfect_tracks
from examples.mtmc.simulator.sensing import see
from examples.mtmc.simulator.walks import Passage, Visit, walk


@dataclass(frozen=True)
class World:
    """What the simulator knows: the recording that cameras give, every true visit and passage, and what people are.

    Passages are those that set out within the recording, whether or not they arrived within it.
    """

    recording: Recording
    visits: list[Visit] = field(default_factory=list)
    passages: list[Passage] = field(default_factory=list)
    attributes: dict[int, Attributes] = field(default_factory=dict)
    minutes: float = 0.0


def simulate(
    seed: int,
    minutes: float,
    per_minute: float | None = None,
    start: float = 0.0,
    day: int = 0,
    first_id: int = 1,
    preset: str = "real",
) -> World:
    """Record ``minutes`` of the town from ``start`` seconds on; ``per_minute`` people come, or as the preset says.

    ``seed`` sets the cameras (their colours and clocks), ``seed`` and ``day`` the people: two days of one seed show
    other people to the same cameras. ``preset`` is one of ``town.PRESETS``: "easy", "real" or "hard".

    Raises:
        ValueError: ``preset`` is none of them, or ``minutes`` or ``per_minute`` is not above 0.
    """
    unseen = stroll(seed, minutes, per_minute, day, first_id, preset)
    known, how = unseen.recording.network, town.PRESETS[preset]
    cameras, people = np.random.default_rng([seed, 1]), np.random.default_rng([seed, 3, day])
    clock_error = {name: float(cameras.normal(0, how.clock_sd)) for name in town.POSITIONS}
    looks = Looks(cameras, list(town.POSITIONS), how, unseen.attributes)
    truth = perfect_tracks(people, known, unseen.visits, clock_error, start)
    tracklets, dropped = see(people, known, truth, looks, how)
    return replace(unseen, recording=Recording(known, tracklets, truth, dropped))


def stroll(
    seed: int,
    minutes: float,
    per_minute: float | None = None,
    day: int = 0,
    first_id: int = 1,
    preset: str = "real",
) -> World:
    """The people of ``simulate`` with the same arguments, before no camera: visits and passages, an empty recording."""
    if preset not in town.PRESETS:
        raise ValueError(f"preset is {preset!r}; it must be one of {', '.join(town.PRESETS)}")
    how = town.PRESETS[preset]
    rate = how.per_minute if per_minute is None else per_minute
    if not minutes > 0 or not rate > 0:
        raise ValueError(f"minutes and per_minute are {minutes} and {rate}; both must be above 0")
    visits, passages = walk(np.random.default_rng([seed, 2, day]), how, 60 * minutes, rate, first_id)
    faces = np.random.default_rng([seed, 4, day])
    attributes = {identity: drawn(faces) for identity in sorted({visit.identity for visit in visits})}
    return World(Recording(town.network(), []), visits, passages, attributes, minutes)
