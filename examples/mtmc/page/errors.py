"""The errors of an answer: wrong joins and missed joins, each with the likely cause; without truth, doubtful joins."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.page.view import View

DOUBTFUL = 50  # joins to show as the least certain ones where no truth is known


@dataclass(frozen=True)
class Error:
    """Tracklets ``earlier`` and ``later`` (numbers in the recording), the kind of the error, and why it came about.

    "wrong": joined, though they show two identities. "missed": one identity, but given two. "doubtful": joined with
    little to say for it (only where no truth is known).
    """

    kind: str
    earlier: int
    later: int
    why: str


def joins(identity: NDArray[np.int64]) -> list[tuple[int, int]]:
    """Pairs of tracklets that follow each other in one identity; identities below 0 are nobody's."""
    last: dict[int, int] = {}
    pairs = []
    for n, who in enumerate(identity.tolist()):
        if who >= 0 and who in last:
            pairs.append((last[who], n))
        last[who] = n
    return pairs


def pair_numbers(view: View) -> dict[tuple[int, int], int]:
    """The number of the candidate of a pair (earlier, later)."""
    if view.pairs is None:
        return {}
    both = zip(view.pairs.source.tolist(), view.pairs.target.tolist(), strict=True)
    return {pair: n for n, pair in enumerate(both)}


def find_errors(view: View) -> list[Error]:
    """All errors in order of the later tracklet."""
    number = pair_numbers(view)
    joined = joins(view.identity)
    if view.true is None:
        return _doubtful(view, joined, number)
    true, identity = view.true, view.identity
    found = []
    before_true = {later: earlier for earlier, later in joins(true)}
    for earlier, later in joined:
        if true[earlier] < 0 or true[earlier] != true[later]:
            found.append(Error("wrong", earlier, later, _why_wrong(view, later, before_true.get(later), number)))
    before, after = {b: a for a, b in joined}, dict(joined)
    for later, earlier in before_true.items():
        if identity[earlier] != identity[later]:
            why = _why_missed(view, earlier, later, number, after.get(earlier), before.get(later))
            found.append(Error("missed", earlier, later, why))
    return sorted(found, key=lambda e: (e.later, e.earlier, e.kind))


def name(view: View, n: int) -> str:
    """A tracklet in words."""
    tracklet = view.recording.tracklets[n]
    return f"{tracklet.camera} #{tracklet.id}"


def _gain(view: View, pair: int | None) -> float | None:
    return None if pair is None or view.gain is None else float(view.gain[pair])


def _doubtful(view: View, joined: list[tuple[int, int]], number: dict[tuple[int, int], int]) -> list[Error]:
    scored = [(gain, pair) for pair in joined if (gain := _gain(view, number.get(pair))) is not None]
    least = sorted(scored)[:DOUBTFUL]
    found = [Error("doubtful", a, b, f"among the {len(least)} least certain joins") for _, (a, b) in least]
    return sorted(found, key=lambda e: (e.later, e.earlier))


def _why_wrong(view: View, later: int, right: int | None, number: dict[tuple[int, int], int]) -> str:
    if view.true is not None and view.true[later] < 0:
        return "the later one is nobody (false detections)"
    if right is None:
        return "the later one is new: nobody came before"
    gain = _gain(view, number.get((right, later)))
    if gain is None:
        return f"the right one, {name(view, right)}, was no candidate: {_why_no_pair(view, right, later)}"
    return f"the right one, {name(view, right)}, scored {gain:+.1f}"


def _why_missed(
    view: View,
    earlier: int,
    later: int,
    number: dict[tuple[int, int], int],
    taken_after: int | None,
    taken_before: int | None,
) -> str:
    gain = _gain(view, number.get((earlier, later)))
    if gain is None:
        return f"no candidate: {_why_no_pair(view, earlier, later)}"
    if gain <= 0:
        return f"nobody was likelier (score {gain:+.1f})"
    if taken_before is not None:
        return f"scored {gain:+.1f}, but {name(view, taken_before)} was preferred as the earlier one"
    if taken_after is not None:
        return f"scored {gain:+.1f}, but {name(view, taken_after)} was preferred as the later one"
    return f"scored {gain:+.1f}, but would put two tracklets of one camera and time into one identity"


def _why_no_pair(view: View, earlier: int, later: int) -> str:
    if view.pairs is None:
        return "pairs were not kept"
    a, b = view.recording.tracklets[earlier], view.recording.tracklets[later]
    link = view.recording.network.link(a.camera, b.camera)
    if link is None:
        return f"no link from {a.camera} to {b.camera}"
    delay = b.time_in - (a.time_in if link.measure == "enter" else a.time_out)
    low, high = link.window
    if not low <= delay <= high:
        return f"{delay:.1f} s is outside the link's window of {low:g} to {high:g} s"
    return "they overlap in time, or lie out of reach"
