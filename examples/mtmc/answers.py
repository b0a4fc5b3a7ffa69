"""What a tracker answers, as files: who is who, which pairs were joined or not, and why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.matching.candidates import Candidates
from examples.mtmc.matching.reasons import Reasons
from examples.mtmc.network.links_file import dump_network
from examples.mtmc.network.network import Network
from examples.mtmc.recordings.table_writers import csv_text
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.recordings.writers import dropped_text, write_tracks

HOPELESS = -5.0  # log-odds under which a pair that was not joined is left out of matches.csv
Table = dict[str, list[Any]]


def write_answers(
    draft: Path,
    recording: Recording,
    network: Network,
    identity: NDArray[np.int64],
    pairs: Candidates,
    reasons: Reasons,
    probability: NDArray[np.float64],
) -> None:
    """Write ``tracks/CAMERA.txt``, ``identities`` and ``matches`` as CSV (identities as Parquet too), ``links.yaml`` as
    it was believed, and ``dropped.log``."""
    write_tracks(draft / "tracks", recording, identity)
    table = identities_table(recording, identity, pairs, reasons, probability)
    (draft / "identities.csv").write_text(csv_text(table), encoding="utf-8")
    write_parquet(draft / "identities.parquet", table)
    matches = matches_table(recording, identity, pairs, reasons, probability)
    (draft / "matches.csv").write_text(csv_text(matches), encoding="utf-8")
    (draft / "links.yaml").write_text(dump_network(network), encoding="utf-8")
    (draft / "dropped.log").write_text(dropped_text(recording.dropped), encoding="utf-8")


def identities_table(
    recording: Recording,
    identity: NDArray[np.int64],
    pairs: Candidates,
    reasons: Reasons,
    probability: NDArray[np.float64],
) -> Table:
    """One row a tracklet, in order of identities and time: where, when, after which tracklet, and why.

    ``score`` and the reasons are log-odds against nobody less the threshold; the reasons add up to the score.
    """
    tracklets, before = recording.tracklets, predecessors(identity)
    number = {pair: n for n, pair in enumerate(zip(pairs.source.tolist(), pairs.target.tolist(), strict=True))}
    order = sorted(range(len(tracklets)), key=lambda n: (identity[n], n))
    edges = [number.get((int(before[n]), n)) for n in order]
    earlier = [tracklets[before[n]] if before[n] >= 0 else None for n in order]
    table: Table = {
        "identity": [int(identity[n]) + 1 for n in order],
        "camera": [tracklets[n].camera for n in order],
        "tracklet": [tracklets[n].id for n in order],
        "frame_in": [int(tracklets[n].frames[0]) for n in order],
        "frame_out": [int(tracklets[n].frames[-1]) for n in order],
        "time_in": [round(tracklets[n].time_in, 3) for n in order],
        "time_out": [round(tracklets[n].time_out, 3) for n in order],
        "boxes": [len(tracklets[n].frames) for n in order],
        "after_camera": [t.camera if t else None for t in earlier],
        "after_tracklet": [t.id if t else None for t in earlier],
    }
    table |= {name: [None if e is None else column[e] for e in edges] for name, column in _why(reasons, probability)}
    if any(t.truth is not None for t in tracklets):
        table["truth"] = [tracklets[n].truth for n in order]
    return table


def matches_table(
    recording: Recording,
    identity: NDArray[np.int64],
    pairs: Candidates,
    reasons: Reasons,
    probability: NDArray[np.float64],
) -> Table:
    """One row a pair that was joined, or that was not hopeless: its delay, its score, and the reasons."""
    tracklets, before = recording.tracklets, predecessors(identity)
    joined = before[pairs.target] == pairs.source
    shown = np.flatnonzero(joined | (reasons.gain > HOPELESS)).tolist()
    first, second = ([tracklets[end[e]] for e in shown] for end in (pairs.source, pairs.target))
    table: Table = {
        "from_camera": [t.camera for t in first],
        "from_tracklet": [t.id for t in first],
        "to_camera": [t.camera for t in second],
        "to_tracklet": [t.id for t in second],
        "delay": [round(float(pairs.delay[e]), 3) for e in shown],
        "joined": [int(joined[e]) for e in shown],
    }
    table |= {name: [column[e] for e in shown] for name, column in _why(reasons, probability)}
    if any(t.truth is not None for t in tracklets):
        table["true"] = [int(a.truth is not None and a.truth == b.truth) for a, b in zip(first, second, strict=True)]
    return table


def predecessors(identity: NDArray[np.int64]) -> NDArray[np.int64]:
    """For every tracklet the one before it in its identity, or −1."""
    before, last = np.full(len(identity), -1, dtype=np.int64), dict[int, int]()
    for n, who in enumerate(identity.tolist()):
        before[n] = last.get(who, -1)
        last[who] = n
    return before


def _why(reasons: Reasons, probability: NDArray[np.float64]) -> list[tuple[str, list[float]]]:
    columns = {"score": reasons.gain, "probability": probability, **reasons.parts()}
    return [(name, np.round(values, 4).tolist()) for name, values in columns.items()]


def write_parquet(path: Path, table: Table) -> None:
    """Write a table as Parquet; each column has the type of what is in it."""
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({name: pa.array(cells) for name, cells in table.items()}), path)
