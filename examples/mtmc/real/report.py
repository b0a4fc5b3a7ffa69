"""The commands on real data: one table, and the same numbers as ``summary.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from examples.mtmc.atomic import results
from examples.mtmc.real import campus, roundabout
from examples.mtmc.scoring.evaluate import Protocol
from examples.mtmc.scoring.summary import SHOWN, Scores, mean_and_spread

SCORES = {
    "accuracy": "accuracy",
    "match_precision": "matches: P",
    "match_recall": "matches: R",
    "nobody_precision": "nobody: P",
    "nobody_recall": "nobody: R",
}


def run_campus(data: Path, out: Path | None, draws: int, console: Console) -> dict[str, Any]:
    """All rows on the CAMPUS auditorium."""
    with console.status("reading") as status:
        found = campus.campus(data, draws, Protocol(), lambda draw: status.update(f"draw {draw + 1} of {draws}"))
    protocol = (
        f"CAMPUS auditorium, {found.people} people, {found.tracklets} tracklets of at least {campus.LEAST} boxes; "
        f"{campus.MISS:.0%} of the boxes taken out at random, {draws} draw(s); everything left one out: no pair "
        f"is judged by anything of its own people; {Protocol()}"
    )
    scores = _by_row(found.scores)
    return _told("CAMPUS auditorium", scores, SHOWN, campus.MEANING, protocol, out, console)


def run_roundabout(data: Path, out: Path | None, draws: int, console: Console) -> dict[str, Any]:
    """All rows on RoundaboutHD's matches."""
    with console.status("matching"):
        scores, crossings = roundabout.roundabout(data / "matches.csv", draws)
    leaving, lost = sum(len(c.leaving) for c in crossings), sum(int((c.true < 0).sum()) for c in crossings)
    entering = sum(len(c.entering) for c in crossings)
    protocol = (
        f"RoundaboutHD, {len(crossings)} directions, {leaving} vehicles leave, {lost} of them for nowhere, {entering} "
        f"enter; {roundabout.MISTAKES:.0%} of the colours, makes and models of those that enter are redrawn, {draws} "
        "draw(s); each direction is judged by what the others show"
    )
    return _told("RoundaboutHD's matches", _by_row(scores), SCORES, roundabout.MEANING, protocol, out, console)


def _by_row(scores: dict[str, list[dict[str, float]]]) -> Scores:
    draws = len(next(iter(scores.values())))
    return mean_and_spread([{row: values[n] for row, values in scores.items()} for n in range(draws)])


def _told(
    title: str,
    scores: Scores,
    shown: dict[str, str],
    meaning: dict[str, str],
    protocol: str,
    out: Path | None,
    console: Console,
) -> dict[str, Any]:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("row", no_wrap=True)
    for name in shown.values():
        table.add_column(name, justify="right", no_wrap=True)
    for row, values in scores.items():
        table.add_row(row, *(f"{values[name][0]:.3f}±{values[name][1]:.3f}" for name in shown))
    console.print(table)
    console.print(f"Protocol: {protocol}", soft_wrap=True)
    summary = {"title": title, "rows": scores, "meaning": meaning, "protocol": protocol}
    if out is not None:
        with results(out) as draft:
            text = json.dumps(summary, indent=1, allow_nan=False, ensure_ascii=False)
            (draft / "summary.json").write_text(text + "\n", encoding="utf-8")
        console.print(f"Summary: {out / 'summary.json'}", soft_wrap=True)
    return summary
