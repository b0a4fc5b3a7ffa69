"""Clock offsets from places in overlapping views."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from examples.mtmc.network.learn_clocks import clock_differences, retimed, with_clocks
from examples.mtmc.network.network import Camera, Network
from examples.mtmc.recordings.tracklets import Recording, Tracklet
from examples.mtmc.simulator.simulate import simulate


def walkers(offsets: dict[str, float], world: bool = True, speed: float = 1.3, seed: int = 0) -> Recording:
    """Twelve people walk past all cameras at once, whose clocks are wrong by ``offsets``, seen with 10 cm of noise."""
    rng = np.random.default_rng(seed)
    cameras = {name: Camera(name, 10.0, clock_offset=5.0) for name in offsets}
    tracklets = []
    for who in range(12):
        start, heading = 100.0 + 40 * who, rng.uniform(0, 2 * np.pi)
        for name, offset in offsets.items():
            frames = np.arange(round((start + rng.uniform(0, 2)) * 10), round((start + rng.uniform(8, 10)) * 10))
            time = frames / 10 + 5.0 - offset  # what the frame truly shows
            way = speed * (time - start)
            place = np.stack([way * np.cos(heading), way * np.sin(heading)], 1) + rng.normal(0, 0.1, (len(way), 2))
            boxes = np.full((len(frames), 4), 9.0)
            ends = (5.0 + frames[[0, -1]] / 10).tolist()
            given = place if world else None
            tracklets.append(Tracklet(name, who, frames, boxes, given, *ends, truth=who))
    return Recording(Network(cameras), tracklets)


def test_clocks_that_are_wrong_are_set_right() -> None:
    wrong = {"a": 0.0, "b": 1.2, "c": -0.7}
    recording = walkers(wrong)
    differences = clock_differences(recording)
    assert [(d.camera, d.later) for d in differences] == [("a", "b"), ("a", "c"), ("b", "c")]
    for d in differences:
        assert d.seconds == pytest.approx(wrong[d.later] - wrong[d.camera], abs=0.1) and d.pairs == 12
    network = with_clocks(recording.network, differences)
    for name, camera in network.cameras.items():
        assert camera.clock_offset == pytest.approx(5.0 - wrong[name], abs=0.1)
    assert network.cameras["a"].clock_offset == 5.0  # the first one stays
    again = clock_differences(retimed(recording, network))
    assert all(abs(d.seconds) < 0.1 for d in again)


def test_clocks_that_are_right_stay() -> None:
    recording = walkers({"a": 0.0, "b": 0.0})
    assert with_clocks(recording.network, clock_differences(recording)) == recording.network


def test_nothing_is_told_where_nothing_can_be() -> None:
    assert clock_differences(walkers({"a": 0.0, "b": 1.0}, world=False)) == []
    assert clock_differences(walkers({"a": 0.0, "b": 1.0}, speed=0.0)) == []  # who stands still tells no time
    assert clock_differences(walkers({"a": 0.0, "b": 60.0})) == []  # beyond what is tried
    network = Network({"a": Camera("a", 1.0)})
    assert with_clocks(network, []) is network and clock_differences(Recording(network, [])) == []


def test_a_shift_of_a_simulated_clock_is_found() -> None:
    """What one learns of clocks moves with them: the simulator's own errors stay, whatever is added."""
    recording = simulate(1, minutes=10, per_minute=12).recording
    before = {(d.camera, d.later): d.seconds for d in clock_differences(recording)}
    assert before
    ((one, other),) = before
    moved = dict(recording.network.cameras)
    moved[other] = replace(moved[other], clock_offset=moved[other].clock_offset + 1.5)
    after = clock_differences(retimed(recording, replace(recording.network, cameras=moved)))
    assert [(d.camera, d.later) for d in after] == [(one, other)]
    assert after[0].seconds - before[one, other] == pytest.approx(1.5, abs=0.051)
