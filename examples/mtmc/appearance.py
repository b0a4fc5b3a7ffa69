"""Looks made comparable: less the mean of their camera, of unit length, and in few dimensions of any embedding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.tracklets import Recording

DIMS = 32  # what the matcher sees of an embedding, whatever its own length


@dataclass(frozen=True, eq=False)
class Appearance:
    """``centred [N, D]`` of unit length, and ``reduced [N, DIMS]``: its principal axes, of mean squared length DIMS."""

    centred: NDArray[np.float64]
    reduced: NDArray[np.float64]


def appearance_of(recording: Recording) -> Appearance:
    """The looks of all tracklets; zeros where the recording has no embeddings."""
    count = len(recording.tracklets)
    if not recording.has_embeddings:
        return Appearance(np.zeros((count, DIMS)), np.zeros((count, DIMS)))
    looks = np.stack([t.embedding for t in recording.tracklets if t.embedding is not None])
    camera = np.array([recording.network.index(t.camera) for t in recording.tracklets])
    for number in np.unique(camera):
        looks[camera == number] -= looks[camera == number].mean(0)
    looks /= np.maximum(np.linalg.norm(looks, axis=1, keepdims=True), 1e-12)
    _, _, axes = np.linalg.svd(looks, full_matrices=False)
    axes = axes[:DIMS]
    axes = axes * np.sign(axes[np.arange(len(axes)), np.abs(axes).argmax(1)])[:, None]
    reduced = np.zeros((count, DIMS))
    reduced[:, : len(axes)] = looks @ axes.T
    size = np.sqrt((reduced**2).sum(1).mean())
    return Appearance(looks, reduced * np.sqrt(DIMS) / max(float(size), 1e-12))
