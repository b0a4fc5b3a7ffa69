"""Tracking over many cameras: graph, scores and identities as tracklets grow, beside torch-geometric's steps; online.

100 cameras, 20 000 tracklets in an hour, two cores; more or fewer tracklets take more or less time at the same density.
Each size has a process of its own; `process_MB` is all that it ever held, `added_MB` what tracking took above the
recording. The peer is the same matcher with torch-geometric's GATv2Conv and softmax in place of ours; its gains are
asserted to be ours first, in float64 too.
Online: the stream is played by the clock on the wall, and a decision counts from its tracklet's first box; then what
a latency costs, by the scores of ten minutes of the simulated town, links learned on twenty minutes before.
"""

from __future__ import annotations

import argparse
import json
import math
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from benchmarks import _side_by_side as side
from benchmarks._memory import peak_bytes

CAMERAS, HOUR, TRACKLETS = 100, 3600.0, 20_000
SIZES = (5_000, 10_000, 20_000, 40_000)
STREAMED = 1000  # cameras of the stream: 200 tracklets a second are three and a half times the hour's density there
ROUNDS = 3


def main() -> None:
    if len(sys.argv) > 1 and sys.argv[1] == "--one":
        what, size, threads, small = sys.argv[2:]
        print(json.dumps(one(what, int(size), int(threads), small == "small")))
        return
    options = side.arguments(__doc__ or "")
    sizes = [size // 50 for size in SIZES] if options.small else list(SIZES)
    rows = [apart("ours", size, options) for size in sizes]
    main_size = sizes[SIZES.index(TRACKLETS)]
    theirs = apart("peer", main_size, options)
    ours = next(row for row in rows if row["tracklets"] == main_size)
    ratios = {
        "what": f"torch-geometric's steps over ours, {main_size} tracklets",
        "matching_ratio": theirs["matching_s"] / ours["matching_s"],
        "whole_ratio": theirs["whole_s"] / ours["whole_s"],
        "memory_ratio": theirs["added_MB"] / ours["added_MB"],
    }
    online = apart("online", STREAMED, options)
    judged = apart("latencies", 1 if options.small else 10, options)
    side.write(options, "mtmc", [*rows, growth(rows[0], rows[-1]), theirs, ratios, online, *judged["rows"]])


def apart(what: str, size: int, options: argparse.Namespace) -> dict[str, Any]:
    """A row measured in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.mtmc", "--one", what, str(size), str(options.threads)]
    command.append("small" if options.small else "whole")
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    row: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return row


def growth(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """Exponents between the smallest and the largest."""
    steps = math.log(last["tracklets"] / first["tracklets"])
    keys = [key for key in first if key.endswith(("_s", "_MB"))]
    return {"what": "exponent", **{key: math.log(last[key] / first[key]) / steps for key in keys}}


def one(what: str, size: int, threads: int, small: bool) -> dict[str, Any]:
    """Measured here and now."""
    if what == "online":
        from benchmarks._tracking_stream import play_by_the_clock

        return play_by_the_clock(20, 20, 1.0, 5, 3) if small else play_by_the_clock(size)
    torch.set_num_threads(threads)
    if what == "latencies":
        from benchmarks._tracking_stream import judged

        return {"rows": judged(size)}
    return tracked(what, size)


def tracked(what: str, size: int) -> dict[str, Any]:
    """A recording of so many tracklets, from nothing to identities."""
    from benchmarks._tracking_peer import Peer
    from examples.mtmc.matching.associate import associate
    from examples.mtmc.matching.methods import match, scene
    from examples.mtmc.matching.weights import load_matcher
    from examples.mtmc.simulator.city import city

    ours, tau = load_matcher()
    check_equal(ours)
    matcher = ours if what == "ours" else Peer.of(ours)
    small = scene(city(CAMERAS, 200, HOUR * 200 / TRACKLETS))
    with steps_of(what):
        match(matcher, small)  # what is made once is made
    recording = city(CAMERAS, size, HOUR * size / TRACKLETS)

    def whole() -> tuple[list[float], int, int]:
        times = [time.perf_counter()]
        given = scene(recording)
        times.append(time.perf_counter())
        with steps_of(what):
            gain = match(matcher, given).gain.double().numpy() - tau
        times.append(time.perf_counter())
        identity = associate(recording, given.pairs.source, given.pairs.target, gain)
        times.append(time.perf_counter())
        return [b - a for a, b in pairwise(times)], len(given.pairs), len(set(identity.tolist()))

    rounds = [whole() for _ in range(ROUNDS)]
    graph, matching, association = (statistics.median(times) for times in zip(*(r[0] for r in rounds), strict=True))
    return {
        "what": "tracking" if what == "ours" else "the same in torch-geometric's steps",
        "tracklets": size,
        "candidates": rounds[0][1],
        "identities": rounds[0][2],
        "graph_s": graph,
        "matching_s": matching,
        "association_s": association,
        "whole_s": graph + matching + association,
        "added_MB": peak_bytes(whole) / 1e6,
        "process_MB": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
    }


def check_equal(ours: Any) -> None:
    """Correctness first: both give the same gains, more so in float64."""
    import copy

    from benchmarks._tracking_peer import Peer
    from examples.mtmc.matching.methods import match, scene
    from examples.mtmc.simulator.city import city

    given = scene(city(20, 600, 500))
    for dtype, bound in ((torch.float64, 1e-9), (torch.float32, 1e-3)):
        own = copy.deepcopy(ours).to(dtype)
        graph = given.graph.clone().apply(partial(_to, dtype))
        with torch.no_grad():
            gain = own(graph).gain
            with steps_of("peer"):
                theirs = Peer.of(own)(graph).gain
        side.assert_equal_numbers([gain], [theirs], f"gains in {dtype}", relative=bound)
    assert match(ours, given).gain.isfinite().all()


def _to(dtype: torch.dtype, x: Tensor) -> Tensor:
    return x.to(dtype) if x.is_floating_point() else x


@contextmanager
def steps_of(what: str) -> Iterator[None]:
    """While the peer runs, the competition for slots takes torch-geometric's steps too."""
    from benchmarks import _tracking_peer
    from examples.mtmc.matching import company

    ours = company._compete
    if what == "peer":
        company._compete = _tracking_peer.compete
    try:
        yield
    finally:
        company._compete = ours


if __name__ == "__main__":
    main()
