"""The matcher: the operator's logits, camera messages that reach the score, nobody, and training that helps."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch

from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.matching.methods import ROWS, Scene, match, method, scene, threshold
from examples.mtmc.matching.training import loss, train


@pytest.fixture(scope="module")
def matcher() -> Matcher:
    torch.manual_seed(0)
    return Matcher().eval()


def test_the_graph_is_bipartite_and_heterogeneous(town_scene: Scene) -> None:
    graph = town_scene.graph
    assert set(graph.node_types) == {"tracklet", "camera"}
    assert set(graph.edge_types) == {
        ("camera", "sees", "tracklet"),
        ("camera", "adjacent", "camera"),
        ("tracklet", "candidate", "tracklet"),
    }
    graph.validate(raise_on_error=True)
    network, tracklets = town_scene.recording.network, town_scene.recording.tracklets
    source, target = graph["tracklet", "candidate", "tracklet"].edge_index.tolist()
    for a, b, delay in zip(source, target, graph["tracklet", "candidate", "tracklet"].delay.tolist(), strict=True):
        link = network.link(tracklets[a].camera, tracklets[b].camera)
        assert link is not None and link.window[0] - 1e-3 <= delay <= link.window[1] + 1e-3


def test_logits_are_those_of_the_formula(town_scene: Scene, matcher: Matcher) -> None:
    graph = town_scene.graph
    with torch.no_grad():
        earlier, later, (first, last) = matcher.vectors(graph)
        result = match(matcher, town_scene)
        candidate = graph["tracklet", "candidate", "tracklet"]
        source, target = candidate.edge_index
        a = matcher.score.a[0]

        def additive(x: torch.Tensor) -> torch.Tensor:
            return torch.nn.functional.leaky_relu(x, 0.2) @ a

        travel = candidate.prior.log() + candidate.travel
        alike = candidate.alike[:, None] * matcher.score.weight[0]
        logit = additive(later[target] + earlier[source] + alike) + travel
        camera = graph["tracklet"].camera
        starts = additive(later + first[camera]) + graph["tracklet"].starts.log()
        ends = additive(earlier + last[camera]) + graph["tracklet"].ends.log()
    torch.testing.assert_close(result.gain, logit - (starts[target] + ends[source]) / 2, atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(result.bias, travel)


def test_weights_of_all_and_nobody_sum_to_one(town_scene: Scene, matcher: Matcher) -> None:
    result = match(matcher, town_scene)
    source, target = town_scene.graph["tracklet", "candidate", "tracklet"].edge_index
    before = result.log_starts.exp().index_add(0, target, result.log_before.exp())
    after = result.log_ends.exp().index_add(0, source, result.log_after.exp())
    torch.testing.assert_close(before, torch.ones_like(before), atol=1e-4, rtol=0)
    torch.testing.assert_close(after, torch.ones_like(after), atol=1e-4, rtol=0)


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
    plain = Matcher(use_bias=False)
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
    first = train(given, given, True, seed=5, steps=10)
    second = train(given, given, True, seed=5, steps=10)
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
