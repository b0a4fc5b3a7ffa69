"""Small pages to test: people who walk along a few cameras, matched with a few mistakes, and no model needed."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np

from examples.mtmc.matching.calibration import reliability
from examples.mtmc.matching.candidates import candidates
from examples.mtmc.matching.reasons import Reasons
from examples.mtmc.network.network import Camera, Link, Network
from examples.mtmc.page.page import View, delays_by_link, true_identities
from examples.mtmc.page.table import Section, Table
from examples.mtmc.recordings.tracklets import Recording, Tracklet

HOSTILE = "<b>&lt;<a href='javascript:0'></script><script>document.title=1</script><img src=x onerror=\"f()\">%{x}$\\"


def network(names: tuple[str, ...], placed: bool = True) -> Network:
    """Cameras in a row, linked both ways, and each to itself."""
    spots = [(30.0 * n, 10.0 * (n % 2)) for n in range(len(names))]
    cameras = {name: Camera(name, 10.0, position=spots[n] if placed else None) for n, name in enumerate(names)}
    ways = [way for a, b in pairwise(names) for way in ((a, b), (b, a))]
    links = [Link(name, name, (0.0, 4.0)) for name in names] + [Link(a, b, (1.0, 60.0)) for a, b in ways]
    return Network(cameras, tuple(links))


def recording(given: Network, people: int = 40, seed: int = 0) -> Recording:
    """Every person passes all cameras, one way or the other."""
    rng, names, tracklets = np.random.default_rng(seed), list(given.cameras), []
    for person in range(people):
        time, order = 12.0 * person + rng.uniform(0, 5), names if person % 2 else names[::-1]
        for camera in order:
            frames = np.arange(int(10 * time), int(10 * time) + 80)
            boxes = np.tile([5.0, 5.0, 20.0, 40.0], (80, 1))
            first, last = frames[0] / 10, frames[-1] / 10
            tracklets.append(Tracklet(camera, len(tracklets), frames, boxes, None, first, last, None, person))
            time = last + rng.lognormal(np.log(12), 0.3)
    return Recording(given, tracklets)


def view(
    names: tuple[str, ...] = ("gate", "hall", "yard", "shop"),
    people: int = 40,
    placed: bool = True,
    words: str = "words",
) -> View:
    """A page with everything on it: identities are true but for a few that are cut or joined wrongly."""
    shown = recording(network(names, placed), people)
    true = true_identities(shown)
    identity = np.zeros(0, dtype=np.int64) if true is None else true.copy()
    for n in range(10, len(identity), 17):  # to somebody else, or to a new identity
        identity[n] = identity[n - 6] if n % 2 else people + n
    pairs = candidates(shown)
    rng = np.random.default_rng(1)
    right = np.array([shown.tracklets[a].truth == shown.tracklets[b].truth for a, b in zip(pairs.source, pairs.target)])  # noqa: B905
    parts = [
        np.where(right, 1.0, -1.0) * rng.uniform(-0.5, 2.5, len(pairs)) if k != 4 else np.zeros(len(pairs))
        for k in range(7)
    ]
    gain = np.sum(parts, axis=0) if len(pairs) else np.zeros(0)
    true_pairs = right.astype(bool)
    return View(
        title=f"Tracks: {words}",
        recording=shown,
        identity=identity,
        network=shown.network,
        pairs=pairs,
        gain=gain,
        reasons=Reasons(*parts, gain=gain),
        true=true,
        scores=[
            Table(words, ["row", "IDF1", words], [["none", "0.328±0.010", words], ["full", "0.7", words]], "full", True)
        ],
        notes=[f"simulated; {words}"],
        delays=delays_by_link(shown, pairs, true_pairs),
        delays_of=words,
        reliability=reliability(1 / (1 + np.exp(-gain)), true_pairs) if len(pairs) else None,
        more=[Section(f"More {words}", [words], [Table(words, ["figure", words], [[words, "1"]])])],
    )


def without_truth(given: View) -> View:
    """The same, of a recording whose truth is not known."""
    return replace(given, true=None, reliability=None, scores=[], delays={})
