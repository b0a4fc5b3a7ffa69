"""The questions that a tracklet asks: who was I before, who am I next; and who am I in each view that overlaps mine?

Each question is a *slot* with at most one answer. In sequence (another camera later, or a fragment of the same) a
tracklet has one slot, since one can be in one place; in a view that overlaps it has another, one for each such camera,
so that one seen by three cameras at once is joined to both others, and still has a way on.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.network.network import Link
from examples.mtmc.recordings.tracklets import Recording

KINDS = ("fragment", "transit", "dwell", "overlap")
LONG = 300.0  # seconds of a window from which on people stay on the way: a shop


def kind_of(link: Link) -> int:
    """The number of a link's kind in ``KINDS``: all that is believed of a camera pair but its names."""
    if link.source == link.target:
        return 0
    if link.window[0] < 0 or link.measure == "enter":
        return 3
    return 2 if link.window[1] - link.window[0] > LONG else 1


def kinds(recording: Recording, pairs: Candidates) -> NDArray[np.int64]:
    """The kind of each candidate's link ``[E]``."""
    return np.array([kind_of(link) for link in recording.network.links], dtype=np.int64)[pairs.link]


@dataclass(frozen=True, eq=False)
class Slots:
    """Per slot its tracklet: ``owner_in [I]`` of those before, ``owner_out [O]`` of those next; the first N of both are
    the tracklets' own in sequence. Per candidate the slots that it would fill: ``into [E]`` and ``out_of [E]``."""

    owner_in: NDArray[np.int64]
    owner_out: NDArray[np.int64]
    into: NDArray[np.int64]
    out_of: NDArray[np.int64]


def slots_of(recording: Recording, source: NDArray[np.int64], target: NDArray[np.int64]) -> Slots:
    """The slots of all tracklets in sequence, and of those in overlapping views that have a candidate."""
    number = {name: n for n, name in enumerate(recording.network.cameras)}
    camera = np.array([number[t.camera] for t in recording.tracklets], dtype=np.int64)
    overlapping = np.zeros((len(number), len(number)), dtype=bool)
    for link in recording.network.links:
        if kind_of(link) == KINDS.index("overlap"):
            overlapping[number[link.source], number[link.target]] = True
    overlap = overlapping[camera[source], camera[target]]

    def side(own: NDArray[np.int64], other: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        key = own[overlap] * len(number) + camera[other[overlap]]
        extra, place = np.unique(key, return_inverse=True)
        slot = own.copy()
        slot[overlap] = len(camera) + place
        return np.concatenate([np.arange(len(camera)), extra // max(len(number), 1)]), slot

    owner_in, into = side(target, source)
    owner_out, out_of = side(source, target)
    return Slots(owner_in, owner_out, into, out_of)


def true_pairs(recording: Recording, source: NDArray[np.int64], target: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which candidates are true ``[E]``: of one identity, and the nearest such in the slots of both of its ends."""
    slots = slots_of(recording, source, target)
    truth = np.array([-1 if t.truth is None else t.truth for t in recording.tracklets], dtype=np.int64)
    same = (truth[source] == truth[target]) & (truth[source] >= 0)
    last = np.full(len(slots.owner_in), -1)
    np.maximum.at(last, slots.into[same], source[same])
    first = np.full(len(slots.owner_out), len(truth))
    np.minimum.at(first, slots.out_of[same], target[same])
    return np.asarray(same & (last[slots.into] == source) & (first[slots.out_of] == target))
