"""Dirty data: what is left out of a stream of rows, why, and how often.

Strict: the first fault is an error that names file and line, and nothing is read. Tolerant: each fault is counted, the
first few of each kind are kept with file and line, and the rest of the data is used:

    malformed row     not the format's columns, or a cell that is no number: left out
    not finite        NaN or infinity in a box, a frame or an id: left out
    impossible value  a box without area, a negative id, half a frame, a frame before the format's first: left out
    unknown camera    a camera that the links file has not: left out
    out of order      a row that comes after a later one of its id, but within the buffer: put in its place
    late row          one that comes later than the buffer can mend: left out
    duplicate row     camera, id and frame a second time: the first one stays
    clock jump        a camera's frames go back (or, in a live stream, ahead of all other cameras) by over a minute: its
                      clock is set anew, so that time goes on where the camera, or in a live stream the others, stood;
                      frames are shifted by a whole number and ids begin anew (10¹² is added for every such start)
    gap in an id      an id comes back after over a minute: no tracker bridges that, so it is a new tracklet (+ 10¹²)
    silent camera     no rows for long: noted, nothing is left out
    marked lost       a row of CAMPUS text that says so: no detection, and no fault
    broken file       a file that ends in the middle of a compressed block, or text that is not UTF-8: what can be read
                      is used
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from examples.mtmc.errors import InputError
from examples.mtmc.recordings.tracklets import Dropped

MALFORMED = "malformed row"
NOT_FINITE = "not finite"
IMPOSSIBLE = "impossible value"
UNKNOWN = "unknown camera"
OUT_OF_ORDER = "out of order"
LATE = "late row"
DUPLICATE = "duplicate row"
JUMP = "clock jump"
GAP = "gap in an id"
SILENT = "silent camera"
BROKEN = "broken file"
LOST = "marked lost: out of view"
KEPT = (OUT_OF_ORDER, JUMP, GAP, SILENT)  # kinds that leave nothing out


@dataclass(frozen=True)
class Case:
    """One fault: where, what was found and what was expected."""

    path: str
    line: int | None
    found: str
    expected: str

    def __str__(self) -> str:
        return str(InputError(self.path, self.line, self.found, self.expected))


class Log:
    """Counts what was left out, and keeps the first ``keep`` cases of each kind; ``strict`` makes a fault an error.

    >>> log = Log()
    >>> for line in range(1, 1001):
    ...     log.add(MALFORMED, "cam1.txt", line, "3 columns", "9 columns")
    >>> log.counts[MALFORMED], len(log.cases[MALFORMED])
    (1000, 3)
    >>> Log(strict=True).add(MALFORMED, "cam1.txt", 7, "3 columns", "9 columns")
    Traceback (most recent call last):
    examples.mtmc.errors.InputError: cam1.txt, line 7: found 3 columns; expected 9 columns
    """

    def __init__(self, strict: bool = False, keep: int = 3) -> None:
        self.strict, self.keep = strict, keep
        self.rows = 0  # rows seen, good and bad
        self.counts: Counter[str] = Counter()
        self.cases: dict[str, list[Case]] = {}

    def add(self, kind: str, path: str | Path, line: int | None, found: str, expected: str, count: int = 1) -> None:
        """A fault; strict: raise it."""
        if self.strict:
            raise InputError(path, line, found, expected)
        self.note(kind, path, line, found, expected, count)

    def note(self, kind: str, path: str | Path, line: int | None, found: str, expected: str, count: int = 1) -> None:
        """Something worth knowing that is never an error."""
        self.counts[kind] += count
        cases = self.cases.setdefault(kind, [])
        if len(cases) < self.keep:
            cases.append(Case(str(path), line, found, expected))

    @property
    def left_out(self) -> int:
        """How many rows were left out."""
        return sum(count for kind, count in self.counts.items() if kind not in KEPT)

    def first(self) -> str:
        """How many rows were left out and the first fault, in brackets, for an error of what remains; or nothing."""
        faults = [case for kind, cases in self.cases.items() if kind not in KEPT for case in cases]
        return f" ({self.left_out} of {self.rows} rows left out, the first: {faults[0]})" if faults else ""

    def lines(self) -> list[str]:
        """One line a kind with its count, each followed by its first cases."""
        text = []
        for kind, count in sorted(self.counts.items()):
            text.append(f"{count} x {kind}")
            text += [f"    {case}" for case in self.cases[kind]]
        return text

    def as_dict(self) -> dict[str, Any]:
        """For machines: rows seen, rows left out, and counts and first cases of each kind."""
        kinds = {k: {"count": n, "first": [str(c) for c in self.cases[k]]} for k, n in sorted(self.counts.items())}
        return {"rows": self.rows, "left_out": self.left_out, "kinds": kinds}

    def dropped(self) -> list[Dropped]:
        """For a recording's list of what was not used: the first cases, the last of them counting for the rest."""
        result = []
        for kind, count in sorted(self.counts.items()):
            cases = self.cases[kind]
            rest = count - len(cases)
            result += [Dropped("", str(case), kind, 1 + rest * (n == len(cases))) for n, case in enumerate(cases, 1)]
        return result
