"""Association: the best sum, one tracklet per camera and time, nobody where nothing is gained."""

from __future__ import annotations

import gc
from itertools import pairwise

import hypothesis
import hypothesis.strategies as st
import numpy as np

from examples.mtmc.matching.associate import Identities, _assigned, _greedy, assign, associate
from examples.mtmc.matching.slots import slots_of, true_pairs
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.recordings.tracklets import Recording, Tracklet


def _recording(spans: list[tuple[str, int, int]]) -> Recording:
    network = Network({name: Camera(name, 1.0) for name in "abc"})
    tracklets = [
        Tracklet(camera, n, np.arange(start, start + length), np.ones((length, 4)), None, start, start + length - 1)
        for n, (camera, start, length) in enumerate(spans)
    ]
    return Recording(network, tracklets)


_spans = st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30), st.integers(1, 12)), min_size=2, max_size=14)


@hypothesis.given(_spans, st.integers(0, 2**32 - 1))
def test_never_two_of_one_camera_at_once(spans: list[tuple[str, int, int]], seed: int) -> None:
    recording = _recording(spans)
    n = len(recording.tracklets)
    source, target = np.triu_indices(n, 1)
    gain = np.random.default_rng(seed).normal(0.5, 1, len(source))  # every pair may be joined, most gain
    identity = associate(recording, source.astype(np.int64), target.astype(np.int64), gain)
    for a, b in zip(source, target, strict=True):
        x, y = recording.tracklets[a], recording.tracklets[b]
        if identity[a] == identity[b] and x.camera == y.camera:
            assert x.time_out < y.time_in or y.time_out < x.time_in
    assert identity.tolist() == associate(recording, source, target, gain).tolist()


@hypothesis.given(st.integers(0, 2**32 - 1))
def test_assignment_is_the_best(seed: int) -> None:
    rng = np.random.default_rng(seed)
    source, target = (x.ravel() for x in np.meshgrid(np.arange(4), np.arange(4, 8), indexing="ij"))
    kept = rng.random(16) < 0.6
    source, target, gain = source[kept], target[kept], rng.random(kept.sum()) + 0.01
    if not kept.any():
        return
    picked = assign(source, target, gain)
    assert len(set(source[picked])) == len(picked) == len(set(target[picked]))
    assert np.isclose(gain[picked].sum(), _best(source, target, gain, 0, frozenset()))


def _best(source: np.ndarray, target: np.ndarray, gain: np.ndarray, row: int, taken: frozenset[int]) -> float:  # type: ignore[type-arg]
    if row == 4:
        return 0.0
    options = [_best(source, target, gain, row + 1, taken)]
    for edge in np.flatnonzero(source == row):
        if int(target[edge]) not in taken:
            options.append(gain[edge] + _best(source, target, gain, row + 1, taken | {int(target[edge])}))
    return float(max(options))


def test_nobody_where_nothing_is_gained() -> None:
    recording = _recording([("a", 0, 3), ("b", 10, 3), ("c", 20, 3)])
    source, target = np.array([0, 1]), np.array([1, 2])
    assert associate(recording, source, target, np.array([-0.1, 2.0])).tolist() == [0, 1, 1]
    assert associate(recording, source, target, np.array([0.0, 0.0])).tolist() == [0, 1, 2]


def test_what_is_refused_is_given_another_chance() -> None:
    # a0 → b → a1 would hold camera a twice at once; b then goes with the better of the two, and a1 with c.
    recording = _recording([("a", 0, 10), ("b", 2, 3), ("a", 6, 6), ("c", 20, 3)])
    source, target = np.array([0, 1, 0, 2]), np.array([1, 2, 3, 3])
    identity = associate(recording, source, target, np.array([5.0, 4.0, 3.0, 1.0]))
    assert identity[0] == identity[1] != identity[2]
    assert identity[3] in (identity[0], identity[2])


def test_fragments_of_a_camera_join() -> None:
    recording = _recording([("a", 0, 3), ("a", 4, 3), ("a", 8, 3)])
    assert associate(recording, np.array([0, 1]), np.array([1, 2]), np.ones(2)).tolist() == [0, 0, 0]
    assert all(x.time_out < y.time_in for x, y in pairwise(recording.tracklets))


