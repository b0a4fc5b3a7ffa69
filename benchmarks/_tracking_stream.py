"""Online tracking: two hundred tracklets a second by the clock on the wall, and what a latency costs in scores."""

from __future__ import annotations

import gc
import time
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from examples.mtmc.matching.weights import load_matcher
from examples.mtmc.network.learn import learn_links
from examples.mtmc.online.compare import chunks_of, play
from examples.mtmc.online.decisions import follow_aliases
from examples.mtmc.online.tracker import OnlineTracker
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import Protocol, evaluate
from examples.mtmc.simulator.city import city
from examples.mtmc.simulator.simulate import simulate

RATE, LATENCY = 200, 5.0
WARM_UP, PLAYED = 35, 15  # seconds of the stream as fast as it goes, until the windows are full; then by the clock
LATENCIES = (0.0, 1.0, 5.0, 30.0, np.inf)
GRAIN = 0.1  # seconds of the stream that arrive together


def play_by_the_clock(
    cameras: int, rate: int = RATE, latency: float = LATENCY, warm_up: int = WARM_UP, played: int = PLAYED
) -> dict[str, Any]:
    """Play a city of so many cameras; decisions beyond their latency in milliseconds."""
    torch.set_num_threads(1)
    seconds = warm_up + played + 1
    recording = city(cameras, rate * seconds, seconds)
    matcher, tau = load_matcher()
    tracker = OnlineTracker(recording.network, matcher, tau, latency)
    (whole,) = chunks_of(recording, 10**9)
    cuts = np.searchsorted(whole.time, np.arange(0, warm_up + played + GRAIN, GRAIN))
    chunks = [whole.take(slice(a, b)) for a, b in pairwise(cuts.tolist())]
    warm = round(warm_up / GRAIN)
    for chunk in chunks[:warm]:
        if len(chunk):
            tracker.push(chunk)
    tracker.decided()
    gc.freeze()  # as ``track --online`` does; the rows to come are held by this benchmark, not by the tracker
    began = time.perf_counter()
    waited, working, tracklets = [], 0.0, 0
    for number, chunk in enumerate(chunks[warm:], 1):
        # A chunk is there once its last row could have been taken.
        pause = began + number * GRAIN - time.perf_counter()
        if pause > 0:
            time.sleep(pause)
        start = time.perf_counter()
        tracker.push(chunk)
        tracker.closed()
        now = time.perf_counter()
        working += now - start
        for decision in tracker.decided():
            if decision.kind == "identity" and decision.time_in >= warm_up:
                waited.append(now - began - (decision.time_in - warm_up) - latency)
                tracklets += 1
    gc.unfreeze()
    beyond = np.array(waited) * 1e3
    return {
        "what": f"online, {cameras} cameras, {rate} tracklets a second, latency {latency:g} s",
        "tracklets": tracklets,
        "decided_beyond_latency_ms_p50": float(np.quantile(beyond, 0.5)),
        "decided_beyond_latency_ms_p99": float(np.quantile(beyond, 0.99)),
        "decided_beyond_latency_ms_max": float(beyond.max()),
        "cores_busy": working / played,
    }


def judged(minutes: int) -> list[dict[str, Any]]:
    """IDF1 and HOTA of a simulated town by latency, with aliases left out and followed."""
    training = simulate(0, 2.0 * minutes, 8.0, day=0).recording
    test = simulate(0, minutes, 8.0, start=60.0 * (2 * minutes + 20), day=1, first_id=100_001).recording
    recording = Recording(learn_links(training), test.tracklets, test.truth)
    matcher, tau = load_matcher()
    rows = []
    for latency in LATENCIES:
        identity, said = play(recording, OnlineTracker(recording.network, matcher, tau, latency))
        score = evaluate(recording, identity, Protocol())
        followed = evaluate(recording, follow_aliases(identity, said), Protocol())
        rows.append(
            {
                "what": "offline" if latency == np.inf else f"online, latency {latency:g} s",
                "tracklets": len(recording.tracklets),
                "idf1": score["idf1"],
                "hota": score["hota"],
                "idf1_aliases_followed": followed["idf1"],
            }
        )
    return rows
