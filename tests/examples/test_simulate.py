"""The simulator: the same seed gives the same day, and its figures are those that real networks have."""

from __future__ import annotations

from itertools import pairwise

import numpy as np

from examples.mtmc.simulator.realism import measure
from examples.mtmc.simulator.simulate import World, simulate


def test_a_seed_decides_everything(world: World) -> None:
    again = simulate(3, minutes=6, identities_per_minute=6)
    assert len(again.recording.tracklets) == len(world.recording.tracklets)
    for a, b in zip(again.recording.tracklets, world.recording.tracklets, strict=True):
        assert (a.camera, a.id, a.truth, a.time_in) == (b.camera, b.id, b.truth, b.time_in)
        assert np.array_equal(a.boxes, b.boxes)
        assert a.embedding is not None and b.embedding is not None and np.array_equal(a.embedding, b.embedding)


def test_another_day_shows_other_people() -> None:
    first, second = (simulate(3, minutes=6, identities_per_minute=6, day=day) for day in (0, 1))
    assert [v.start for v in first.visits] != [v.start for v in second.visits]


def test_figures_are_those_of_real_networks() -> None:
    figures = measure(simulate(0, minutes=40, identities_per_minute=8))
    assert 300 <= float(figures["identities"]) <= 600
    assert 3 <= float(figures["rivals"]) <= 7
    assert 1.4 <= float(figures["tracklets_per_visit"]) <= 1.8
    assert 0.001 <= float(figures["overtaking"]) <= 0.027
    assert 0.15 <= float(figures["transit_spread"]) <= 0.5
    assert 0.40 <= float(figures["rank1_centred"]) <= 0.70


def test_directions_differ_and_views_overlap(world: World) -> None:
    stays: dict[int, list[tuple[str, float, float]]] = {}
    for visit in world.visits:
        stays.setdefault(visit.identity, []).append((visit.camera, visit.start, visit.end))
    overlaps = [b[1] < a[2] for walk in stays.values() for a, b in pairwise(walk) if (a[0], b[0]) == ("c7", "c8")]
    assert overlaps and np.mean(overlaps) > 0.8


def test_tracker_mistakes_are_there(world: World) -> None:
    recording = world.recording
    assert any(t.truth is None for t in recording.tracklets), "clutter"
    assert recording.dropped, "missed visits are logged"
    seen = {(t.camera, t.truth) for t in recording.tracklets}
    assert len(seen) < len(recording.tracklets), "fragments"
    for tracklet in recording.tracklets:
        assert (np.diff(tracklet.frames) > 0).all()
        assert np.isfinite(tracklet.boxes).all() and (tracklet.boxes[:, 2:] > 0).all()
