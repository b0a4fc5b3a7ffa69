"""Looks made comparable: less the mean of their camera, and of unit length."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Recording


def looks_of(recording: Recording) -> NDArray[np.float64]:
    """The looks of all tracklets ``[N, D]``; zeros ``[N, 1]`` where the recording has no embeddings.

    Every camera shifts all colours its own way; the mean over its many tracklets is that shift.
    """
    if not recording.has_embeddings:
        return np.zeros((len(recording.tracklets), 1))
    looks = np.stack([t.embedding for t in recording.tracklets if t.embedding is not None])
    camera = np.array([recording.network.index(t.camera) for t in recording.tracklets])
    for number in np.unique(camera):
        looks[camera == number] -= looks[camera == number].mean(0)
    return np.asarray(looks / np.maximum(np.linalg.norm(looks, axis=1, keepdims=True), 1e-12))
