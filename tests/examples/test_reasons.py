"""Reasons add up, calibration finds what is true, zones and places say what they should."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from scipy.special import expit

from examples.mtmc.matching.calibration import Calibration, fit_calibration, reliability
from examples.mtmc.matching.matcher import Form, Matcher
from examples.mtmc.matching.methods import Scene, match, scene
from examples.mtmc.matching.places import common_distance, place_evidence
from examples.mtmc.matching.prior import prior_of
from examples.mtmc.matching.reasons import reasons
from examples.mtmc.network.network import Camera, Link, Network, Zone
from examples.mtmc.recordings.tracklets import Recording, Tracklet


def test_reasons_add_up_to_the_last_bit(town_scene: Scene) -> None:
    torch.manual_seed(0)
    matcher = Matcher().eval()
    why = reasons(matcher, town_scene, tau=0.7)
    total = np.zeros(len(town_scene.pairs))
    for part in why.parts().values():
        total = total + part
    assert np.array_equal(total, why.gain)
    assert np.isfinite(why.gain).all()
    np.testing.assert_allclose(why.gain, match(matcher, town_scene).gain.double().numpy() - 0.7, atol=1e-9)
    for name in ("appearance", "link", "time", "nobody"):
        assert why.parts()[name].std() > 0, name


def test_reasons_without_a_bias_are_looks_and_company_alone(town_scene: Scene) -> None:
    why = reasons(Matcher(Form(bias=())).eval(), town_scene)
    assert not why.link.any() and not why.time.any() and not why.zone.any() and not why.place.any()
    assert why.appearance.any()


def test_calibration_finds_the_temperature_and_makes_probabilities_true() -> None:
    rng = np.random.default_rng(0)
    gain = rng.normal(-2, 5, 40_000)
    true = rng.random(len(gain)) < expit((gain + 1.5) / 2)
    half = slice(None, 20_000), slice(20_000, None)
    found = fit_calibration(gain[half[0]], true[half[0]])
    assert abs(found.temperature - 2) < 0.1 and abs(found.offset + 1.5) < 0.15
    raw = reliability(expit(gain[half[1]]), true[half[1]]).error
    calibrated = reliability(found.probability(gain[half[1]]), true[half[1]]).error
    assert calibrated < 0.01 < 3 * calibrated < raw


def test_calibration_keeps_the_order_and_takes_what_says_nothing() -> None:
    gain = np.array([-np.inf, -1.0, 0.0, 3.0])
    assert fit_calibration(gain, np.zeros(4, bool)) == Calibration()
    probability = Calibration(3.0, 0.5).probability(gain)
    assert probability[0] == 0 and (np.diff(probability) > 0).all()
    empty = reliability(np.zeros(0), np.zeros(0, bool))
    assert empty.error == 0 and empty.count.sum() == 0


def test_reliability_counts_every_pair_once() -> None:
    probability = np.array([0.0, 0.1, 0.5, 1.0])
    found = reliability(probability, np.array([False, False, True, True]))
    assert found.count.sum() == 4 and found.count[-1] == 1
    assert found.observed[-1] == 1 and np.isnan(found.observed[3])


DOOR, GATE = (Zone(name, ((x, 0), (x + 50, 0), (x + 50, 99), (x, 99))) for name, x in (("door", 0), ("gate", 50)))


def _walkers(zones: tuple[tuple[str, str, float], ...]) -> Recording:
    cameras = {name: Camera(name, 1.0, zones=(DOOR, GATE)) for name in "ab"}
    network = Network(cameras, (Link("a", "b", (1.0, 20.0), zones=zones),))
    tracklets = []
    for n, (camera, start, zone) in enumerate(
        [("a", 0, "door"), ("a", 1, "gate"), ("b", 10, "door"), ("b", 11, "gate")]
    ):
        frames = np.arange(start, start + 3)
        tracklet = Tracklet(camera, n, frames, np.ones((3, 4)), None, start, start + 2)
        tracklets.append(replace(tracklet, zone_in=zone, zone_out=zone))
    return Recording(network, tracklets)


def test_zones_speak_for_the_way_that_passages_take() -> None:
    given = scene(_walkers((("door", "gate", 0.9), ("gate", "door", 0.1))))
    zone = dict(
        zip(zip(given.pairs.source.tolist(), given.pairs.target.tolist(), strict=True), given.prior.zone, strict=True)
    )
    assert zone[0, 3] > 0 > zone[0, 2] and zone[0, 3] > zone[1, 2] > zone[1, 3]
    # Against chance of (1 + 1) / (2 + 3) for each zone at each end.
    assert np.isclose(zone[0, 3], np.log(0.9 / 0.4**2))
    assert not scene(_walkers(())).prior.zone.any()


def _overlap(places: list[tuple[str, float, float]]) -> Recording:
    network = Network({"a": Camera("a", 2.0), "b": Camera("b", 3.0)}, (Link("a", "b", (-20.0, 2.0)),))
    tracklets = []
    for n, (camera, start, x) in enumerate(places):
        frames = network.cameras[camera].frame(np.linspace(start, start + 10, 31))
        frames = np.unique(frames)
        seconds = network.cameras[camera].seconds(frames)
        world = np.stack([x + seconds, np.full(len(frames), 2.0)], 1)
        tracklets.append(
            Tracklet(camera, n, frames, np.ones((len(frames), 4)), world, float(seconds[0]), float(seconds[-1]))
        )
    return Recording(network, tracklets)


def test_places_of_one_person_agree_and_those_of_two_do_not() -> None:
    rng = np.random.default_rng(0)
    starts = np.sort(rng.uniform(0, 200, 30))
    x = rng.uniform(-40, 40, 30)
    rows = [("a", s, y) for s, y in zip(starts, x, strict=True)]
    rows += [("b", s + 2, y + e) for s, y, e in zip(starts, x, rng.normal(0, 0.3, 30), strict=True)]
    recording = _overlap(rows)
    given = scene(recording)
    same = np.array([t.id % 30 for t in recording.tracklets])
    true = same[given.pairs.source] == same[given.pairs.target]
    evidence = prior_of(recording, given.pairs).place
    assert true.sum() > 25 and (~true).sum() > 40
    assert (evidence[true] > 1).mean() > 0.95
    judged = ~true & (evidence != 0)  # some have no common time
    assert judged.sum() > 40 and (evidence[judged] < 0).mean() > 0.95


def test_distance_is_measured_in_the_common_time_whatever_the_frame_rates() -> None:
    recording = _overlap([("a", 0, 0.0), ("b", 4, 3.0), ("b", 40, 0.0)])
    distance = common_distance(recording, np.array([0, 0]), np.array([1, 2]))
    assert np.isclose(distance[0], 3.0, atol=1e-6) and np.isnan(distance[1])


def test_no_place_is_no_evidence() -> None:
    recording = _overlap([("a", 0, 0.0), ("b", 4, 3.0)])
    bare = Recording(recording.network, [replace(t, world=None) for t in recording.tracklets])
    pairs = scene(bare).pairs
    assert len(pairs) == 1 and not place_evidence(bare, pairs).any()
