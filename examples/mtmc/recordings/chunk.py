"""A batch of detections as arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True, eq=False)
class Chunk:
    """n detections, in the order in which their rows came, but for those that the cleaning put in their place.

    ``camera [n]`` is the number of the camera in the network (``list(network.cameras)[k]``), ``id [n]`` the tracklet's
    number in its camera, ``frame [n]`` the camera's frame, ``time [n]`` its seconds on the common clock, ``box [n, 4]``
    left, top, width, height in pixels, ``world [n, 2]`` a place in metres (NaN: not known), ``confidence [n]`` (1 where
    the format has none), ``embedding [n, D]`` and ``truth [n]`` (−1: not known) or None where there are none,
    ``line [n]`` the line of the file and ``row [n]`` the number of the row, not counting blank lines, from 0.
    """

    camera: NDArray[np.int64]
    id: NDArray[np.int64]
    frame: NDArray[np.int64]
    time: NDArray[np.float64]
    box: NDArray[np.float64]
    world: NDArray[np.float64]
    confidence: NDArray[np.float64]
    line: NDArray[np.int64]
    row: NDArray[np.int64]
    embedding: NDArray[np.floating] | None = None
    truth: NDArray[np.int64] | None = None

    def __len__(self) -> int:
        return len(self.id)

    def take(self, index: NDArray[np.int64] | NDArray[np.bool_] | slice) -> Chunk:
        """The rows that an index names."""
        columns: dict[str, Any] = {}
        for name in (f.name for f in fields(self)):
            column = getattr(self, name)
            columns[name] = None if column is None else column[index]
        return Chunk(**columns)


def joined(parts: Sequence[Chunk]) -> Chunk:
    """Chunks one after another; a column that one of them lacks is lacking."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in (f.name for f in fields(Chunk)):
        given = [getattr(part, name) for part in parts]
        columns[name] = None if any(x is None for x in given) else np.concatenate(given)
    return Chunk(**columns)
