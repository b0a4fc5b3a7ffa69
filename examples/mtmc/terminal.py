"""Where a command speaks: to the screen; or, asked for JSON, its result alone to the standard output."""

from __future__ import annotations

import json
import sys
from typing import Any

from rich.console import Console


def console(as_json: bool) -> Console:
    """What progress, notes and tables are printed on; beside JSON that is the error stream."""
    return Console(stderr=as_json, markup=False, highlight=False)


def answer(summary: dict[str, Any], as_json: bool) -> None:
    """Print the result of a command for machines, if that was asked for."""
    if as_json:
        print(json.dumps(summary, indent=1, allow_nan=False))
        sys.stdout.flush()
