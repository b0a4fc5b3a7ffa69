"""The demo: simulate, learn, track, compare, and leave everything in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from examples.mtmc.answers import write_answers
from examples.mtmc.atomic import WORK, results
from examples.mtmc.experiment import SMALL, Outcome, Size, matches_of
from examples.mtmc.matching.methods import scene
from examples.mtmc.matching.reasons import reasons
from examples.mtmc.page import figures
from examples.mtmc.page.page import View, delays_by_link, true_identities, write_page
from examples.mtmc.page.table import Section, Table
from examples.mtmc.parallel import run_seeds
from examples.mtmc.recordings.tracklets import Recording
from examples.mtmc.scoring.evaluate import Protocol
from examples.mtmc.scoring.summary import mean_and_spread, page_table, screen_table
from examples.mtmc.simulator.realism import REAL


def run_demo(out: Path, chosen: range, small: bool, workers: int | None, console: Console) -> Path:
    """Run the demo and return the path of the report."""
    size, protocol = SMALL if small else Size(), Protocol()
    outcomes = run_seeds(list(chosen), size, protocol, console, workers, out / WORK)
    described = describe(protocol, size, len(outcomes))
    told = summary(outcomes, described)
    with results(out) as draft:
        with console.status("drawing and writing"):
            _write(draft, outcomes, told)
    wrong = told["wrong_prior"]
    title = f"Tracking a later period, mean ± sd over {len(outcomes)} seed(s); last {len(wrong)}: with a wrong prior"
    console.print(screen_table(told["rows"] | wrong, len(outcomes), title))
    console.print(f"Protocol: {described}")
    console.print(f"Report: {out / 'report.html'}", soft_wrap=True)
    return out / "report.html"


def summary(outcomes: list[Outcome], protocol: str) -> dict[str, Any]:
    """What ``summary.json`` holds."""
    first = outcomes[0]
    return {
        "rows": mean_and_spread([o.scores for o in outcomes]),
        "protocol": protocol,
        "seeds": [o.seed for o in outcomes],
        "wrong_prior": mean_and_spread([o.wrong_prior for o in outcomes]),
        "simulator": {name: [o.figures[name] for o in outcomes] for name in first.figures},
        "thresholds": {name: [o.thresholds[name] for o in outcomes] for name in first.thresholds},
    }


def describe(protocol: Protocol, size: Size, seeds: int) -> str:
    """The protocol in words."""
    return (
        f"simulated; {seeds} seed(s); links, travel times and matchers learned on {size.training_minutes:g} minutes, "
        f"thresholds of all rows found there by one search; scored on {size.test_minutes:g} later minutes with "
        f"other people; {protocol}; links are between consecutive tracklets of an identity"
    )


def _write(draft: Path, outcomes: list[Outcome], told: dict[str, Any]) -> None:
    first = outcomes[0]
    assert first.test is not None and first.training is not None and first.identity is not None
    test = scene(first.test)
    matcher, gain, bias = matches_of(first, test)
    tau = first.thresholds["gatv2_bias"]
    why, probability = reasons(matcher, test, tau), first.calibration.probability(gain + tau)
    write_answers(draft, test.recording, test.network, first.identity, test.pairs, why, probability)
    figures.match_matrix(draft / "match_matrix.png", test.recording, test.pairs, gain, first.identity)
    figures.bias_matrix(draft / "bias.png", test.recording, test.pairs, bias)
    training = scene(Recording(first.training.network, first.training.tracklets))
    figures.transits(draft / "transits.png", training.recording, training.pairs, training.true, training.network)
    seeds = len(outcomes)
    view = View(
        title="Multi-camera tracking: what a prior is worth",
        recording=test.recording,
        identity=first.identity,
        network=test.network,
        pairs=test.pairs,
        gain=gain,
        reasons=why,
        probability=probability,
        true=true_identities(test.recording),
        scores=[page_table(told["rows"], seeds, "mean ± standard deviation over seeds")],
        notes=[f"{told['protocol']}.", f"All pictures and lists show gatv2_bias on seed {first.seed}."],
        delays=delays_by_link(training.recording, training.pairs, training.true),
        delays_of="labelled passages of the training period",
        reliability=first.reliability,
        more=[
            Section(
                "What a wrong prior costs",
                ["The matcher with bias, told that all ways take 20 % longer than they do, or not told of one link."],
                [page_table(told["wrong_prior"], seeds, "gatv2_bias with a wrong prior")],
            ),
            Section("The simulator beside real networks", tables=[_figures_table(outcomes)]),
        ],
    )
    write_page(draft / "report.html", view)
    (draft / "summary.json").write_text(json.dumps(told, indent=1, allow_nan=False) + "\n", encoding="utf-8")


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
