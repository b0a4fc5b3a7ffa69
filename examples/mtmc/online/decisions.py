"""What the online tracker says: an identity for every tracklet, once, and aliases where it later learned better."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class Decision:
    """One line of the stream of decisions.

    ``kind="identity"``: tracklet ``id`` of ``camera``, first seen at ``time_in``, is ``identity`` (counted from 1); it
    follows tracklet ``after_id`` of ``after_camera``, or nobody, by ``score`` (log-odds against nobody less the
    threshold). A tracklet has one such line, and it is final.

    ``kind="alias"``: the whole of tracklet ``id`` says that its identity is the same as ``identity``, which was there
    before it. Earlier lines stay as they are; a reader may join the two identities from here on, or ignore the line.

    ``at`` is the second of the stream at which it was decided; ``part`` counts from 0 how often an id came back after
    it had ended.
    """

    kind: str
    at: float
    identity: int
    camera: str
    id: int
    part: int
    time_in: float
    after_camera: str | None = None
    after_id: int | None = None
    after_part: int | None = None
    score: float | None = None
    alias_of: int | None = None  # of an alias: the identity that the tracklet was given

    def line(self) -> str:
        """As one line of JSON: times to the millisecond, what is not known left out."""
        known = {name: value for name, value in asdict(self).items() if value is not None}
        return json.dumps({k: round(v, 3) if isinstance(v, float) else v for k, v in known.items()}) + "\n"


def follow_aliases(identity: NDArray[np.int64], decisions: Iterable[Decision]) -> NDArray[np.int64]:
    """Identities with every alias believed: of two names for one, the older stands."""
    stands: dict[int, int] = {}

    def root(name: int) -> int:
        while name in stands:
            name = stands[name]
        return name

    for decision in decisions:
        if decision.kind == "alias" and decision.alias_of is not None:
            a, b = root(decision.identity), root(decision.alias_of)
            if a != b:
                stands[max(a, b)] = min(a, b)
    return np.array([root(int(name)) for name in identity], dtype=np.int64)
