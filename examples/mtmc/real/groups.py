"""Two steps where views overlap: tracklets seen at once are grouped by place, then groups are joined by travel."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.associate import Identities, associate
from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.recordings.tracklets import Recording


def group(recording: Recording, odds: dict[tuple[int, int], float]) -> list[list[int]]:
    """Groups of tracklets that grow while two have evidence for each other, the strongest sum of log-odds first.

    Two of one camera that are seen at once never come together. Every tracklet is in one group; all are ascending.
    """
    own = {n: n for n in range(len(recording.tracklets))}
    groups = {n: [n] for n in own}
    while True:
        total: dict[tuple[int, int], float] = {}
        for (a, b), value in odds.items():
            if own[a] != own[b]:
                key = min(own[a], own[b]), max(own[a], own[b])
                total[key] = total.get(key, 0.0) + value
        best = sorted((key for key, value in total.items() if value > 0), key=lambda key: (-total[key], key))
        chosen = next((key for key in best if not _clash(recording, groups[key[0]], groups[key[1]])), None)
        if chosen is None:
            return sorted(sorted(members) for members in groups.values())
        kept, gone = chosen
        groups[kept] += groups.pop(gone)
        own |= dict.fromkeys(groups[kept], kept)


def _clash(recording: Recording, left: list[int], right: list[int]) -> bool:
    def at_once(a: int, b: int) -> bool:
        x, y = recording.tracklets[a], recording.tracklets[b]
        return x.camera == y.camera and x.time_in <= y.time_out and y.time_in <= x.time_out

    return any(at_once(a, b) for a in left for b in right)


def join_groups(
    recording: Recording, groups: list[list[int]], pairs: Candidates, gain: NDArray[np.float64]
) -> NDArray[np.int64]:
    """Identities: groups hold together, and the one that leaves last leads to the one that enters first.

    ``gain [E]`` are the log-odds of the candidates; those within a group, and those from any but its last to leave or
    to any but its first to enter, say nothing.
    """
    own = {n: members for members in groups for n in members}
    leaves = {n: max(members, key=lambda m: recording.tracklets[m].time_out) for n, members in own.items()}
    asked = np.array(
        [
            own[a] is not own[b] and a == leaves[a] and b == own[b][0]
            for a, b in zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)
        ],
        dtype=bool,
    )
    identities = Identities(recording)
    for members in groups:
        for a, b in pairwise(members):
            identities.join(a, b)
    return associate(recording, pairs.source[asked], pairs.target[asked], gain[asked], identities)
