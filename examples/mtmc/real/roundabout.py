"""RoundaboutHD's matches: looks as categories with 5 % mistakes, order as time, against first in, first out."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.associate import assign
from examples.mtmc.real.attributes import Floats, align, gains, learn, order_prior
from examples.mtmc.real.match_table import Crossing, mislabelled, read_crossings

MISTAKES = 0.05
Answer = NDArray[np.int64]  # per leaving vehicle its place among the entering, or −1 for nobody
MEANING = {
    "fifo": "first in, first out: the next that enters",
    "fifo_told": "first in, first out, told who is nobody and who joins",
    "fifo_alike": "first in, first out among equal colour, make and model",
    "attributes": "attributes and nobody, no order",
    "alignment": "attributes and nobody, never overtaking",
    "both": "attributes and nobody, with order as a bias",
}


def answers(crossing: Crossing, others: list[Crossing]) -> dict[str, Answer]:
    """Every row's answer; what is learned comes of the other crossings."""
    learned = learn(others)
    alone = gains(crossing, learned)
    path = align(alone)
    ordered = gains(crossing, learned, order_prior(crossing, learned, path))
    aligned = np.full(len(crossing.leaving), -1)
    for a, b in path:
        aligned[a] = b
    told, seen = np.full(len(crossing.leaving), -1), crossing.true >= 0
    told[seen] = np.sort(crossing.true[seen])
    return {
        "fifo": fifo(crossing, lambda a, b: True),
        "fifo_told": told,
        "fifo_alike": fifo(crossing, lambda a, b: crossing.leaving_looks[a] == crossing.entering_looks[b]),
        "attributes": assigned(alone),
        "alignment": aligned,
        "both": assigned(ordered),
    }


def fifo(crossing: Crossing, alike: Callable[[int, int], bool]) -> Answer:
    """Each of the leaving, in order, becomes the first of the entering not yet taken that may be it."""
    answer, free = np.full(len(crossing.leaving), -1), list(range(len(crossing.entering)))
    for a in range(len(answer)):
        found = next((b for b in free if alike(a, b)), None)
        if found is not None:
            answer[a] = found
            free.remove(found)
    return answer


def assigned(gain: Floats) -> Answer:
    """The one-to-one assignment of the largest total gain; nobody gains 0."""
    answer = np.full(len(gain), -1)
    source, target = np.nonzero(gain > 0)
    chosen = assign(source, target, gain[source, target])
    answer[source[chosen]] = target[chosen]
    return answer


def scores(true: Answer, answer: Answer) -> dict[str, float]:
    """Accuracy over all that leave; precision and recall of matches, and of "nobody"."""
    matched, nobody = answer >= 0, answer < 0
    right = answer == true
    return {
        "accuracy": float(right.mean()),
        "match_precision": _share(right & matched, matched),
        "match_recall": _share(right & matched, true >= 0),
        "nobody_precision": _share(right & nobody, nobody),
        "nobody_recall": _share(right & nobody, true < 0),
    }


def _share(part: NDArray[np.bool_], whole: NDArray[np.bool_]) -> float:
    return float(part.sum() / whole.sum()) if whole.any() else 0.0


def roundabout(path: Path, seeds: int = 5) -> tuple[dict[str, list[dict[str, float]]], list[Crossing]]:
    """Scores of every row for every draw of mistakes, over all vehicles of all crossings."""
    crossings = read_crossings(path)
    result: dict[str, list[dict[str, float]]] = {row: [] for row in MEANING}
    for seed in range(seeds):
        noisy = [mislabelled(c, MISTAKES, 100 * seed + n) for n, c in enumerate(crossings)]
        given: dict[str, list[Answer]] = {row: [] for row in MEANING}
        true: list[Answer] = []
        for n, crossing in enumerate(noisy):
            true.append(np.where(crossing.true >= 0, crossing.true + 1000 * n, -1))
            for row, answer in answers(crossing, noisy[:n] + noisy[n + 1 :]).items():
                given[row].append(np.where(answer >= 0, answer + 1000 * n, -1))
        for row, parts in given.items():
            result[row].append(scores(np.concatenate(true), np.concatenate(parts)))
    return result, crossings
