"""Track a user's own files: read, judge, associate, and score where the truth is there."""

from __future__ import annotations

import json
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from examples.mtmc.atomic import results
from examples.mtmc.demo import picture_sections, write_answers
from examples.mtmc.errors import InputError
from examples.mtmc.matching.baselines import no_association, oracle
from examples.mtmc.matching.methods import MEANING, Scene, match, method, scene, threshold
from examples.mtmc.matching.weights import load_matcher
from examples.mtmc.network.learn import cross_fitted_prior, learn_links
from examples.mtmc.network.links_file import dump_network, load_network
from examples.mtmc.page import figures
from examples.mtmc.page.report import Section, Table, page
from examples.mtmc.recordings.readers import read
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import Protocol, evaluate
from examples.mtmc.scoring.summary import Scores, mean_and_spread, page_table, screen_table


@dataclass(frozen=True)
class Options:
    """How to track: what is learned from true identities, and how the result is scored."""

    learn_until: float | None = None  # seconds; what starts before is for learning, what starts later is scored
    cross_fit: bool = False  # learn links from all identities but those of the pair that is judged
    least: int = 1
    miss: float = 0.0  # a share of boxes taken out at random before tracking
    protocol: Protocol = field(default_factory=Protocol)


def run_track(data: Path, format: str, links: Path, out: Path, options: Options, console: Console) -> Path:
    """Track a folder and return the path of the report."""
    with console.status("reading"):
        network = load_network(links)
        recording = read(data, format, network, options.least)
    if options.miss:
        recording = thinned(recording, options.miss)
    if not recording.tracklets:
        raise InputError(data, None, f"no tracklet of at least {options.least} boxes", "at least one")
    if (options.cross_fit or options.learn_until is not None) and not any(
        t.truth is not None for t in recording.tracklets
    ):
        raise InputError(data, None, "no true identities", "ground truth to learn from (--learn-until, --cross-fit)")
    with console.status("scoring and associating"):
        answer = _track(recording, options)
    for note in answer.notes:
        console.print(f"Note: {note}", soft_wrap=True)
    scores: Scores = {}
    if recording.truth:
        with console.status("evaluating"):
            scores = mean_and_spread([_scores(answer, options)])
    with results(out) as draft:
        with console.status("drawing and writing"):
            _write(draft, answer, scores, options)
    if scores:
        console.print(screen_table(scores, 1, f"{len(answer.scored)} tracklets of {data}"))
        console.print(f"Protocol: {options.protocol}")
    count = len(set(answer.identity.tolist()))
    console.print(
        f"{len(recording.tracklets)} tracklets, {count} identities. Report: {out / 'report.html'}", soft_wrap=True
    )
    return out / "report.html"


@dataclass(frozen=True, eq=False)
class Answer:
    """Identities of all tracklets, why, and which tracklets are scored."""

    given: Scene
    row: str
    identity: NDArray[np.int64]
    gain: NDArray[np.float64]
    bias: NDArray[np.float64]
    scored: list[int]
    others: dict[str, NDArray[np.int64]]
    start: float
    notes: list[str]


