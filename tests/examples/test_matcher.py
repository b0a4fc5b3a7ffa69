"""The matcher: the operator's logits, camera messages that reach the score, nobody, and training that helps."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from examples.mtmc.matching.matcher import Form, Matcher
from examples.mtmc.matching.methods import ROWS, Scene, match, method, scene, threshold
from examples.mtmc.matching.training import loss, train
from examples.mtmc.recordings.tracklets import Recording


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    torch.manual_seed(0)
    return Matcher().eval()


def test_the_graph_is_heterogeneous(town_scene: Scene) -> None:
    graph = town_scene.graph
    assert set(graph.node_types) == {"tracklet", "camera", "nobody"}
    assert set(graph.edge_types) == {
        ("camera", "sees", "tracklet"),
        ("camera", "adjacent", "camera"),
        ("tracklet", "candidate", "tracklet"),
        ("nobody", "starts", "tracklet"),
        ("tracklet", "ends", "nobody"),
    }
    graph.validate(raise_on_error=True)
    network, tracklets = town_scene.recording.network, town_scene.recording.tracklets
    source, target = graph["tracklet", "candidate", "tracklet"].edge_index.tolist()
    for a, b, delay in zip(source, target, graph["tracklet", "candidate", "tracklet"].delay.tolist(), strict=True):
        link = network.link(tracklets[a].camera, tracklets[b].camera)
        assert link is not None and link.window[0] - 1e-3 <= delay <= link.window[1] + 1e-3


def test_logits_are_those_of_the_formula(town_scene: Scene, matcher: Matcher) -> None:
    graph = town_scene.graph
    candidate = graph["tracklet", "candidate", "tracklet"]
    start, end = graph["nobody", "starts", "tracklet"], graph["tracklet", "ends", "nobody"]
    with torch.no_grad():
        earlier, later, (first, last) = matcher.vectors(graph)
        result = match(matcher, town_scene)
        a = matcher.score.a[0]

        def additive(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.leaky_relu(x, 0.2) @ a

        source, target = candidate.edge_index
        bias = candidate.prior.log() + candidate.travel + candidate.zone + candidate.place
        alike = candidate.alike @ matcher.score.weight
        logit = additive(later[target] + earlier[source] + alike) + bias
        starts = additive(later[start.edge_index[1]] + first[start.edge_index[0]]) + start.prior.log()
        ends = additive(earlier[end.edge_index[0]] + last[end.edge_index[1]]) + end.prior.log()
    gain = logit - (starts[candidate.into] + ends[candidate.out_of]) / 2
    torch.testing.assert_close(result.gain, gain, atol=2e-4, rtol=1e-4)  # untrained rounds change nothing
    torch.testing.assert_close(result.bias, bias)


def test_weights_of_all_and_nobody_sum_to_one(town_scene: Scene) -> None:
    result = match(_stirred(Form()), town_scene)
    candidate = town_scene.graph["tracklet", "candidate", "tracklet"]
    count = len(town_scene.recording.tracklets)
    for nobody, slot, weight in (
        (result.log_starts, candidate.into, result.log_before),
        (result.log_ends, candidate.out_of, result.log_after),
    ):
        sequence = slot < count
        total = nobody.exp().index_add(0, slot[sequence], weight[sequence].exp())
        torch.testing.assert_close(total, torch.ones_like(total), atol=1e-4, rtol=0)


def _stirred(form: Form) -> Matcher:
    """A matcher whose rounds change something, as trained ones do."""
    torch.manual_seed(0)
    matcher = Matcher(form).eval()
    for round in matcher.rounds:
        torch.nn.init.normal_(round.change.weight, std=0.5)
    return matcher


@pytest.mark.parametrize("form", [Form(), Form(bias=()), Form(score="gat", rounds=1), Form(companions=False)])
def test_the_order_of_tracklets_changes_nothing(town_scene: Scene, form: Form) -> None:
    """Tracklets that start at one time may stand in any order; here ids, which break ties, are turned around."""
    recording = town_scene.recording
    turned = Recording(recording.network, list(reversed(recording.tracklets)), recording.truth)
    turned.tracklets.sort(key=lambda t: t.time_in)  # stable: ties stay turned around
    other = scene(turned, town_scene.network)
    matcher = _stirred(form)
    results = []
    for given in (town_scene, other):
        tracklets = given.recording.tracklets
        names = [(t.camera, t.id) for t in tracklets]
        gain = match(matcher, given).gain.tolist()
        pair = zip(given.pairs.source.tolist(), given.pairs.target.tolist(), strict=True)
        results.append({(names[a], names[b]): g for (a, b), g in zip(pair, gain, strict=True)})
    common = set(results[0]) & set(results[1])
    assert len(common) > 0.98 * len(results[0])
    for pair in common:
        assert abs(results[0][pair] - results[1][pair]) < 1e-3


def test_rivals_and_companions_inform_each_other(town_scene: Scene) -> None:
    """What one pair looks like reaches those that share an end, and those that move with it; others it does not."""
    graph = copy.copy(town_scene.graph)
    candidate = graph["tracklet", "candidate", "tracklet"]
    changed = int(candidate.companions[0, 0])
    alike = candidate.alike.clone()
    alike[changed] += 0.5 * candidate.kind_of[changed]
    for form, reached in ((Form(rounds=0), False), (Form(rounds=1, companions=False), False), (Form(rounds=1), True)):
        matcher = _stirred(form)
        before = match(matcher, town_scene).gain
        candidate.alike = alike
        with torch.no_grad():
            after = matcher(graph).gain
        moved = (after - before).abs() > 1e-3
        rivals = (candidate.into == candidate.into[changed]) | (candidate.out_of == candidate.out_of[changed])
        hears = torch.zeros_like(rivals)
        hears[candidate.companions[1][candidate.companions[0] == changed]] = True
        assert bool(moved[hears & ~rivals].any()) == reached
        if not form.rounds:
            assert moved.nonzero().tolist() == [[changed]]
        candidate.alike = town_scene.graph["tracklet", "candidate", "tracklet"].alike


def test_adjacency_of_a_camera_changes_its_scores(town_scene: Scene, matcher: Matcher) -> None:
    """Only by messages: the candidates and their priors are left as they are."""
    before = match(matcher, town_scene).gain
    graph = copy.copy(town_scene.graph)
    adjacent = graph["camera", "adjacent", "camera"]
    index = town_scene.recording.network.index("c7")
    kept = adjacent.edge_index[1] != index
    assert 0 < int(kept.sum()) < len(kept)
    adjacent.edge_index, adjacent.edge_attr = adjacent.edge_index[:, kept], adjacent.edge_attr[kept]
    with torch.no_grad():
        after = matcher(graph).gain
    source, target = graph["tracklet", "candidate", "tracklet"].edge_index
    camera = graph["tracklet"].camera
    touched = (camera[source] == index) | (camera[target] == index)
    assert touched.any() and not touched.all()
    assert ((before - after).abs()[touched] > 1e-5).all()
    torch.testing.assert_close(before[~touched], after[~touched])


def test_bias_changes_scores_and_its_absence_is_zero(town_scene: Scene) -> None:
    torch.manual_seed(0)
    plain = Matcher(Form(bias=()))
    assert not match(plain, town_scene).bias.any()
    torch.manual_seed(0)
    assert not torch.allclose(match(Matcher(), town_scene).gain, match(plain, town_scene).gain)


def test_a_link_the_network_does_not_know_is_never_taken(town_scene: Scene, matcher: Matcher) -> None:
    link = next(x for x in town_scene.network.links if x.source != x.target)
    without = scene(town_scene.recording, town_scene.network.without(link.source, link.target))
    gone = np.array([(x.source, x.target) == (link.source, link.target) for x in town_scene.network.links])
    gain = match(matcher, without).gain.numpy()
    assert (gain[gone[without.pairs.link]] < -20).all()
    assert np.isfinite(gain).all()


def test_no_candidates_at_all(town_scene: Scene, matcher: Matcher) -> None:
    from examples.mtmc.network.network import Network
    from examples.mtmc.recordings.tracklets import Recording

    alone = scene(Recording(Network(town_scene.network.cameras), town_scene.recording.tracklets[:5]))
    assert len(match(matcher, alone).gain) == 0
    own = method("gatv2_bias", alone, matcher)
    assert own.identities(own.gain).tolist() == [0, 1, 2, 3, 4]


def test_training_lowers_the_loss_and_is_repeatable(town_scene: Scene) -> None:
    given = town_scene.labelled
    torch.manual_seed(5)
    with torch.no_grad():
        untrained = float(loss(Matcher()(given.graph), given))
    first = train(given, given, Form(), seed=5, steps=10)
    second = train(given, given, Form(), seed=5, steps=10)
    with torch.no_grad():
        assert float(loss(first(given.graph), given)) < 0.9 * untrained
    for a, b in zip(first.state_dict().values(), second.state_dict().values(), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("row", [row for row in ROWS if row not in ("none", "oracle")])
def test_every_row_has_a_threshold(town_scene: Scene, matcher: Matcher, row: str) -> None:
    tau = threshold(row, town_scene, matcher)
    assert np.isfinite(tau)
    own = method(row, town_scene, matcher)
    assert len(own.identities(own.gain - tau)) == len(town_scene.recording.tracklets)
