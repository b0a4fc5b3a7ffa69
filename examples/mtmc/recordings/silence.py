"""Cameras that went silent, told from a whole recording."""

from __future__ import annotations

import numpy as np

from examples.mtmc.recordings.tracklets import Recording

EXPECTED = 14.0  # tracklets: none where so many were to come happens once in a million


def silences(recording: Recording) -> list[tuple[str, float, float]]:
    """(camera, from, to) in seconds: stretches without a tracklet in which the other cameras' make 14 likely.

    What is expected of a camera in a stretch is its share of all tracklets, times what the others saw meanwhile: a
    quiet night of the whole network is no silence.
    """
    found = []
    starts = np.array([t.time_in for t in recording.tracklets])
    end_of_all = max((t.time_out for t in recording.tracklets), default=0.0)
    for camera in recording.network.cameras:
        own = np.array([t.camera == camera for t in recording.tracklets], dtype=bool)
        others = np.sort(starts[~own])
        if not own.any() or not len(others):
            continue
        odds = own.sum() / len(others)
        busy_until = float(min(starts.min(), end_of_all))
        spans = [(t.time_in, t.time_out) for t in recording.tracklets if t.camera == camera]
        for start, end in [*spans, (end_of_all, end_of_all)]:
            meanwhile = np.searchsorted(others, start, "left") - np.searchsorted(others, busy_until, "right")
            if odds * meanwhile > EXPECTED:
                found.append((camera, busy_until, start))
            busy_until = max(busy_until, end)
    return found
