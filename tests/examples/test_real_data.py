"""Real data: the anchors of the CAMPUS auditorium, RoundaboutHD's matches, and that nothing is fitted on its test."""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

from examples.mtmc.errors import InputError
from examples.mtmc.matching.candidates import candidates
from examples.mtmc.matching.prior import prior_of
from examples.mtmc.network.learn import cross_fitted_prior, learn_links
from examples.mtmc.network.links_file import load_network
from examples.mtmc.real import campus, roundabout
from examples.mtmc.real.attributes import align, gains, learn
from examples.mtmc.real.groups import group
from examples.mtmc.real.match_table import Crossing, read_crossings
from examples.mtmc.real.report import run_campus, run_roundabout
from examples.mtmc.real.views import place_odds
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.thinning import thinned

ANCHOR = 0.006  # of an IDF1 at 1 Hz: one draw of missing boxes differs from another by 0.003


@pytest.fixture(scope="module")
def auditorium(data_dir: Path) -> Recording:
    return read(data_dir / "mtmc" / "campus_auditorium", "campus", load_network(campus.LINKS), campus.LEAST)


@pytest.fixture(scope="module")
def crossings(data_dir: Path) -> list[Crossing]:
    return read_crossings(data_dir / "mtmc" / "roundabouthd_matches" / "matches.csv")


def test_campus_has_its_anchors_and_the_prior_beats_no_association(data_dir: Path, tmp_path: Path) -> None:
    folder = data_dir / "mtmc" / "campus_auditorium"
    summary = run_campus(folder, tmp_path / "out", 1, Console(quiet=True))
    assert json.loads((tmp_path / "out" / "summary.json").read_text()) == summary
    idf1 = {row: scores["idf1"][0] for row, scores in summary["rows"].items()}
    hota = {row: scores["hota"][0] for row, scores in summary["rows"].items()}
    for row, known in campus.ANCHORS.items():
        assert idf1[row] == pytest.approx(known, abs=ANCHOR)
    # A person who comes back into a camera counts as two here, and as one in the known figure.
    assert idf1["none"] < idf1["one_camera"]
    assert idf1["one_camera"] + 0.05 < idf1["time"] < idf1["place_time"] < idf1["oracle"]
    assert hota["one_camera"] < hota["time"] < hota["place_time"] < hota["oracle"]
    assert idf1["window"] < idf1["time"], "hand-set windows are no better than what was learned"
    assert "left" in summary["meaning"]["time"] and "21 people, 94 tracklets" in summary["protocol"]


def relabelled(recording: Recording, who: int, other: int) -> Recording:
    """The recording where one person's tracklets are said to be another's: what may not matter to pairs of the two."""
    tracklets = [replace(t, truth=other) if t.truth == who else t for t in recording.tracklets]
    return Recording(recording.network, tracklets, recording.truth)


def test_no_pair_is_judged_by_its_own_people(auditorium: Recording) -> None:
    pairs = candidates(auditorium)
    people = sorted({t.truth for t in auditorium.tracklets if t.truth is not None})
    assert len(people) == 21
    prior = cross_fitted_prior(auditorium, pairs, folds=len(people))
    truth = np.array([t.truth for t in auditorium.tracklets])
    for a, b in ((people[0], people[3]), (people[5], people[5]), (people[17], people[20])):
        own = (truth[pairs.source] == a) & (truth[pairs.target] == b)
        assert own.any()
        without = prior_of(auditorium, pairs, learn_links(auditorium, {a, b}, pairs))
        assert np.array_equal(prior.link[own], without.link[own])
        assert np.array_equal(prior.travel[own], without.travel[own])
    whole = prior_of(auditorium, pairs, learn_links(auditorium, (), pairs))
    assert np.mean(prior.travel != whole.travel) > 0.5, "the test could not fail"


def test_places_are_not_learned_of_the_pair_that_is_judged(auditorium: Recording) -> None:
    views = campus.OVERLAPPING[:1]
    odds = place_odds(auditorium, views, campus.SIZE)
    truth = [t.truth for t in auditorium.tracklets]
    a, b = 16, 18  # both seen by both of the cameras
    confused = place_odds(relabelled(auditorium, a, b), views, campus.SIZE)
    of_both = [pair for pair in odds if {truth[pair[0]], truth[pair[1]]} == {a, b}]
    others = [pair for pair in odds if not {truth[pair[0]], truth[pair[1]]} & {a, b}]
    assert of_both and others
    assert all(odds[pair] == confused[pair] for pair in of_both)
    assert any(odds[pair] != confused[pair] for pair in others), "the test could not fail"


def test_places_tell_one_person_from_two(auditorium: Recording) -> None:
    odds = place_odds(auditorium, campus.OVERLAPPING, campus.SIZE)
    truth = [t.truth for t in auditorium.tracklets]
    one = [value for (a, b), value in odds.items() if truth[a] == truth[b]]
    two = [value for (a, b), value in odds.items() if truth[a] != truth[b]]
    above = np.mean(np.array(one)[:, None] > np.array(two))  # the area under the ROC curve
    assert len(one) > 30 and len(two) > 300 and above > 0.9
    assert np.mean(np.array(one) > 0) > 0.9 and np.mean(np.array(two) > 0) < 0.25


