"""Chunks gathered into tracks: the one place where rows of many ids become arrays of each."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.tracklets import Track, Tracklet

Key = tuple[int, int]


@dataclass(eq=False)
class _Mean:
    """The mean of an id's embeddings: of equal ones exactly their value."""

    first: NDArray[np.float64]
    beyond: NDArray[np.float64]  # the sum of what the others differ by
    count: int


class Gathering:
    """Takes chunks in any order of ids; within an id frames ascend. Holds frames and boxes, 56 to 72 bytes a row."""

    def __init__(self, network: Network) -> None:
        self.network, self.cameras = network, list(network.cameras)
        self.parts: list[tuple[NDArray[np.int64], ...]] = []
        self.boxes: list[NDArray[np.float64]] = []
        self.worlds: list[NDArray[np.float64] | None] = []
        self.truths: list[NDArray[np.int64] | None] = []
        self.looks: dict[Key, _Mean] = {}

    def add(self, chunk: Chunk) -> None:
        """More rows."""
        self.parts.append((chunk.camera, chunk.id, chunk.frame))
        self.boxes.append(chunk.box)
        self.worlds.append(None if np.isnan(chunk.world).all() else chunk.world)
        self.truths.append(chunk.truth)
        if chunk.embedding is not None:
            self._look(chunk, chunk.embedding)

    def _look(self, chunk: Chunk, embedding: NDArray[np.floating]) -> None:
        good = ~np.isnan(embedding).any(1)
        order = np.flatnonzero(good)[np.lexsort((chunk.id[good], chunk.camera[good]))]
        for own in _groups(chunk.camera[order], chunk.id[order]):
            rows = order[own]
            key = (int(chunk.camera[rows[0]]), int(chunk.id[rows[0]]))
            values = embedding[rows].astype(np.float64)
            mean = self.looks.setdefault(key, _Mean(values[0], np.zeros_like(values[0]), 0))
            if len(mean.first) == values.shape[1]:
                mean.beyond += (values - mean.first).sum(0)
                mean.count += len(values)

    def _tracks(self) -> Iterator[tuple[Key, NDArray[np.int64], NDArray[np.float64], NDArray[np.float64] | None, int]]:
        if not self.parts:
            return
        camera, id, frame = (np.concatenate([part[k] for part in self.parts]) for k in range(3))
        order = np.lexsort((np.arange(len(id)), id, camera))
        camera, id, frame = camera[order], id[order], frame[order]
        boxes = np.concatenate(self.boxes)[order]
        world, truth = self._world(order), self._truth(order)
        for own in _groups(camera, id):
            key = (int(camera[own.start]), int(id[own.start]))
            place = None if world is None or np.isnan(world[own]).all() else world[own]
            who = -1
            if truth is not None:
                values, votes = np.unique(truth[own], return_counts=True)
                who = int(values[votes.argmax()])
            yield key, frame[own], boxes[own], place, who

    def _world(self, order: NDArray[np.int64]) -> NDArray[np.float64] | None:
        if all(world is None for world in self.worlds):
            return None
        parts = [
            np.full((len(box), 2), np.nan) if world is None else world
            for box, world in zip(self.boxes, self.worlds, strict=True)
        ]
        return np.asarray(np.concatenate(parts)[order])

    def _truth(self, order: NDArray[np.int64]) -> NDArray[np.int64] | None:
        parts = [truth for truth in self.truths if truth is not None]
        return np.concatenate(parts)[order] if len(parts) == len(self.truths) else None

    def tracks(self) -> list[Track]:
        """Every id as a track."""
        return [
            Track(self.cameras[key[0]], key[1], frames, boxes, world) for key, frames, boxes, world, _ in self._tracks()
        ]

    def tracklets(self) -> list[Tracklet]:
        """Every id as a tracklet, with its times, zones and mean embedding."""
        result = []
        for key, frames, boxes, world, who in self._tracks():
            camera = self.cameras[key[0]]
            first, last = self.network.cameras[camera].seconds(frames[[0, -1]]).tolist()
            mean = self.looks.get(key)
            look = None if mean is None else mean.first + mean.beyond / mean.count
            tracklet = Tracklet(camera, key[1], frames, boxes, world, first, last, look, who if who >= 0 else None)
            result.append(tracklet.in_zones(self.network))
        return result


def _groups(camera: NDArray[np.int64], id: NDArray[np.int64]) -> list[slice]:
    """Where runs of equal (camera, id) lie."""
    if not len(id):
        return []
    cuts = np.flatnonzero((np.diff(camera) != 0) | (np.diff(id) != 0)) + 1
    bounds = [0, *cuts.tolist(), len(id)]
    return [slice(a, b) for a, b in pairwise(bounds)]
