"""A recording of the town as a folder that ``track`` reads, and the table of its figures beside the real ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from examples.mtmc.atomic import results
from examples.mtmc.network.links_file import dump_network
from examples.mtmc.recordings.writers import write_recording
from examples.mtmc.simulator.realism import ROWS, measure, outside
from examples.mtmc.simulator.simulate import simulate, stroll

MORE_DAYS = 20  # of walking, without cameras, for the figures that a short recording has too few people to show


def run_simulate(
    out: Path, preset: str, seed: int, minutes: float, per_minute: float | None, console: Console
) -> dict[str, Any]:
    """Write ``tracks.txt`` and ``ground_truth.txt`` (AI City rows), ``tracks.npy`` (embeddings), ``links.yaml`` and
    ``figures.json``, all or nothing; print the table, and return what ``figures.json`` says."""
    with results(out, last="figures.json") as draft:
        with console.status("simulating and writing"):
            world = simulate(seed, minutes, per_minute, preset=preset)
            write_recording(draft, world.recording, "aicity")
            (draft / "links.yaml").write_text(dump_network(world.recording.network), encoding="utf-8")
            figures = measure(world, *(stroll(seed, 40, per_minute, day, preset=preset) for day in range(1, MORE_DAYS)))
            summary = {
                "preset": preset,
                "seed": seed,
                "minutes": minutes,
                "figures": figures,
                "real": {name: row.real for name, row in ROWS.items()},
                "outside": outside(figures),
            }
            text = json.dumps(summary, indent=1, allow_nan=False) + "\n"
            (draft / "figures.json").write_text(text, encoding="utf-8")
    console.print(figures_table(figures, f"{minutes:g} minutes of the town, preset {preset}, seed {seed}"))
    console.print(f"Counted over this recording and, where cameras have no part, {MORE_DAYS - 1} more days of walking.")
    console.print(
        f"Try: python -m examples.mtmc track --data {out} --format aicity --links {out / 'links.yaml'} --out …"
    )
    return summary


def figures_table(figures: dict[str, float], title: str) -> Table:
    """Figure, simulated, real, what is taken for alike; for the screen."""
    table = Table(title=title, box=SIMPLE_HEAD)
    for name in ("figure", "simulated", "real", "taken for alike"):
        table.add_column(name, justify="right" if name == "simulated" else "left")
    off = set(outside(figures))
    for name, row in ROWS.items():
        value = figures[name]
        shown = f"{value:.0f}" if value >= 100 else f"{value:.3g}"
        table.add_row(row.says, shown + (" !" if name in off else "  "), row.real, row.tolerance)
    return table