@hypothesis.given(_spans, st.integers(0, 2**32 - 1), st.booleans())
def test_never_worse_than_greedy(spans: list[tuple[str, int, int]], seed: int, overlapping: bool) -> None:
    """The sum of the links that are joined; greedy takes the best link that is left, again and again."""
    recording = _recording(spans)
    if overlapping:
        views = tuple(Link(a, b, (-20.0, 20.0)) for a in "abc" for b in "abc" if a != b)
        recording = Recording(Network(recording.network.cameras, views), recording.tracklets)
    source, target = (x.astype(np.int64) for x in np.triu_indices(len(recording.tracklets), 1))
    gain = np.random.default_rng(seed).normal(0.2, 1, len(source))
    slots = slots_of(recording, source, target)
    ways = [way(Identities(recording), source, target, slots, gain) for way in (_assigned, _greedy)]
    for joined in ways:
        assert len(set(slots.out_of[joined])) == len(set(slots.into[joined])) == len(joined), "a slot filled twice"
        assert (gain[joined] > 0).all()
    best = max(ways, key=lambda edges: float(gain[edges].sum()))
    groups = Identities(recording)
    for edge in best:
        assert groups.join(int(source[edge]), int(target[edge]))
    assert associate(recording, source, target, gain).tolist() == groups.labels().tolist()


def test_one_seen_by_three_overlapping_views_is_one_and_goes_on() -> None:
    """X is seen by a, b and c at once; only a knows b and c, and only b leads on, so that a chain would break."""
    network = Network(
        {name: Camera(name, 1.0) for name in "abcd"},
        (Link("a", "b", (-20.0, 5.0)), Link("a", "c", (-20.0, 5.0)), Link("b", "d", (1.0, 30.0))),
    )
    spans = [("a", 0, 10), ("b", 2, 10), ("c", 3, 10), ("d", 20, 5)]
    tracklets = [
        Tracklet(camera, n, np.arange(start, start + length), np.ones((length, 4)), None, start, start + length - 1)
        for n, (camera, start, length) in enumerate(spans)
    ]
    recording = Recording(network, tracklets)
    source, target = np.array([0, 0, 1]), np.array([1, 2, 3])
    assert associate(recording, source, target, np.array([3.0, 2.0, 1.0])).tolist() == [0, 0, 0, 0]
    # Views that are believed to lie one after the other leave a place for one of them alone.
    apart = Network(network.cameras, (Link("a", "b", (1.0, 20.0)), Link("a", "c", (1.0, 20.0))))
    given = Recording(apart, tracklets)
    assert associate(given, source, target, np.array([3.0, 2.0, 1.0])).tolist() == [0, 0, 1, 0]


def test_true_pairs_are_the_nearest_in_their_slots() -> None:
    network = Network(
        {name: Camera(name, 1.0) for name in "ab"}, (Link("a", "b", (-20.0, 9.0)), Link("b", "a", (-20.0, 9.0)))
    )
    spans = [("a", 0, 4), ("b", 2, 4), ("a", 6, 4), ("b", 8, 4)]
    tracklets = [
        Tracklet(c, n, np.arange(s, s + k), np.ones((k, 4)), None, s, s + k - 1, truth=7)
        for n, (c, s, k) in enumerate(spans)
    ]
    recording = Recording(network, tracklets)
    source, target = (x.astype(np.int64) for x in np.triu_indices(4, 1))
    true = true_pairs(recording, source, target)
    found = {(int(a), int(b)) for a, b in zip(source[true], target[true], strict=True)}
    # Each to the next of the other view, and each to the next of its own though the other saw the same in between;
    # 0 to 3 is neither's nearest.
    assert found == {(0, 1), (1, 2), (2, 3), (0, 2), (1, 3)}


def test_tracklets_have_no_object_each_for_the_search_for_garbage_to_go_through() -> None:
    recording = _recording([("abc"[n % 3], 2 * n, 1) for n in range(300)])
    source, target = np.arange(299), np.arange(1, 300)
    gc.disable()
    try:
        before = len(gc.get_objects())
        groups = Identities(recording)
        tried = groups.copy()
        assert all(tried.join(a, b) for a, b in zip(source.tolist(), target.tolist(), strict=True))
        assert len(gc.get_objects()) - before < 100
    finally:
        gc.enable()
    assert len(set(tried.labels().tolist())) == 1 and len(set(groups.labels().tolist())) == 300
    groups.become(tried)
    assert groups.labels().tolist() == [0] * 300
