"""Boxes taken out at random: what a detector that misses some would have left."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from examples.mtmc.recordings.tracklets import Recording


def thinned(recording: Recording, share: float, seed: int = 0) -> Recording:
    """The recording with a share of its boxes taken out at random; the truth stays whole."""
    rng = np.random.default_rng(seed)
    kept = []
    for t in recording.tracklets:
        keep = rng.random(len(t.frames)) >= share
        if keep.any():
            first, last = recording.network.cameras[t.camera].seconds(t.frames[keep][[0, -1]]).tolist()
            frames, boxes, world = t.frames[keep], t.boxes[keep], None if t.world is None else t.world[keep]
            kept.append(replace(t, frames=frames, boxes=boxes, world=world, time_in=first, time_out=last))
    return Recording(recording.network, kept, recording.truth, recording.dropped)
