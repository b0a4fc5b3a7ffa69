"""Track a user's own files: read, judge, associate, and score where the truth is there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from examples.mtmc.answers import write_answers
from examples.mtmc.atomic import results
from examples.mtmc.errors import InputError
from examples.mtmc.judging import Judged, judge
from examples.mtmc.matching.methods import MEANING, Scene, scene
from examples.mtmc.network.learn import cross_fitted_prior, learn_links
from examples.mtmc.network.links_file import load_network
from examples.mtmc.page.page import View, delays_by_link, true_identities, write_page
from examples.mtmc.page.table import Section, Table
from examples.mtmc.recordings.cleaning import KEPT, LOST, Log
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import Protocol, evaluate
from examples.mtmc.scoring.per_link import LinkScore, per_link
from examples.mtmc.scoring.summary import Scores, mean_and_spread, page_table, screen_table
from examples.mtmc.thinning import thinned

ORDER = ("none", "fifo", "hungarian", "prior", "gatv2_bias", "oracle")


@dataclass(frozen=True)
class Options:
    """How to track: what is learned from true identities, and how the result is scored."""

    learn_until: float | None = None  # seconds; what starts before is for learning, what starts later is scored
    cross_fit: bool = False  # learn links from all identities but those of the pair that is judged
    least: int = 1
    miss: float = 0.0  # a share of boxes taken out at random before tracking
    protocol: Protocol = field(default_factory=Protocol)
    weights: Path | None = None  # of the matcher; None: those that come with the example
    tolerant: bool = False  # leave faulty rows out and count them, instead of stopping at the first


@dataclass(frozen=True, eq=False)
class Scored:
    """By the asked protocol and by the other of AI City's two, and link by link."""

    scores: Scores
    other: Scores
    links: list[LinkScore]


def run_track(data: Path, format: str, links: Path, out: Path, options: Options, console: Console) -> dict[str, Any]:
    """Track a folder and return what ``summary.json`` holds."""
    with console.status("reading"):
        recording = _read(data, format, links, options)
    with console.status("scoring and associating"):
        given, notes, training = _prepare(recording, options)
        judged = judge(given, training, options.weights)
    notes += judged.notes
    scored = None
    if recording.truth:
        with console.status("evaluating"):
            scored = _scored(given, judged, options)
    with results(out) as draft, console.status("drawing and writing"):
        summary = _write(draft, given, judged, scored, notes, options)
    for note in notes:
        console.print(f"Note: {note}", soft_wrap=True)
    if scored:
        _print(scored, judged, options, f"{len(_counted(given, options))} tracklets of {data}", console)
    if summary["left_out"]:
        console.print(f"Left out: {summary['left_out']} rows or tracklets; see dropped.log", soft_wrap=True)
    if summary["put_right"]:
        console.print(f"Put right: {summary['put_right']} rows, clocks or ids; see dropped.log", soft_wrap=True)
    console.print(
        f"{summary['tracklets']} tracklets, {summary['identities']} identities. Report: {out / 'report.html'}",
        soft_wrap=True,
    )
    return summary


def _read(data: Path, format: str, links: Path, options: Options) -> Recording:
    log = Log(strict=not options.tolerant)
    recording = read(data, format, load_network(links), options.least, log)
    if options.miss:
        recording = thinned(recording, options.miss)
    if not recording.tracklets:
        raise InputError(data, None, f"no tracklet of at least {options.least} boxes{log.first()}", "at least one")
    known = any(t.truth is not None for t in recording.tracklets)
    if (options.cross_fit or options.learn_until is not None) and not known:
        raise InputError(data, None, "no true identities", "ground truth to learn from (--learn-until, --cross-fit)")
    return recording


def _prepare(recording: Recording, options: Options) -> tuple[Scene, list[str], Scene | None]:
    """The scene, what to say of it, and the scene to set the threshold by, where some of it is for learning."""
    notes, network, training = [], recording.network, None
    if options.learn_until is not None:
        early = recording.between(-np.inf, options.learn_until)
        if not any(t.truth is not None for t in early.tracklets):
            raise InputError(
                "--learn-until", None, f"{options.learn_until:g} s", "a time after the first true tracklet"
            )
        if len(early.tracklets) == len(recording.tracklets):
            raise InputError("--learn-until", None, f"{options.learn_until:g} s", "a time before the last tracklet")
        network = learn_links(early)
        training = scene(early, network)
        notes.append(f"links learned from what starts before {options.learn_until:g} s; what starts later is scored")
    given = scene(recording, network)
    if options.cross_fit:
        given = scene(recording, network, cross_fitted_prior(recording, given.pairs))
        notes.append("links learned by cross-fitting: no pair is judged by passages of its own identities")
    return given, notes, training


