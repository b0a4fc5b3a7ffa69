"""Links files made: learned from labelled or confident matches, or converted from another tool's."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from examples.mtmc.errors import InputError
from examples.mtmc.matching.candidates import candidates
from examples.mtmc.network.discover import discovered
from examples.mtmc.network.layout import read_layout
from examples.mtmc.network.learn import learn_links
from examples.mtmc.network.learn_clocks import clock_differences, retimed, with_clocks
from examples.mtmc.network.links_file import load_network, write_network
from examples.mtmc.network.network import Link, Network
from examples.mtmc.network.travel import TravelTime
from examples.mtmc.recordings.cleaning import Log
from examples.mtmc.recordings.matches import labelled_by
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Recording


@dataclass(frozen=True)
class Source:
    """What is learned from: a recording, and where its own truth is not meant, a table of matches."""

    data: Path
    format: str
    matches: Path | None = None
    least_score: float | None = None
    until: float | None = None  # seconds; what starts later is not looked at
    tolerant: bool = False


def run_learn(source: Source, links: Path, out: Path, discover: bool, clocks: bool, console: Console) -> dict[str, Any]:
    """Learn links and write them; links that the file has not are found where it has none, or with ``discover``;
    ``clocks``: clock offsets too, where views overlap and places are known."""
    with console.status("reading") as status:
        network = load_network(links)
        log = Log(strict=not source.tolerant)
        recording = read(
            source.data,
            source.format,
            network,
            log=log,
            progress=lambda rows, share: status.update(f"reading: {rows} rows" + (f", {share:.0%}" if share else "")),
        )
    complete = True
    if source.least_score is not None and source.matches is None:
        raise InputError("--least-score", None, "no --matches", "matches that have scores")
    if source.until is not None:
        recording = recording.between(-np.inf, source.until)
        if not recording.tracklets:
            raise InputError("--until", None, f"{source.until:g} s", "a time after the first tracklet")
    if source.matches is not None:
        recording, complete = labelled_by(source.matches, recording, source.least_score, log)
    if not any(t.truth is not None for t in recording.tracklets):
        raise InputError(source.data, None, "no true identities", "ground truth, or matches (--matches)")
    with console.status("learning"):
        differences = clock_differences(recording) if clocks else []
        if differences:
            network = with_clocks(network, differences)
            recording = retimed(recording, network)
        before = {(x.source, x.target) for x in network.links}
        if discover or not network.links:
            network = discovered(recording)
            recording = Recording(network, recording.tracklets)
        pairs = candidates(recording)
        learned = learn_links(recording, pairs=pairs, counts=complete)
        passages = _passages(recording, learned)
    write_network(out, learned)
    rows = [_row(link, passages[n], (link.source, link.target) not in before) for n, link in enumerate(learned.links)]
    console.print(_table(rows, f"Links learned from {len(recording.tracklets)} tracklets"))
    if clocks and not differences:
        console.print("Note: no two views share enough walkers with places: clocks as given")
    for d in differences:
        text = (
            f"clock of {d.later} ahead of {d.camera} by {d.seconds:+.2f} ± {d.error:.2f} s ({d.pairs} tracklet pairs)"
        )
        console.print(f"Note: {text}", soft_wrap=True)
    if not complete:
        console.print("Note: matches with scores say who goes on, not who leaves: priors, starts and ends as given")
    for line in log.lines():
        console.print(line, soft_wrap=True)
    console.print(f"Links: {out}", soft_wrap=True)
    return {
        "links_file": str(out),
        "tracklets": len(recording.tracklets),
        "links": rows,
        "clocks": [asdict(d) for d in differences],
        "log": log.as_dict(),
    }


def _passages(recording: Recording, network: Network) -> list[int]:
    """How often an identity's tracklet and its next one took each link."""
    number = {(link.source, link.target): n for n, link in enumerate(network.links)}
    count = [0] * len(network.links)
    last: dict[int, str] = {}
    for tracklet in recording.tracklets:
        if tracklet.truth is not None:
            n = number.get((last.get(tracklet.truth, ""), tracklet.camera))
            if n is not None:
                count[n] += 1
            last[tracklet.truth] = tracklet.camera
    return count


def _row(link: Link, passages: int, new: bool) -> dict[str, Any]:
    travel: TravelTime = link.density
    best = sorted((share, leave, enter) for leave, enter, share in link.zones)[-1:]
    return {
        "from": link.source,
        "to": link.target,
        "passages": passages,
        "prior": link.prior,
        "window": list(link.window),
        "kind": travel.kind,
        "components": [list(c) for c in travel.components],
        "zones": [{"leave": leave, "enter": enter, "share": share} for share, leave, enter in best],
        "new": new,
    }


def _table(rows: list[dict[str, Any]], title: str) -> Table:
    table = Table(title=title)
    for name in ("from", "to", "passages", "prior", "window, s", "travel: share × centre ± spread", "most by zones"):
        table.add_column(name, justify="right" if name in ("passages", "prior") else "left", overflow="fold")
    for row in rows:
        unit = "" if row["kind"] == "lognormal" else " s"
        parts = [f"{w:.2f} × {c:.3g} s ± {s:.2g}{unit}" for w, c, s in row["components"]]
        zones = [f"{z['leave'] or '-'} to {z['enter'] or '-'}: {z['share']:.2f}" for z in row["zones"]]
        window = "{:g} to {:g}".format(*row["window"]) + (" (new)" if row["new"] else "")
        cells = [row["from"], row["to"], str(row["passages"]), f"{row['prior']:.3f}"]
        table.add_row(*cells, window, "; ".join(parts), "; ".join(zones))
    return table


def run_convert(layout: Path, out: Path, names: list[str] | None, console: Console) -> dict[str, Any]:
    """Convert a camera layout text to a links file."""
    network, notes = read_layout(layout, names)
    write_network(out, network)
    load_network(out)  # what we wrote is what we read
    table = Table(title=f"Cameras of {layout.name}")
    for name in ("camera", "fps", "clock offset, s", "clock rate", "links out"):
        table.add_column(name, justify="left" if name == "camera" else "right")
    for camera in network.cameras.values():
        count = sum(link.source == camera.name for link in network.links)
        clock = (f"{camera.fps:g}", f"{camera.clock_offset:g}", f"{camera.clock_rate:.4f}")
        table.add_row(camera.name, *clock, str(count))
    console.print(table)
    for note in notes:
        console.print(f"Note: {note}", soft_wrap=True)
    console.print(f"Links: {out}", soft_wrap=True)
    return {"links_file": str(out), "cameras": len(network.cameras), "links": len(network.links), "notes": notes}
