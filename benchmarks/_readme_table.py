"""Put what `make bench` and `make demo` measured into README.md.

    python -m benchmarks._readme_table

Those of the compiled kernels go to docs/performance.md too.
Reads `out/bench/*.json` and `out/demo/summary.json`, and writes the parts of README.md marked `figures` and `tracking`.
What was not measured, or measured with `--small`, is left as it stands, and said.
"""

from __future__ import annotations

import argparse
import ast
import json
from pathlib import Path
from typing import Any

from docs.marked import README, write_part
from examples.mtmc.matching.methods import MEANING
from examples.mtmc.scoring.summary import SHOWN

HERE = Path(__file__).parent
KERNELS = ("graphs", "layers", "growth", "sequences", "decoding")
ELSEWHERE = ("mtmc", "gpu")  # shown by docs/mtmc.md; of a machine of its own
PERFORMANCE = README.parent / "docs" / "performance.md"
FIRST = ("overhead", "graphs", "layers", "growth")  # then the others, by name
# The last words of a key say what the number is.
HEADINGS = {
    "_pyg_ratio": ", times as fast as PyG",
    "_dgl_ratio": ", times as fast as DGL",
    "_reading_times": ", times the reading of its bytes",
    "_us": ", µs",
    "_ms": ", ms",
    "_memory_share": ", share of the peer's memory",
    "_share": ", share of the peer's time",
    "_ratio": ", times as fast",
}


def figures(reports: list[dict[str, Any]]) -> str:
    """One table a benchmark under the first line of its description, and what they ran on."""
    known = {name: place for place, name in enumerate(FIRST)}
    parts = []
    for report in sorted(reports, key=lambda report: (known.get(report["name"], len(FIRST)), report["name"])):
        parts.append(f"**{description(report['name'])}**\n\n{markdown(report['rows'])}")
    places = {
        f"{report['machine']['cpu']}, {report['threads']} threads, Python {report['versions']['python']}, torch "
        f"{report['versions']['torch']}, seed {report['seed']}"
        for report in reports
    }
    return "\n\n".join([*parts, "Measured on " + "; and on ".join(sorted(places)) + "."])


def markdown(rows: list[dict[str, Any]]) -> str:
    """Rows as a table: a column for every key that some row has."""
    keys = list(dict.fromkeys(key for row in rows for key in row))
    lines = [f"| {' | '.join(heading(key) for key in keys)} |", f"| --- |{' --: |' * (len(keys) - 1)}"]
    lines += [f"| {' | '.join(cell(key, row.get(key)) for key in keys)} |" for row in rows]
    return "\n".join(lines)


def heading(key: str) -> str:
    """A key of a row as words with its unit."""
    for ending, words in HEADINGS.items():
        if key.endswith(ending):
            return key.removesuffix(ending).replace("_", " ") + words
    return key.replace("_", " ")


def cell(key: str, value: Any) -> str:
    """A number as a reader needs it."""
    if value is None:
        return "–"
    if not isinstance(value, float):
        return str(value)
    return (
        f"{value:.2f}"
        if key.endswith(("_share", "_ratio", "_times", "_exponent"))
        else f"{value:.3g}"
        if value < 100
        else f"{value:.0f}"
    )


def description(name: str) -> str:
    """The first line of a benchmark's own description."""
    text = ast.get_docstring(ast.parse((HERE / f"{name}.py").read_text(encoding="utf-8")))
    return (text or name).splitlines()[0].rstrip(".")


def tracking(summary: dict[str, Any]) -> str:
    """The table that `make demo` prints, with its protocol."""
    lines = [f"| row | {' | '.join(SHOWN.values())} | what it is |", f"| --- |{' --: |' * len(SHOWN)} --- |"]
    for row, scores in summary["rows"].items():
        numbers = [f"{scores[name][0]:.3f} ± {scores[name][1]:.3f}" for name in SHOWN]
        lines.append(f"| `{row}` | {' | '.join(numbers)} | {MEANING.get(row, '')} |")
    seeds, protocol = len(summary["seeds"]), summary["protocol"].rstrip(".")
    return "\n".join([*lines, "", f"Mean ± standard deviation over {seeds} seeds. Protocol: {protocol}."])


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--bench", type=Path, default=Path("out/bench"))
    parser.add_argument("--demo", type=Path, default=Path("out/demo/summary.json"))
    parser.add_argument("--page", type=Path, default=README)
    options = parser.parse_args()
    reports = [
        json.loads(path.read_text(encoding="utf-8"))
        for path in sorted(options.bench.glob("*.json"))
        if path.stem not in ELSEWHERE
    ]
    small = [report["name"] for report in reports if report["small"]]
    if small or not reports:
        reason = f"{', '.join(small)} ran with --small" if small else f"{options.bench} holds no report (make bench)"
        print(f"figures: left as they are; {reason}")
    else:
        write_part("figures", figures(reports), options.page)
        if of_kernels := [report for report in reports if report["name"] in KERNELS]:
            write_part("figures", figures(of_kernels), PERFORMANCE)
        print(f"figures: {', '.join(report['name'] for report in reports)}")
    if options.demo.is_file():
        write_part("tracking", tracking(json.loads(options.demo.read_text(encoding="utf-8"))), options.page)
        print("tracking: written")
    else:
        print(f"tracking: left as it is; {options.demo} is not there (make demo)")


if __name__ == "__main__":
    main()
