"""Ablations: the matcher with one thing taken out of it, or one thing left in, trained and tuned like the whole."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from examples.mtmc.atomic import WORK, results
from examples.mtmc.experiment import SMALL, Outcome, Prepared, Size, prepare
from examples.mtmc.matching.calibration import fit_calibration, reliability
from examples.mtmc.matching.matcher import Form
from examples.mtmc.matching.methods import Scene, match, method, scene, threshold
from examples.mtmc.matching.training import train
from examples.mtmc.parallel import run_seeds
from examples.mtmc.scoring.evaluate import Protocol, evaluate
from examples.mtmc.scoring.summary import mean_and_spread, screen_table
from examples.mtmc.simulator import town

FULL = Form()
FORMS = {
    "full": FULL,
    "no_bias": Form(bias=()),
    "window_only": Form(bias=("link", "zone", "place", "kind")),
    "link_only": Form(bias=("link",)),
    "time_only": Form(bias=("travel",)),
    "kind_only": Form(bias=("kind",)),
    "as_written": FULL,
    "no_zones": Form(bias=("link", "travel", "place", "kind")),
    "no_places": Form(bias=("link", "travel", "zone", "kind")),
    "gat": Form(score="gat"),
    "no_companions": Form(companions=False),
    "no_rivals": Form(rounds=0),
}
MEANING = {
    "full": "everything",
    "no_bias": "no bias at all: links and windows as the pattern, looks, cameras, rounds",
    "window_only": "the hard window in place of the travel-time density",
    "link_only": "log P(A -> B) as the only bias",
    "time_only": "travel time as the only bias",
    "kind_only": "a learned bias for each kind of camera pair as the only one",
    "as_written": "nothing learned of the links: windows as their owner wrote them",
    "no_zones": "zones off",
    "no_places": "places in overlapping views off",
    "gat": "GAT in place of GATv2",
    "no_companions": "rivals inform each other, companions do not",
    "no_rivals": "no rounds: every edge scored alone",
}
STAGES = 1 + len(FORMS)


def ablate_seed(
    seed: int, size: Size, protocol: Protocol, report: Callable[[str], None] = lambda stage: None
) -> Outcome:
    """All rows of one seed; every row has its own trained weights and its own threshold."""
    report("simulating")
    given = prepare(seed, size)
    outcome = Outcome(seed, figures=given.figures)
    for row in FORMS:
        report(f"training and tracking: {row}")
        outcome.scores[row], outcome.thresholds[row] = ablate_row(row, given, seed, size, protocol)
    return outcome


def ablate_row(row: str, given: Prepared, seed: int, size: Size, protocol: Protocol) -> tuple[dict[str, float], float]:
    """One row's scores, its calibration error among them, and its threshold."""
    form = FORMS[row]
    fitting, holding, whole, testing = given.fitting, given.holding, given.whole, given.testing
    if row == "as_written":
        fitting, holding, whole, testing = (_as_written(x) for x in (fitting, holding, whole, testing))
    matcher = train(fitting.labelled, holding.labelled, form, seed, size.steps)
    tau = threshold("gatv2_bias", whole, matcher)
    own = method("gatv2_bias", testing, matcher)
    scores = evaluate(testing.recording, own.identities(own.gain - tau), protocol)
    calibration = fit_calibration(match(matcher, holding).gain.double().numpy(), holding.true)
    scores["calibration_error"] = reliability(calibration.probability(own.gain), testing.true).error
    return scores, tau


def _as_written(given: Scene) -> Scene:
    return scene(given.recording, town.network(), pairs=given.pairs, looks=given.looks)


def run_ablation(
    out: Path, seeds: int, small: bool, preset: str, workers: int | None, console: Console
) -> dict[str, Any]:
    """Run every row on so many seeds, print one table and leave ``ablation.json`` in ``out``."""
    size, protocol = replace(SMALL if small else Size(), preset=preset), Protocol()
    outcomes = run_seeds(list(range(seeds)), size, protocol, console, workers, out / WORK, ablate_seed, STAGES)
    summary: dict[str, Any] = {
        "rows": mean_and_spread([o.scores for o in outcomes]),
        "meaning": MEANING,
        "preset": preset,
        "protocol": str(protocol),
        "seeds": [o.seed for o in outcomes],
        "thresholds": {row: [o.thresholds[row] for o in outcomes] for row in FORMS},
    }
    with results(out, last="ablation.json") as draft:
        text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
        (draft / "ablation.json").write_text(text, encoding="utf-8")
    console.print(screen_table(summary["rows"], seeds, f"Ablations on {preset}, mean ± sd over {seeds} seed(s)"))
    for row, meaning in MEANING.items():
        console.print(f"{row}: {meaning}", soft_wrap=True)
    return summary