def test_groups_hold_nobody_twice(auditorium: Recording) -> None:
    recording = thinned(auditorium, campus.MISS)
    groups = group(recording, place_odds(recording, campus.OVERLAPPING, campus.SIZE))
    assert sorted(n for members in groups for n in members) == list(range(len(recording.tracklets)))
    for members in groups:
        for a in members:
            for b in members:
                x, y = recording.tracklets[a], recording.tracklets[b]
                assert a == b or x.camera != y.camera or x.time_out < y.time_in or y.time_out < x.time_in


def test_the_match_table_is_what_its_readme_says(crossings: list[Crossing]) -> None:
    assert [c.name for c in crossings] == ["1 → 2", "2 → 1", "2 → 3", "3 → 2", "3 → 4", "4 → 3"]
    assert sum(len(c.leaving) for c in crossings) == 647
    assert [int((c.true >= 0).sum()) for c in crossings] == [83, 97, 81, 77, 85, 105]
    for crossing in crossings:
        seen = crossing.true[crossing.true >= 0]
        assert len(set(seen.tolist())) == len(seen)
        overtaking = np.mean(np.diff(seen) < 0)
        assert overtaking < 0.4, "in order but for neighbours"


def test_order_as_a_bias_beats_first_in_first_out(data_dir: Path) -> None:
    folder = data_dir / "mtmc" / "roundabouthd_matches"
    summary = run_roundabout(folder, None, 2, Console(quiet=True))
    rows = {row: {name: mean for name, (mean, _) in scores.items()} for row, scores in summary["rows"].items()}
    best = rows["both"]
    assert best["accuracy"] > 0.92
    for row in ("fifo", "fifo_told", "fifo_alike", "attributes", "alignment"):
        assert best["accuracy"] > rows[row]["accuracy"] + 0.08
    for row in ("fifo", "fifo_alike", "attributes"):  # who is nobody, too
        assert best["nobody_precision"] > rows[row]["nobody_precision"] + 0.1
        assert best["nobody_recall"] > rows[row]["nobody_recall"] + 0.05


def test_attributes_learn_their_mistakes(crossings: list[Crossing]) -> None:
    noisy = [roundabout.mislabelled(c, 0.05, n) for n, c in enumerate(crossings)]
    mistakes = learn(noisy).mistakes
    assert all(0.02 < rate < 0.06 for rate in mistakes)
    assert max(learn(crossings).mistakes) < 0.01
    assert learn(noisy).lost == pytest.approx(119 / 647, abs=0.01)


def test_a_dot_product_is_the_log_ratio(crossings: list[Crossing]) -> None:
    """gain = half the sum of both directions' log-odds; checked against counting by hand."""
    learned = learn(crossings[:3])
    crossing = crossings[4]
    gain = gains(crossing, learned)
    n, m = gain.shape
    for a, b in ((0, 0), (3, 5), (10, 9), (20, 2)):
        x, y = crossing.leaving_looks[a], crossing.entering_looks[b]
        ratio = 0.0
        for k, key in enumerate([("colour", y[0]), ("make", y[1]), ("model", y[1], y[2])]):
            if k == 2 and x[1] != y[1]:
                continue
            wrong = learned.mistakes[k]
            ratio += np.log((1 - wrong) / learned.frequency(*key) + wrong) if x[k] == y[k] else np.log(wrong)
        after = ratio - np.log(m) + np.log((1 - learned.lost) / learned.lost)
        before = ratio - np.log(n) + np.log((1 - learned.fresh) / learned.fresh)
        assert gain[a, b] == pytest.approx((after + before) / 2, abs=1e-5)


def test_the_alignment_is_the_best_that_never_crosses() -> None:
    rng = np.random.default_rng(0)

    def best(gain: np.ndarray) -> float:  # type: ignore[type-arg]
        if 0 in gain.shape:
            return 0.0
        return max(best(gain[1:]), best(gain[:, 1:]), gain[0, 0] + best(gain[1:, 1:]))

    for _ in range(20):
        gain = rng.normal(size=(rng.integers(1, 6), rng.integers(1, 6)))
        path = align(gain)
        assert all(a < c and b < d for (a, b), (c, d) in pairwise(path))
        assert sum(gain[a, b] for a, b in path) == pytest.approx(best(gain))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a,b\n1,2\n", "line 1: found no column camera_from"),
        ("camera_from,camera_to,tracklet_from,tracklet_to,colour,make,model\n1,2,x,,a,b,c\n", "line 2: found tracklet"),
        ("camera_from,camera_to,tracklet_from,tracklet_to,colour,make,model\n1,2,3,,a,b,c\n", "1 direction"),
    ],
)
def test_a_bad_match_table_is_one_line(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "matches.csv").write_text(text)
    with pytest.raises(InputError, match=message):
        read_crossings(tmp_path / "matches.csv")
