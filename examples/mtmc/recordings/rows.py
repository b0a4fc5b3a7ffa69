"""Text rows of numbers, checked one by one, and gathered into tracks."""

from __future__ import annotations

import gzip
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError


def lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines that are not blank, of a plain or gzipped text file."""
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    yield number, line.strip()
    except FileNotFoundError:
        raise InputError(path, None, "no such file", "a file of rows") from None
    except (OSError, EOFError, UnicodeDecodeError) as error:
        raise InputError(path, None, f"unreadable text ({type(error).__name__}: {error})", "a file of rows") from None


class Rows:
    """Checks the cells of one file's rows, and names the line in every error."""

    def __init__(self, path: Path) -> None:
        self.path, self.line = path, 0

    def wrong(self, found: str, expected: str) -> InputError:
        """An error at the current line."""
        return InputError(self.path, self.line, found, expected)

    def whole(self, text: str, name: str, least: int) -> int:
        """A whole number, which may be written 3.0, of at least ``least``."""
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or value != int(value) or value < least or abs(value) > 2**53:
            raise self.wrong(f"{name} {text[:40]!r}", f"a whole number from {least} on")
        return int(value)

    def box(self, cells: list[str], name: str = "box") -> tuple[float, float, float, float]:
        """Left, top, width, height: finite, width and height above 0."""
        try:
            left, top, width, height = (float(cell) for cell in cells)
        except ValueError:
            raise self.wrong(f"{name} {' '.join(cells)[:60]!r}", "four numbers") from None
        if not all(map(math.isfinite, (left, top, width, height))):
            raise self.wrong(f"a {name} that is not finite ({' '.join(cells)[:60]})", "four finite numbers")
        if width <= 0 or height <= 0:
            raise self.wrong(f"a {name} of width {width:g} and height {height:g}", "a width and a height above 0")
        return left, top, width, height


class Gathered:
    """Rows of many ids, collected in file order; within an id frames must ascend."""

    def __init__(self, rows: Rows) -> None:
        self.rows = rows
        self.frames: dict[tuple[str, int], list[int]] = {}
        self.boxes: dict[tuple[str, int], list[tuple[float, ...]]] = {}
        self.row: dict[tuple[str, int], list[int]] = {}  # position among the file's detections
        self.count = 0

    def add(self, camera: str, id: int, frame: int, values: tuple[float, ...]) -> None:
        """One detection."""
        frames = self.frames.setdefault((camera, id), [])
        if frames and frame <= frames[-1]:
            found = f"frame {frame} of id {id} after frame {frames[-1]}"
            raise self.rows.wrong(found, "ascending frames within an id, each once")
        frames.append(frame)
        self.boxes.setdefault((camera, id), []).append(values)
        self.row.setdefault((camera, id), []).append(self.count)
        self.count += 1

    def track(self, key: tuple[str, int]) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
        """Frames and values of one id."""
        return np.array(self.frames[key], dtype=np.int64), np.array(self.boxes[key], dtype=np.float64)
