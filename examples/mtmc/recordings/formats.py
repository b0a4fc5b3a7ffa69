"""The text formats: one row of text to one detection.

    aicity   camera id frame x y w h xworld yworld           a file holds any cameras; frames count from 0
    mot      frame,id,left,top,width,height,conf,x,y,z       a file holds one camera; 6 to 10 columns; frames from 1
    campus   id xmin ymin xmax ymax frame lost occluded generated "label"     one camera; frames from 0

A world of −1 −1 stands for none. A row of a CAMPUS file that is marked lost is no detection.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

NAN = float("nan")
COLUMNS = ("id", "frame", "left", "top", "width", "height", "confidence", "world_x", "world_y")
Row = tuple[str, list[float]]  # the camera ("" where the row does not say), and the numbers of ``COLUMNS``


class Malformed(ValueError):
    """A row that the format does not allow: what was found and what was expected."""

    def __init__(self, found: str, expected: str) -> None:
        super().__init__(found, expected)
        self.found, self.expected = found, expected


@dataclass(frozen=True)
class TextFormat:
    """How a row is read (None: no detection), and where frames begin."""

    row: Callable[[str], Row | None]
    first_frame: int
    has_camera: bool


def numbers(cells: list[str], names: tuple[str, ...], first_frame: int = 0) -> list[float]:
    """The cells as numbers; the error names the first that is none."""
    try:
        if any("_" in cell for cell in cells):  # Python reads 1_000 as a number
            raise ValueError
        return list(map(float, cells))
    except ValueError:
        for name, cell in zip(names, cells, strict=True):
            try:
                if "_" not in cell:
                    float(cell)
                    continue
            except ValueError:
                pass
            if name in ("id", "frame"):
                least = first_frame if name == "frame" else 0
                raise Malformed(f"{name} {cell[:40]!r}", f"a whole number from {least} on") from None
            raise Malformed(f"{name} {cell[:40]!r}", "a number") from None
        raise


AICITY = ("id", "frame", "left", "top", "width", "height", "world_x", "world_y")
MOT = ("frame", "id", "left", "top", "width", "height", "confidence", "world_x", "world_y")
CAMPUS = ("id", "left", "top", "right", "bottom", "frame", "lost")


def _aicity(line: str) -> Row:
    camera, *cells = line.split()
    if len(cells) != 8:
        raise Malformed(f"{len(cells) + 1} columns", "9: camera id frame x y w h xworld yworld")
    id, frame, left, top, width, height, x, y = numbers(cells, AICITY)
    if x == y == -1:
        x = y = NAN
    return camera, [id, frame, left, top, width, height, 1.0, x, y]


def _mot(line: str) -> Row:
    cells = line.split(",")
    if not 6 <= len(cells) <= 10:
        raise Malformed(f"{len(cells)} columns", "6 to 10: frame,id,left,top,width,height,conf,x,y,z")
    frame, id, *rest = numbers(cells[:9], MOT[: len(cells)], first_frame=1)
    confidence = rest[4] if len(rest) > 4 else 1.0
    x, y = (rest[5], rest[6]) if len(rest) > 6 else (NAN, NAN)
    if x == y == -1:
        x = y = NAN
    return "", [id, frame, *rest[:4], confidence, x, y]


def _campus(line: str) -> Row | None:
    cells = line.split(maxsplit=9)
    if len(cells) != 10:
        expected = '10: id xmin ymin xmax ymax frame lost occluded generated "label"'
        raise Malformed(f"{len(cells)} columns", expected)
    id, x0, y0, x1, y1, frame, lost = numbers(cells[:7], CAMPUS)
    if lost not in (0, 1):
        raise Malformed(f"lost {cells[6][:40]!r}", "0 or 1")
    return None if lost else ("", [id, frame, x0, y0, x1 - x0, y1 - y0, 1.0, NAN, NAN])


TEXT_FORMATS = {
    "aicity": TextFormat(_aicity, 0, True),
    "mot": TextFormat(_mot, 1, False),
    "campus": TextFormat(_campus, 0, False),
}
