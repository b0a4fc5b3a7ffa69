"""Scenes at the edge: nobody, one camera, no candidates, one candidate, a link that nothing knows."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from examples.mtmc.matching.baselines import no_association
from examples.mtmc.matching.calibration import fit_calibration, reliability
from examples.mtmc.matching.matcher import Form, Matcher
from examples.mtmc.matching.methods import ROWS, Scene, match, method, scene, threshold
from examples.mtmc.matching.reasons import reasons
from examples.mtmc.matching.training import loss, train
from examples.mtmc.network.learn import learn_links
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.recordings.tracklets import Recording, Tracklet

NAMED = [row for row in ROWS if row not in ("none", "oracle")]


def _tracklet(camera: str, n: int, start: int, truth: int | None) -> Tracklet:
    frames = np.arange(start, start + 5)
    looks = np.eye(4)[n % 4]
    return Tracklet(camera, n, frames, np.ones((5, 4)) * [1, 1, 20, 50], None, start, start + 4, looks, truth)


LINKED = Network(
    {"a": Camera("a", 1.0), "b": Camera("b", 1.0)},
    (Link("a", "a", (0.0, 9.0), reach=1.0), Link("a", "b", (1.0, 20.0)), Link("b", "a", (-15.0, 5.0))),
)
ALONE = Network({"a": Camera("a", 1.0)}, (Link("a", "a", (0.0, 9.0), reach=1.0),))
SCENES = {
    "empty recording": Recording(LINKED, []),
    "one tracklet": Recording(LINKED, [_tracklet("a", 1, 0, 1)]),
    "one camera": Recording(ALONE, [_tracklet("a", n, 8 * n, n // 2) for n in range(5)]),
    "no links": Recording(Network(LINKED.cameras), [_tracklet("ab"[n % 2], n, 8 * n, 1) for n in range(5)]),
    "one candidate": Recording(LINKED, [_tracklet("a", 0, 0, 1), _tracklet("b", 4, 10, 1)]),
    "no truth": Recording(LINKED, [_tracklet("ab"[n % 2], n, 8 * n, None) for n in range(6)]),
    "no looks": Recording(
        LINKED,
        [Tracklet("ab"[n % 2], n, np.arange(8 * n, 8 * n + 5), np.ones((5, 4)), None, 8 * n, 8 * n + 4, None, 1)
         for n in range(6)],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", SCENES)
@pytest.mark.parametrize("form", [Form(), Form(bias=(), score="gat")], ids=["full", "gat without bias"])
def test_every_method_answers(name: str, form: Form) -> None:
    recording = SCENES[name]
    given = scene(recording, learn_links(recording))
    matcher = Matcher(form).eval()
    matches = match(matcher, given)
    count = len(recording.tracklets)
    assert matches.gain.shape == (len(given.pairs),) and torch.isfinite(matches.gain).all()
    assert matches.log_starts.shape == matches.log_ends.shape == (count,)
    assert torch.isfinite(matches.log_starts).all() and torch.isfinite(matches.log_ends).all()
    assert len(reasons(matcher, given).gain) == len(given.pairs)
    for row in NAMED:
        own = method(row, given, matcher)
        identity = own.identities(own.gain - threshold(row, given, matcher))
        assert len(identity) == count
        if not len(own.gain):
            assert identity.tolist() == no_association(recording).tolist()
    gain = matches.gain.double().numpy()
    probability = fit_calibration(gain, given.true).probability(gain)
    assert reliability(probability, given.true).count.sum() == len(given.pairs)


@pytest.mark.parametrize("name", SCENES)
def test_training_takes_what_there_is(name: str) -> None:
    given = scene(SCENES[name])
    trained = train(given.labelled, given.labelled, Form(), seed=0, steps=2)
    assert all(torch.isfinite(value).all() for value in trained.state_dict().values())
    assert torch.isfinite(loss(trained(given.graph), given.labelled))


def test_a_forbidden_pair_is_never_matched(town_scene: Scene) -> None:
    """Whatever the looks say: a pair without a link, outside its window, or of a link that is not believed in."""
    torch.manual_seed(0)
    link = next(x for x in town_scene.network.links if x.source != x.target and x.window[0] > 0)
    given = scene(town_scene.recording, town_scene.network.without(link.source, link.target))
    own = method("gatv2_bias", given, Matcher().eval())
    identity = own.identities(own.gain)
    believed = given.prior.link > 0
    assert (own.gain[~believed] < -20).all() and (~believed).any()
    allowed = {
        (int(a), int(b)) for a, b in zip(given.pairs.source[believed], given.pairs.target[believed], strict=True)
    }
    groups: dict[int, set[int]] = {}
    for n, who in enumerate(identity.tolist()):
        groups.setdefault(who, set()).add(n)
    for members in groups.values():  # every identity hangs together by allowed pairs
        reached, waiting = set[int](), [min(members)]
        while waiting:
            a = waiting.pop()
            reached.add(a)
            waiting += [b for b in members - reached if (a, b) in allowed or (b, a) in allowed]
        assert reached == members
