"""RoundaboutHD's match table: who left one camera, with colour, make and model, and whom the next camera saw come."""

from __future__ import annotations

import csv
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError

ATTRIBUTES = ("colour", "make", "model")
COLUMNS = ("camera_from", "camera_to", "tracklet_from", "tracklet_to", *ATTRIBUTES)
Looks = tuple[str, ...]  # colour, make, model


@dataclass(frozen=True, eq=False)
class Crossing:
    """One direction between two cameras: who leaves, who enters, in order of their tracklet numbers.

    ``true [n]`` is the place among ``entering`` of each of the ``leaving``, or −1: not seen there. Those who enter
    without having left are of side roads: the table lists them where they go on to a third camera.
    """

    name: str
    leaving: NDArray[np.int64]  # tracklet numbers, ascending: the only clock that the table has
    leaving_looks: list[Looks]
    entering: NDArray[np.int64]
    entering_looks: list[Looks]
    true: NDArray[np.int64]


def read_crossings(path: Path) -> list[Crossing]:
    """Read ``matches.csv``; what is wrong with a row is one line that names it."""
    sheets: dict[tuple[str, str], dict[int, tuple[int | None, Looks]]] = defaultdict(dict)
    try:
        with path.open(newline="", encoding="utf-8") as file:
            rows = csv.DictReader(file)
            missing = [name for name in COLUMNS if name not in (rows.fieldnames or [])]
            if missing:
                raise InputError(path, 1, f"no column {', '.join(missing)}", f"the columns {', '.join(COLUMNS)}")
            for row in rows:
                left = _number(path, rows.line_num, row["tracklet_from"])
                came = _number(path, rows.line_num, row["tracklet_to"]) if row["tracklet_to"] else None
                sheet = sheets[row["camera_from"], row["camera_to"]]
                if left in sheet:
                    raise InputError(path, rows.line_num, f"tracklet {left} a second time", "every tracklet once")
                sheet[left] = came, tuple((row[name] or "").strip().casefold() for name in ATTRIBUTES)
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise InputError(path, None, f"no readable table ({type(error).__name__})", "matches.csv") from None
    if len(sheets) < 2:
        raise InputError(path, None, f"{len(sheets)} direction(s)", "two at least: one is judged by what others show")
    return [_crossing(names, sheets) for names in sorted(sheets)]


def _number(path: Path, line: int, text: str | None) -> int:
    try:
        return int(text or "")
    except ValueError:
        raise InputError(path, line, f"tracklet {text!r:.40}", "a whole number") from None


def _crossing(names: tuple[str, str], sheets: dict[tuple[str, str], dict[int, tuple[int | None, Looks]]]) -> Crossing:
    sheet = sheets[names]
    came: dict[int, Looks] = {}
    for (first, third), onward in sheets.items():  # at the second camera, on the way to a third
        if first == names[1] and third != names[0]:
            came |= {number: looks for number, (_, looks) in onward.items()}
    came |= {number: looks for number, looks in sheet.values() if number is not None}
    leaving, entering = sorted(sheet), sorted(came)
    place = {number: n for n, number in enumerate(entering)}
    arrivals = [sheet[n][0] for n in leaving]
    return Crossing(
        f"{names[0]} → {names[1]}",
        np.array(leaving, dtype=np.int64),
        [sheet[n][1] for n in leaving],
        np.array(entering, dtype=np.int64),
        [came[n] for n in entering],
        np.array([-1 if number is None else place[number] for number in arrivals], dtype=np.int64),
    )


def mislabelled(crossing: Crossing, share: float, seed: int) -> Crossing:
    """The crossing with a share of the entering vehicles' colours, makes and models redrawn from those seen there."""
    rng = np.random.default_rng(seed)
    columns = []
    for values in zip(*crossing.entering_looks, strict=True):
        redrawn = rng.choice(np.array(values, dtype=object), len(values))
        columns.append(np.where(rng.random(len(values)) < share, redrawn, np.array(values, dtype=object)))
    looks: list[Looks] = [tuple(map(str, row)) for row in zip(*columns, strict=True)]
    return Crossing(
        crossing.name, crossing.leaving, crossing.leaving_looks, crossing.entering, looks, crossing.true
    )  # fmt: skip
