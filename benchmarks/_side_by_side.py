"""Two ways of doing one thing, checked for equal numbers, timed in turns, written as JSON."""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Run = Callable[[], Any]


def arguments(description: str) -> argparse.Namespace:
    """`--small` for a quick look, `--out` for the folder that JSON goes to."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--small", action="store_true", help="sizes that take seconds; the figures mean nothing")
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    parser.add_argument("--threads", type=int, default=min(2, os.cpu_count() or 1))
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    torch.manual_seed(0)
    return options


def assert_equal_numbers(ours: list[Tensor], theirs: list[Tensor], what: str, relative: float = 1e-4) -> None:
    """Correctness first: no figure is taken of a wrong result."""
    for place, (got, want) in enumerate(zip(ours, theirs, strict=True)):
        got, want = got.detach(), want.detach()
        error = float((got - want).abs().max()) if got.numel() else 0.0
        bound = relative * max(1.0, float(want.abs().max()) if want.numel() else 0.0)
        if not error <= bound:
            raise AssertionError(f"{what}: result {place} differs by {error:.2e}, over {bound:.2e}; nothing was timed")


def seconds(runs: dict[str, Run], rounds: int, turn: float = 0.0, warm: bool = False) -> dict[str, float]:
    """The median time of each, the runs taken in turns so that a slow moment falls on all alike.

    A turn is one call, or as many as take `turn` seconds, of which the mean counts: small problems find their caches
    and threads as they are in a loop. What is `warm` has run before and is timed from the first.
    """
    times: dict[str, list[float]] = {name: [] for name in runs}
    for run in () if warm else runs.values():
        run()
    for _ in range(rounds):
        for name, run in runs.items():
            start, calls, taken = time.perf_counter(), 0, 0.0
            while calls == 0 or taken < turn:
                run()
                calls, taken = calls + 1, time.perf_counter() - start
            times[name].append(taken / calls)
    return {name: statistics.median(taken) for name, taken in times.items()}


def write(options: argparse.Namespace, name: str, rows: list[dict[str, Any]], **more: Any) -> None:
    """The rows, with the machine, versions and seed, to a file renamed into place; and as a table on the screen.

    `more` goes to the file alone.
    """
    report = {
        "name": name,
        "rows": rows,
        "small": options.small,
        "seed": 0,
        "threads": options.threads,
        "machine": {"cpu": _cpu(), "cores": os.cpu_count(), "system": platform.platform()},
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
        **more,
    }
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / f"{name}.json"
    partial = path.with_suffix(".json.partial")
    partial.write_text(json.dumps(report, indent=1))
    partial.replace(path)
    for row in rows:
        print("  ".join(f"{key} {_short(value)}" for key, value in row.items()))
    print(f"written to {path}")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _cpu() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    names = (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    return next(names, platform.processor())
