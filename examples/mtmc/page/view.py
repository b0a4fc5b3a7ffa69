"""What a page shows: the answer of one tracker on one recording, and what it was made of."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.network.network import Network
from examples.mtmc.page.table import Section, Table
from examples.mtmc.recordings.tracklets import Recording

if TYPE_CHECKING:
    from examples.mtmc.matching.calibration import Reliability
    from examples.mtmc.matching.reasons import Reasons


@dataclass(frozen=True, eq=False)
class View:
    """All of a page; only the first four fields are needed.

    ``identity [N]`` and ``true [N]`` number identities (−1: nobody, ``true`` None: not known). ``pairs``, ``gain [E]``
    and ``reasons`` are the candidates with their log-odds against nobody, less the threshold, and ``probability [E]``
    what those come to (the sigmoid where it is not given). ``network`` is what was believed. ``delays`` are seconds
    seen on links, by (source, target), and ``delays_of`` says whose they are. ``scores`` stand at the top, ``more`` at
    the end, ``notes`` (the protocol, what was not done) under the title.
    """

    title: str
    recording: Recording
    identity: NDArray[np.int64]
    network: Network
    pairs: Candidates | None = None
    gain: NDArray[np.float64] | None = None
    reasons: Reasons | None = None
    probability: NDArray[np.float64] | None = None
    true: NDArray[np.int64] | None = None
    scores: list[Table] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    delays: dict[tuple[str, str], NDArray[np.float64]] = field(default_factory=dict)
    delays_of: str = ""
    reliability: Reliability | None = None
    more: list[Section] = field(default_factory=list)


def true_identities(recording: Recording) -> NDArray[np.int64] | None:
    """The true identity of every tracklet, −1 for nobody; None where none is known."""
    true = [-1 if t.truth is None else t.truth for t in recording.tracklets]
    return np.array(true, dtype=np.int64) if any(t >= 0 for t in true) else None


def delays_by_link(
    recording: Recording, pairs: Candidates, chosen: NDArray[np.bool_]
) -> dict[tuple[str, str], NDArray[np.float64]]:
    """The delays of the ``chosen [E]`` candidates, by the source and target of their link."""
    links = recording.network.links
    numbers = np.unique(pairs.link[chosen]).tolist()
    return {(links[n].source, links[n].target): pairs.delay[chosen & (pairs.link == n)] for n in numbers}
