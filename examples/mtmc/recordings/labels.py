"""Which identity a tracklet shows, where true boxes are known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.recordings.tracklets import Track, Tracklet

AT_LEAST = 0.5  # intersection over union


def label(tracklets: list[Tracklet], truth: list[Track]) -> list[Tracklet]:
    """Each tracklet with the identity that at least half of its boxes show (the true box that each overlaps most, at
    an intersection over union of 0.5 or more), or None."""
    by_camera: dict[str, list[Track]] = {}
    for track in truth:
        by_camera.setdefault(track.camera, []).append(track)
    at = {camera: _by_frame(tracks) for camera, tracks in by_camera.items()}
    return [replace(t, truth=_shown(t, *at[t.camera]) if t.camera in at else None) for t in tracklets]


def _by_frame(tracks: list[Track]) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.int64]]:
    frames = np.concatenate([t.frames for t in tracks])
    ids = np.concatenate([np.full(len(t.frames), t.id) for t in tracks])
    order = np.argsort(frames, kind="stable")
    return frames[order], np.concatenate([t.boxes for t in tracks])[order], ids[order]


def _shown(
    tracklet: Tracklet, frames: NDArray[np.int64], boxes: NDArray[np.float64], ids: NDArray[np.int64]
) -> int | None:
    first = np.searchsorted(frames, tracklet.frames, "left")
    count = np.searchsorted(frames, tracklet.frames, "right") - first
    box = np.repeat(np.arange(len(count)), count)  # every pair of a box and a true one of its frame
    true = np.arange(count.sum()) - np.repeat(np.cumsum(count) - count, count) + np.repeat(first, count)
    overlap = _iou(tracklet.boxes[box], boxes[true])
    good = overlap >= AT_LEAST
    box, true, overlap = box[good], true[good], overlap[good]
    order = np.lexsort((-overlap, box))
    _, best = np.unique(box[order], return_index=True)
    who, votes = np.unique(ids[true[order][best]], return_counts=True)
    if not len(who) or votes.max() * 2 < len(tracklet.frames):
        return None
    return int(who[votes.argmax()])


def _iou(a: NDArray[np.float64], b: NDArray[np.float64]) -> NDArray[np.float64]:
    """Intersection over union, box by box."""
    low, high = np.maximum(a[:, :2], b[:, :2]), np.minimum(a[:, :2] + a[:, 2:], b[:, :2] + b[:, 2:])
    both = np.prod(np.maximum(high - low, 0), axis=1)
    return np.asarray(both / (a[:, 2] * a[:, 3] + b[:, 2] * b[:, 3] - both), dtype=np.float64)
