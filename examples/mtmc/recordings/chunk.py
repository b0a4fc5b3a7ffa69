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
    """Chunks one after another; where one of them has no embeddings or truth and another has, it is not known."""
    if len(parts) == 1:
        return parts[0]
    columns: dict[str, Any] = {}
    for name in (f.name for f in fields(Chunk)):
        given = [getattr(part, name) for part in parts]
        model = next((column for column in given if column is not None), None)
        if model is not None:
            unknown = np.nan if model.dtype.kind == "f" else -1
            shapes = [(len(part), *model.shape[1:]) for part in parts]
            given = [np.full(n, unknown, model.dtype) if x is None else x for n, x in zip(shapes, given, strict=True)]
            columns[name] = np.concatenate(given)
    return Chunk(**columns)
