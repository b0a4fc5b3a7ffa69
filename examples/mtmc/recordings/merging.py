"""Streams of several files as one, in order of the common time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np

from examples.mtmc.recordings.chunk import Chunk, joined


def in_time_order(streams: Iterable[Iterator[Chunk]]) -> Iterator[Chunk]:
    """Chunks of all streams merged by time; each stream must be in order of time itself, all but for rows within one
    of its chunks. Holds one chunk of each."""
    iterators = list(streams)
    heads: dict[int, Chunk] = {}
    live = dict.fromkeys(range(len(iterators)))
    while True:
        for k in list(live):
            if k not in heads:
                chunk = next(iterators[k], None)
                if chunk is None:
                    del live[k]
                else:
                    heads[k] = chunk.take(np.argsort(chunk.time, kind="stable"))
        if not heads:
            return
        # Nothing that is still to come of a stream can be earlier than the end of its chunk.
        horizon = min(float(chunk.time[-1]) for chunk in heads.values())
        ready = []
        for k, chunk in list(heads.items()):
            cut = int(np.searchsorted(chunk.time, horizon, "right"))
            if cut:
                ready.append(chunk.take(slice(0, cut)))
            if cut == len(chunk):
                del heads[k]
            else:
                heads[k] = chunk.take(slice(cut, None))
        out = joined(ready)
        yield out.take(np.argsort(out.time, kind="stable"))