def _counted(given: Scene, options: Options) -> list[int]:
    """The tracklets that are scored."""
    start = -np.inf if options.learn_until is None else options.learn_until
    return [n for n, t in enumerate(given.recording.tracklets) if t.time_in >= start]


def _scored(given: Scene, judged: Judged, options: Options) -> Scored:
    recording, counted = given.recording, _counted(given, options)
    part = Recording(recording.network, [recording.tracklets[n] for n in counted], recording.truth)
    if options.learn_until is not None:
        part.truth = part.between(options.learn_until, np.inf).truth
    rows = judged.others | {judged.row: judged.identity}

    def by(protocol: Protocol) -> Scores:
        return mean_and_spread([{r: evaluate(part, rows[r][counted], protocol) for r in ORDER if r in rows}])

    return Scored(
        by(options.protocol), by(_other(options.protocol)), per_link(recording, judged.identity, scored=counted)
    )


def _other(protocol: Protocol) -> Protocol:
    return replace(protocol, single_camera=not protocol.single_camera)


def _print(scored: Scored, judged: Judged, options: Options, title: str, console: Console) -> None:
    console.print(screen_table(scored.scores, 1, title, judged.row))
    console.print(f"Protocol: {options.protocol}", soft_wrap=True)
    other = scored.other[judged.row]
    kept = "dropped from the predictions" if options.protocol.single_camera else "kept"
    idf1, hota = other["idf1"][0], other["hota"][0]
    console.print(
        f"With identities of one camera {kept}, {judged.row} has IDF1 {idf1:.3f}, HOTA {hota:.3f}", soft_wrap=True
    )


def _write(
    draft: Path, given: Scene, judged: Judged, scored: Scored | None, notes: list[str], options: Options
) -> dict[str, Any]:
    recording, identity = given.recording, judged.identity
    write_answers(draft, recording, given.network, identity, given.pairs, judged.reasons, judged.probability)
    count = len(set(identity.tolist()))
    head = f"{len(recording.tracklets)} tracklets, {count} identities, by {MEANING[judged.row]}."
    view = View(
        title="Multi-camera tracking",
        recording=recording,
        identity=identity,
        network=given.network,
        pairs=given.pairs,
        gain=judged.reasons.gain,
        reasons=judged.reasons,
        true=true_identities(recording),
        scores=_page_tables(scored, judged.row, options) if scored else [],
        notes=[head, *notes],
        delays=delays_by_link(recording, given.pairs, given.true if given.true.any() else judged.joined),
        delays_of="true passages" if given.true.any() else "passages that were joined",
        reliability=judged.reliability,
        more=[_as_read(recording)],
    )
    write_page(draft / "report.html", view)
    summary: dict[str, Any] = {
        "tracklets": len(recording.tracklets),
        "identities": count,
        "method": judged.row,
        "notes": notes,
        "left_out": sum(drop.count for drop in recording.dropped if drop.why not in (*KEPT, LOST)),
        "put_right": sum(drop.count for drop in recording.dropped if drop.why in KEPT),
    }
    if scored:
        names = ("asked", "other")
        protocols = zip(names, (options.protocol, _other(options.protocol)), strict=True)
        summary["protocol"] = str(options.protocol)
        summary["rows"] = scored.scores
        summary["protocols"] = {
            name: {"protocol": str(protocol), "rows": scored.scores if name == "asked" else scored.other}
            for name, protocol in protocols
        }
        summary["links"] = [
            {
                "from": link.source,
                "to": link.target,
                "true": link.true,
                "predicted": link.predicted,
                "precision": link.precision,
                "recall": link.recall,
            }
            for link in scored.links
        ]
    (draft / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return summary


def _page_tables(scored: Scored, row: str, options: Options) -> list[Table]:
    def share(value: float | None) -> str:
        return "–" if value is None else f"{value:.3f}"

    links = [
        [f"{x.source} → {x.target}", str(x.true), str(x.predicted), share(x.precision), share(x.recall)]
        for x in scored.links
    ]
    return [
        page_table(scored.scores, 1, str(options.protocol), row),
        page_table(scored.other, 1, str(_other(options.protocol)), row),
        Table("link by link", ["from → to", "true", "predicted", "precision", "recall"], links),
    ]


def _as_read(recording: Recording) -> Section:
    cameras = [
        [name, str(sum(t.camera == name for t in recording.tracklets)), f"{camera.fps:g}"]
        for name, camera in recording.network.cameras.items()
    ]
    why: dict[str, int] = {}
    for drop in recording.dropped:
        why[drop.why] = why.get(drop.why, 0) + drop.count
    tables = [Table("as read", ["camera", "tracklets", "fps"], cameras)]
    if why:
        tables.append(Table("left out (dropped.log)", ["why", "count"], [[x, str(n)] for x, n in sorted(why.items())]))
    return Section("What was read", tables=tables)