def _track(recording: Recording, options: Options) -> Answer:
    notes, network, prior = [], recording.network, None
    start = -np.inf
    if options.learn_until is not None:
        start = options.learn_until
        network = learn_links(recording.between(-np.inf, start))
        notes.append(f"links learned from what starts before {start:g} s; what starts later is scored")
    given = scene(recording, network)
    if options.cross_fit:
        prior = cross_fitted_prior(recording, given.pairs)
        given = scene(recording, network, prior)
        notes.append("links learned by cross-fitting: no pair is judged by passages of its own identities")
    matcher, tau = load_matcher()
    row = "gatv2_bias" if recording.has_embeddings else "prior"
    if row == "prior":
        some = any(t.embedding is not None for t in recording.tracklets)
        missing = "some tracklets have none" if some else "there are none"
        notes.append(f"no embeddings ({missing}): identities come of travel times and link priors alone")
        tau = 0.0
    if options.learn_until is not None:
        training = scene(recording.between(-np.inf, start), network)
        tau = threshold(row, training, matcher)
    own = method(row, given, matcher)
    gain = own.gain - tau
    bias = (
        match(matcher, given).bias.double().numpy()
        if row == "gatv2_bias"
        else np.log(given.prior.link) + given.prior.travel
    )
    others = {"none": no_association(recording), "fifo": _without_prior(given)}
    if row == "gatv2_bias":
        appearance = method("hungarian", given)
        others["hungarian"] = appearance.identities(appearance.gain - 0.3)
    if any(t.truth is not None for t in recording.tracklets):
        others["oracle"] = oracle(recording)
    scored = [n for n, t in enumerate(recording.tracklets) if t.time_in >= start]
    return Answer(given, row, own.identities(gain), gain, bias, scored, others, start, notes)


def _without_prior(given: Scene) -> NDArray[np.int64]:
    """First in, first out within the windows: what the links file gives without travel times or priors."""
    fifo = method("fifo", given)
    return fifo.identities(np.ones_like(fifo.gain))


def _scores(answer: Answer, options: Options) -> dict[str, dict[str, float]]:
    recording = answer.given.recording
    part = Recording(recording.network, [recording.tracklets[n] for n in answer.scored], recording.truth)
    if np.isfinite(answer.start):
        part.truth = part.between(answer.start, np.inf).truth
    rows = dict(answer.others) | {answer.row: answer.identity}
    order = ["none", "fifo", "hungarian", "prior", "gatv2_bias", "oracle"]
    return {row: evaluate(part, rows[row][answer.scored], options.protocol) for row in order if row in rows}


def _write(draft: Path, answer: Answer, scores: Scores, options: Options) -> None:
    given = answer.given
    write_answers(draft, given, answer.identity, answer.gain, answer.bias)
    if given.true.any():
        figures.transits(draft / "transits.png", given.recording, given.pairs, given.true, given.network)
    (draft / "links.yaml").write_text(dump_network(given.network), encoding="utf-8")
    cameras = [
        [name, str(sum(t.camera == name for t in given.recording.tracklets)), f"{camera.fps:g}"]
        for name, camera in given.network.cameras.items()
    ]
    table = [page_table(scores, 1, str(options.protocol))] if scores else []
    count = len(set(answer.identity.tolist()))
    head = f"{len(given.recording.tracklets)} tracklets, {count} identities, by {MEANING[answer.row]}."
    sections = [
        Section("Result", [head, *answer.notes], table),
        *picture_sections(draft, "from the middle of the recording"),
        Section("Cameras", tables=[Table("as read", ["camera", "tracklets", "fps"], cameras)]),
        Section("What was dropped", [f"{len(given.recording.dropped)} entries in dropped.log."]),
    ]
    (draft / "report.html").write_text(page("Multi-camera tracking", sections), encoding="utf-8")
    summary = {
        "rows": scores,
        "protocol": str(options.protocol),
        "seeds": [],
        "notes": answer.notes,
        "tracklets": len(given.recording.tracklets),
        "identities": len(set(answer.identity.tolist())),
    }
    (draft / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def thinned(recording: Recording, share: float, seed: int = 0) -> Recording:
    """The recording with a share of its boxes taken out at random: detections that a real detector misses."""
    rng = np.random.default_rng(seed)
    kept = []
    for t in recording.tracklets:
        keep = rng.random(len(t.frames)) >= share
        if keep.any():
            first, last = recording.network.cameras[t.camera].seconds(t.frames[keep][[0, -1]]).tolist()
            frames, boxes, world = t.frames[keep], t.boxes[keep], None if t.world is None else t.world[keep]
            kept.append(replace(t, frames=frames, boxes=boxes, world=world, time_in=first, time_out=last))
    return Recording(recording.network, kept, recording.truth, recording.dropped)
