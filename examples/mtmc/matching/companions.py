"""Companions: two candidates of one link whose earlier ends leave together and whose later ends arrive together.

People and cars move in groups. Where one of a pair has found its match, the other's is likely to lie beside it; that
is a graph whose nodes are the candidates themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.recordings.tracklets import Recording

TOGETHER = 4.0  # seconds at most between the two at either end
MOST = 12  # companions that a candidate hears at most, those whose delays are most alike


@dataclass(frozen=True, eq=False)
class Companions:
    """Pairs of candidates: ``edge [P]`` hears ``other [P]``; ``apart [P]``, seconds by which their delays differ."""

    edge: NDArray[np.int64]
    other: NDArray[np.int64]
    apart: NDArray[np.float64]


def companions(recording: Recording, pairs: Candidates, judged: NDArray[np.bool_]) -> Companions:
    """All pairs of candidates among ``judged [E]`` that could be two companions, each in both directions.

    Candidates fall into cells of ``TOGETHER`` seconds at both ends; only neighbouring cells are compared, so that the
    work grows with what is found.
    """
    time_in = np.array([t.time_in for t in recording.tracklets])
    come = time_in[pairs.target]
    left = come - pairs.delay
    own = np.flatnonzero(judged)
    if len(own) == 0:
        return Companions(own, own, np.zeros(0))
    start = min(left[own].min(), come[own].min()) - TOGETHER
    cell = np.stack([(x[own] - start) // TOGETHER for x in (left, come)]).astype(np.int64)
    width = int(cell.max()) + 2
    key = (pairs.link[own] * width + cell[0]) * width + cell[1]
    order = np.argsort(key, kind="stable")
    sorted_key, members = key[order], own[order]
    found: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    for row in (-1, 0, 1):
        # Cells beside each other in one row lie beside each other in the order of keys: one range for all three.
        first = np.searchsorted(sorted_key, key + row * width - 1, "left")
        last = np.searchsorted(sorted_key, key + row * width + 1, "right")
        count = last - first
        edge = np.repeat(own, count)
        place = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
        other = members[place]
        near = (np.abs(left[edge] - left[other]) <= TOGETHER) & (np.abs(come[edge] - come[other]) <= TOGETHER)
        near &= (pairs.source[edge] != pairs.source[other]) & (pairs.target[edge] != pairs.target[other])
        found.append((edge[near], other[near]))
    edge, other = (np.concatenate([pair[k] for pair in found]) for k in range(2))
    apart = np.abs(pairs.delay[edge] - pairs.delay[other])
    order = np.lexsort((other, apart, edge))
    edge, other, apart = edge[order], other[order], apart[order]
    starts = np.searchsorted(edge, np.arange(len(pairs)))
    kept = np.arange(len(edge)) - starts[edge] < MOST
    return Companions(edge[kept], other[kept], apart[kept])
