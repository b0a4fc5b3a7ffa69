"""The rows of the table: every method as gains of pairs, associated and tuned in the same way."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch_geometric.data import HeteroData

from examples.mtmc.matching.appearance import looks_of
from examples.mtmc.matching.associate import associate
from examples.mtmc.matching.baselines import (
    appearance_gain,
    appearance_pairs,
    fifo_gain,
    first_in_first_out,
    time_gain,
)
from examples.mtmc.matching.candidates import Candidates, candidates
from examples.mtmc.matching.graph import build_graph
from examples.mtmc.matching.matcher import Matcher, Matches
from examples.mtmc.matching.prior import Prior, prior_of
from examples.mtmc.matching.slots import true_pairs
from examples.mtmc.matching.training import Labelled
from examples.mtmc.matching.tuning import tune
from examples.mtmc.network.learn import cross_fitted_prior
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.tracklets import Recording

FOLDS = 4  # of identities, for cross-fitting
ROWS = ("none", "fifo", "time", "appearance", "hungarian", "gatv2", "gatv2_bias", "online", "oracle")
MEANING = {
    "none": "no association: every tracklet its own identity",
    "fifo": "first in, first out along the links",
    "time": "travel time alone",
    "appearance": "appearance alone, no links",
    "hungarian": "appearance + hard window + Hungarian",
    "gatv2": "GATv2 matcher without the bias",
    "gatv2_bias": "GATv2 matcher with the bias",
    "online": "the same while it runs, decided within 5 s, for good",
    "prior": "link prior + travel time, no appearance",
    "oracle": "true identities of the same tracklets",
}


@dataclass(frozen=True, eq=False)
class Scene:
    """A recording with all that methods need of it, by what ``network`` believes."""

    recording: Recording
    network: Network
    pairs: Candidates
    prior: Prior
    looks: NDArray[np.float64]
    graph: HeteroData
    true: NDArray[np.bool_]  # [E], whether a candidate is a true successor

    @property
    def labelled(self) -> Labelled:
        """For training."""
        return Labelled(self.graph, torch.as_tensor(self.true))


def scene(
    recording: Recording,
    network: Network | None = None,
    prior: Prior | None = None,
    pairs: Candidates | None = None,
    looks: NDArray[np.float64] | None = None,
) -> Scene:
    """Prepare a recording; ``network`` may believe other than the recording's own, and ``prior`` overrules it.

    ``pairs`` and ``looks`` are the recording's own where they are not given.
    """
    network = network or recording.network
    pairs = candidates(recording) if pairs is None else pairs
    prior = prior or prior_of(recording, pairs, network)
    looks = looks_of(recording) if looks is None else looks
    true = true_pairs(recording, pairs.source, pairs.target)
    graph = build_graph(recording, pairs, prior, looks, network)
    return Scene(recording, network, pairs, prior, looks, graph, true)


def cross_fitted(recording: Recording, network: Network) -> Scene:
    """A scene to learn from: no pair is judged by passages of its own identities, or the prior is trusted too much."""
    pairs = candidates(recording)
    return scene(recording, network, cross_fitted_prior(recording, pairs, FOLDS), pairs)


def match(matcher: Matcher, given: Scene) -> Matches:
    """The matcher's scores of a scene."""
    with torch.no_grad():
        return matcher(given.graph)  # type: ignore[no-any-return]


@dataclass(frozen=True, eq=False)
class Method:
    """Gains of pairs in a scene, and how identities come of them."""

    gain: NDArray[np.float64]
    true: NDArray[np.bool_]
    identities: Callable[[NDArray[np.float64]], NDArray[np.int64]]


def method(row: str, given: Scene, matcher: Matcher | None = None) -> Method:
    """One row of the table in a scene."""
    recording, pairs = given.recording, given.pairs
    if row == "appearance":
        source, target = appearance_pairs(recording)
        true = true_pairs(recording, source, target)
        gain = appearance_gain(given.looks, source, target)
        return Method(gain, true, lambda g: associate(recording, source, target, g))
    if row == "fifo":
        gain = fifo_gain(pairs, given.network, recording)
        return Method(gain, given.true, lambda g: first_in_first_out(recording, pairs, g))
    if row == "time":
        gain = time_gain(given.prior)
    elif row == "prior":
        with np.errstate(divide="ignore"):
            gain = given.prior.log_odds(pairs)
    elif row == "hungarian":
        gain = appearance_gain(given.looks, pairs.source, pairs.target)
    elif matcher is not None:
        gain = match(matcher, given).gain.double().numpy()
    else:
        raise ValueError(f"row is {row!r}; it must be one of {', '.join(ROWS)}, with a matcher where it names one")
    return Method(gain, given.true, lambda g: associate(recording, pairs.source, pairs.target, g))


def threshold(row: str, training: Scene, matcher: Matcher | None = None) -> float:
    """The threshold that the common search finds on a labelled scene."""
    own = method(row, training, matcher)
    return tune(training.recording, own.gain, own.true, own.identities)
