"""The CAMPUS auditorium: what travel times and places are worth where there are no looks, beside two anchors.

Everything learned is learned leave-one-out: a pair of tracklets is judged by links, travel times and places of all
people but the two whose tracklets they are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.associate import associate
from examples.mtmc.matching.baselines import fifo_gain, first_in_first_out, no_association, oracle
from examples.mtmc.matching.candidates import candidates
from examples.mtmc.matching.prior import prior_of
from examples.mtmc.network.learn import cross_fitted_prior
from examples.mtmc.network.links_file import load_network
from examples.mtmc.real.groups import group, join_groups
from examples.mtmc.real.views import place_odds
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import Protocol, evaluate
from examples.mtmc.thinning import thinned

LINKS = Path(__file__).parents[1] / "campus_links.yaml"
OVERLAPPING = [("HC3", "HC4"), ("IP2", "IP5")]
SIZE = (1920.0, 1080.0)
MISS, LEAST = 0.1, 15
ANCHORS = {"one_camera": 0.643, "oracle": 0.947}  # IDF1 known of this data with a tenth of the boxes missing
MEANING = {
    "none": "no association: every tracklet its own identity",
    "one_camera": "no association between cameras; within one, who comes back is known (known: 0.643)",
    "fifo": "first in, first out within the windows",
    "window": "the hand-set links file as it stands",
    "time": "links and travel times, left one out",
    "place": "places in overlapping views, left one out",
    "place_time": "places, and links and travel times between the groups",
    "oracle": "true identities of the same tracklets (known: 0.947)",
}
Identity = NDArray[np.int64]


@dataclass(frozen=True)
class Campus:
    """Scores of every row for every draw of missing boxes, and what was read."""

    scores: dict[str, list[dict[str, float]]]
    people: int
    tracklets: int


def campus(
    folder: Path, draws: int = 5, protocol: Protocol | None = None, tell: Callable[[int], None] = lambda draw: None
) -> Campus:
    """Run every row on ``draws`` recordings that miss other boxes; ``tell`` hears each as it starts."""
    whole = read(folder, "campus", load_network(LINKS), LEAST)
    scores: dict[str, list[dict[str, float]]] = {row: [] for row in MEANING}
    for seed in range(draws):
        tell(seed)
        recording = thinned(whole, MISS, seed)
        for row, identity in identities(recording).items():
            scores[row].append(evaluate(recording, identity, protocol or Protocol()))
    return Campus(scores, len({t.truth for t in whole.tracklets}), len(whole.tracklets))


def identities(recording: Recording) -> dict[str, Identity]:
    """Every row's identities."""
    pairs = candidates(recording)
    people = len({t.truth for t in recording.tracklets})
    fitted = cross_fitted_prior(recording, pairs, folds=people)  # as many folds as people: one left out at a time
    time = fitted.log_odds(pairs)
    links = pairs.source, pairs.target
    groups = group(recording, place_odds(recording, OVERLAPPING, SIZE))
    fifo = fifo_gain(pairs, recording.network, recording)
    true = {t.truth: n for n, t in enumerate(recording.tracklets)}
    return {
        "none": no_association(recording),
        "one_camera": np.array([recording.network.index(t.camera) * 1000 + true[t.truth] for t in recording.tracklets]),
        "fifo": first_in_first_out(recording, pairs, np.ones_like(fifo)),
        "window": associate(recording, *links, prior_of(recording, pairs).log_odds(pairs)),
        "time": associate(recording, *links, time),
        "place": join_groups(recording, groups, pairs, np.full(len(pairs), -1.0)),
        "place_time": join_groups(recording, groups, pairs, np.where(fitted.overlap, -1.0, time)),
        "oracle": oracle(recording),
    }
