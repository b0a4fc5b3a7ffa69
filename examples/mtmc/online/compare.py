"""What online tracking makes of a recording: its tracklets are played row by row, as if they came just now."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.matcher import Matcher
from examples.mtmc.network.network import Network
from examples.mtmc.online.decisions import Decision, follow_aliases
from examples.mtmc.online.tracker import OnlineTracker
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.tracklets import Recording

ROWS = 65536
STEP = 1.0


def online_identities(
    recording: Recording, network: Network, matcher: Matcher | None, tau: float, latency: float, aliases: bool = False
) -> NDArray[np.int64]:
    """An identity (0, 1, …) for every tracklet, as ``OnlineTracker`` gives them; with ``aliases`` these are followed.

    ``network`` may believe other than the recording's own. A tracklet's look is taken to be known from its first box.
    """
    step = min(STEP, latency / 5)  # coarser than live: nobody waits
    identity, decisions = play(recording, OnlineTracker(network, matcher, tau, latency, step))
    return (follow_aliases(identity, decisions) if aliases else identity) - 1


def play(recording: Recording, tracker: OnlineTracker, rows: int = ROWS) -> tuple[NDArray[np.int64], list[Decision]]:
    """The identity of every tracklet, counted from 1 as the tracker does, and all that it said."""
    decisions: list[Decision] = []
    for chunk in chunks_of(recording, rows):
        tracker.push(chunk)
        decisions += tracker.decided()
    tracker.finish()
    decisions += tracker.decided()
    identity = np.zeros(len(recording.tracklets), dtype=np.int64)
    for decision in decisions:
        if decision.kind == "identity" and decision.part == 0:  # of an id that was long out of sight, its first part
            identity[decision.id] = decision.identity
    return identity, decisions


def chunks_of(recording: Recording, rows: int = ROWS) -> Iterator[Chunk]:
    """The rows of all tracklets in order of time; the id of a tracklet is its number in the recording."""
    tracklets, cameras = recording.tracklets, recording.network.cameras
    if not tracklets:
        return
    number = {name: n for n, name in enumerate(cameras)}
    owner = np.repeat(np.arange(len(tracklets)), [len(t.frames) for t in tracklets])
    frame = np.concatenate([t.frames for t in tracklets])
    time = np.concatenate([cameras[t.camera].seconds(t.frames) for t in tracklets])
    box = np.concatenate([t.boxes for t in tracklets])
    world = np.concatenate([np.full((len(t.frames), 2), np.nan) if t.world is None else t.world for t in tracklets])
    camera = np.array([number[t.camera] for t in tracklets])
    looks = np.stack([t.embedding for t in tracklets if t.embedding is not None]) if recording.has_embeddings else None
    order = np.lexsort((owner, time))
    for start in range(0, len(order), rows):
        own = order[start : start + rows]
        yield Chunk(
            camera[owner[own]],
            owner[own],
            frame[own],
            time[own],
            box[own],
            world[own],
            np.ones(len(own)),
            np.zeros(len(own), dtype=np.int64),
            own,
            None if looks is None else looks[owner[own]],
        )
