"""The demo: simulate, learn, track, compare, and leave everything in one folder."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from rich.console import Console

from examples.mtmc.atomic import WORK, results
from examples.mtmc.experiment import SMALL, Outcome, Size, matches_of
from examples.mtmc.matching.methods import Scene, scene
from examples.mtmc.network.links_file import dump_network
from examples.mtmc.page import figures
from examples.mtmc.page.report import Section, Table, page
from examples.mtmc.parallel import run_seeds
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.recordings.writers import dropped_text, identities_csv, write_tracks
from examples.mtmc.scoring.evaluate import Protocol
from examples.mtmc.scoring.summary import Scores, mean_and_spread, page_table, screen_table
from examples.mtmc.simulator.realism import REAL


def run_demo(out: Path, chosen: range, small: bool, workers: int | None, console: Console) -> Path:
    """Run the demo and return the path of the report."""
    size, protocol = SMALL if small else Size(), Protocol()
    seeds = len(chosen)
    outcomes = run_seeds(list(chosen), size, protocol, console, workers, out / WORK)
    rows = mean_and_spread([o.scores for o in outcomes])
    wrong = mean_and_spread([o.wrong_prior for o in outcomes])
    described = describe(protocol, size, seeds)
    with results(out) as draft:
        with console.status("drawing and writing"):
            _write(draft, outcomes, rows, wrong, described)
    console.print(screen_table(rows, seeds, f"Tracking a later period, mean ± sd over {seeds} seed(s)"))
    console.print(screen_table(wrong, seeds, "GATv2 with a wrong prior"))
    console.print(f"Protocol: {described}")
    report = out / "report.html"
    console.print(f"Report: {report}", soft_wrap=True)
    return report


def describe(protocol: Protocol, size: Size, seeds: int) -> str:
    """The protocol in words."""
    return (
        f"simulated; {seeds} seed(s); links, travel times and matchers learned on {size.training_minutes:g} minutes, "
        f"thresholds of all rows found there by one search; scored on {size.test_minutes:g} later minutes with "
        f"other people; {protocol}; links are between consecutive tracklets of an identity"
    )


def _write(draft: Path, outcomes: list[Outcome], rows: Scores, wrong: Scores, protocol: str) -> None:
    first = outcomes[0]
    assert first.test is not None and first.training is not None and first.identity is not None
    test = scene(first.test)
    _, gain, bias = matches_of(first, test)
    write_answers(draft, test, first.identity, gain, bias)
    training = scene(Recording(first.training.network, first.training.tracklets))
    figures.transits(draft / "transits.png", training.recording, training.pairs, training.true, training.network)
    (draft / "links.yaml").write_text(dump_network(first.training.network), encoding="utf-8")
    shown = _figures_table(outcomes)
    sections = [
        Section("Result", [protocol], [page_table(rows, len(outcomes), "mean ± standard deviation over seeds")]),
        Section(
            "What a wrong prior costs",
            ["The matcher with bias, told that all ways take 20 % longer than they do, or not told of one link."],
            [page_table(wrong, len(outcomes), "gatv2_bias with a wrong prior")],
        ),
        *picture_sections(draft, "seed 0"),
        Section("The simulator beside real networks", tables=[shown]),
    ]
    (draft / "report.html").write_text(page("Multi-camera tracking: what a prior is worth", sections), encoding="utf-8")
    summary = {
        "rows": rows,
        "protocol": protocol,
        "seeds": [o.seed for o in outcomes],
        "wrong_prior": wrong,
        "simulator": {name: [o.figures[name] for o in outcomes] for name in first.figures},
        "thresholds": {name: [o.thresholds[name] for o in outcomes] for name in first.thresholds},
    }
    (draft / "summary.json").write_text(json.dumps(summary, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def write_answers(
    draft: Path, given: Scene, identity: NDArray[np.int64], gain: NDArray[np.float64], bias: NDArray[np.float64]
) -> None:
    """Tracks per camera, the table of identities, the two matrices and the log of what was dropped."""
    recording, pairs = given.recording, given.pairs
    pair = zip(pairs.source.tolist(), pairs.target.tolist(), strict=True)
    reasons = dict(zip(pair, zip(gain.tolist(), bias.tolist(), strict=True), strict=True))
    write_tracks(draft / "tracks", recording, identity)
    (draft / "identities.csv").write_text(identities_csv(recording, identity, reasons), encoding="utf-8")
    (draft / "dropped.log").write_text(dropped_text(recording.dropped), encoding="utf-8")
    figures.match_matrix(draft / "match_matrix.png", recording, pairs, gain, identity)
    figures.bias_matrix(draft / "bias.png", recording, pairs, bias)


def picture_sections(draft: Path, where: str) -> list[Section]:
    """The pictures that ``write_answers`` made, and the transits where they were drawn."""
    pictures = {
        "match_matrix.png": ("Match matrix", f"Match scores of 48 consecutive tracklets ({where})."),
        "bias.png": (
            "Learned bias",
            f"The prior b_ij of the same tracklets; grey: no link or outside its window ({where}).",
        ),
        "transits.png": ("Travel times", f"Delays of labelled passages and the densities learned from them ({where})."),
    }
    return [
        Section(heading, pictures=[(draft / name, caption)])
        for name, (heading, caption) in pictures.items()
        if (draft / name).is_file()
    ]


def _figures_table(outcomes: list[Outcome]) -> Table:
    body = []
    for name, first in outcomes[0].figures.items():
        if isinstance(first, str):
            value = first
        else:
            mean = float(np.mean([float(o.figures[name]) for o in outcomes]))
            value = f"{mean:.0f}" if mean >= 100 else f"{mean:.3g}"
        body.append([name.replace("_", " "), value, REAL.get(name, "–")])
    return Table("training periods; means over seeds", ["figure", "simulated", "real"], body)
