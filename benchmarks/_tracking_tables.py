"""Put what the tracking example's runs measured into docs/mtmc.md.

    python -m benchmarks._tracking_tables

Reads `summary.json` of `out/demo`, `out/campus` and `out/roundabout`, `out/ablation/ablation.json` and
`out/bench/mtmc.json`, and writes the parts of the page that bear their names. What is not there is left as it stands,
and said.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks._readme_table import markdown
from docs.marked import README, write_part
from examples.mtmc.matching.methods import MEANING
from examples.mtmc.real.report import SCORES
from examples.mtmc.scoring.summary import SHOWN
from examples.mtmc.simulator.realism import ROWS as FIGURES

PAGE = README.parent / "docs" / "mtmc.md"
Report = dict[str, Any]


def table(rows: dict[str, dict[str, list[float]]], meaning: dict[str, str], shown: dict[str, str]) -> str:
    """Rows of means and spreads, with what they are."""
    lines = [f"| row | {' | '.join(shown.values())} | what it is |", f"| --- |{' --: |' * len(shown)} --- |"]
    for row, scores in rows.items():
        numbers = [f"{scores[name][0]:.3f} ± {scores[name][1]:.3f}" if name in scores else "–" for name in shown]
        lines.append(f"| `{row}` | {' | '.join(numbers)} | {meaning.get(row, '')} |")
    return "\n".join(lines)


def demo(report: Report) -> str:
    """The demo's table and its protocol."""
    seeds, protocol = len(report["seeds"]), report["protocol"].rstrip(".")
    body = table(report["rows"], report.get("meaning", MEANING), SHOWN)
    return f"{body}\n\nMean ± standard deviation over {seeds} seeds. Protocol: {protocol}."


def wrong_prior(report: Report) -> str:
    """What a wrong prior costs, under the right one."""
    rows = {"as learned": report["rows"]["gatv2_bias"]} | report["wrong_prior"]
    return table(rows, {}, SHOWN).replace(" what it is |", " |")


def simulator(report: Report) -> str:
    """The simulator's figures beside those of real networks: means over seeds."""
    lines = ["| figure | simulated | real |", "| --- | --: | --: |"]
    for name, values in report["simulator"].items():
        numbers = [value for value in values if isinstance(value, (int, float))]
        mean = f"{sum(numbers) / len(numbers):.3g}" if len(numbers) == len(values) else str(values[0])
        known = FIGURES.get(name)
        lines.append(f"| {known.says if known else name} | {mean} | {known.real if known else '–'} |")
    return "\n".join(lines)


def ablation(report: Report) -> str:
    """Every row of the ablations."""
    return f"{table(report['rows'], report['meaning'], SHOWN)}\n\nMean ± spread over {len(report['seeds'])} seeds."


def campus(report: Report) -> str:
    """The auditorium's table and its protocol."""
    return f"{table(report['rows'], report['meaning'], SHOWN)}\n\nProtocol: {report['protocol']}."


def roundabout(report: Report) -> str:
    """The match table's and its protocol."""
    return f"{table(report['rows'], report['meaning'], SCORES)}\n\nProtocol: {report['protocol']}."


def scale(report: Report) -> str:
    """What was timed, and on what."""
    machine = f"Measured on {report['machine']['cpu']}, {report['threads']} threads."
    return f"{markdown(report['rows'])}\n\n{machine}"


PARTS: dict[str, tuple[str, Callable[[Report], str]]] = {
    "demo": ("demo/summary.json", demo),
    "wrong_prior": ("demo/summary.json", wrong_prior),
    "simulator": ("demo/summary.json", simulator),
    "ablation": ("ablation/ablation.json", ablation),
    "campus": ("campus/summary.json", campus),
    "roundabout": ("roundabout/summary.json", roundabout),
    "scale": ("bench/mtmc.json", scale),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("out"))
    parser.add_argument("--page", type=Path, default=PAGE)
    parser.add_argument("--parts", nargs="*", choices=sorted(PARTS), default=list(PARTS))
    options = parser.parse_args()
    for part in options.parts:
        name, write = PARTS[part]
        path = options.out / name
        if path.is_file():
            write_part(part, write(json.loads(path.read_text(encoding="utf-8"))), options.page)
            print(f"{part}: written")
        else:
            print(f"{part}: left as it is; {path} is not there")


if __name__ == "__main__":
    main()
