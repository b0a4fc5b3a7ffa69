"""Values of rows, checked as whole columns: finite, possible, of a known camera."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.network.network import Network
from examples.mtmc.recordings.chunk import Chunk
from examples.mtmc.recordings.cleaning import IMPOSSIBLE, NOT_FINITE, UNKNOWN

LARGEST = 1e7  # pixels
A_LOOK = "finite numbers, not all of them 0, of at most 1e+30"  # of an embedding
Fault = tuple[int, str, str, str]  # line, kind, found, expected


@dataclass(frozen=True, eq=False)
class Raw:
    """Rows as a format reads them: ``camera [n]`` numbers (−1: not in the network; its name in ``unknown`` by row),
    ``values [n, 9]`` as ``formats.COLUMNS``."""

    camera: NDArray[np.int64]
    unknown: dict[int, str]
    values: NDArray[np.float64]
    line: NDArray[np.int64]
    row: NDArray[np.int64]
    embedding: NDArray[np.floating] | None = None
    truth: NDArray[np.int64] | None = None


def checked(raw: Raw, network: Network, first_frame: int) -> tuple[Chunk, list[Fault]]:
    """The rows that are possible, and what is wrong with the others."""
    id, frame, box = raw.values[:, 0], raw.values[:, 1], raw.values[:, 2:6]
    confidence, world = raw.values[:, 6], raw.values[:, 7:9]
    line = raw.line.tolist()
    faults: list[Fault] = []
    bad = np.zeros(len(raw.line), dtype=bool)

    def fault(where: Any, kind: str, found: str, expected: str) -> None:
        """``found`` may name the row's values in braces."""
        for k in np.flatnonzero(where & ~bad).tolist():
            names = dict(zip(("id", "frame", "l", "t", "w", "h", "c", "x", "y"), raw.values[k].tolist(), strict=True))
            faults.append((line[k], kind, found.format(**names, camera=raw.unknown.get(k, "")), expected))
        bad[where] = True

    known = ", ".join(network.cameras)
    fault(raw.camera < 0, UNKNOWN, "camera '{camera}'", f"a camera of the links file ({known:.500})")
    with np.errstate(invalid="ignore"):
        for column, name, least in ((id, "id", 0), (frame, "frame", first_frame)):
            expected = f"a whole number from {least} on"
            fault(~np.isfinite(column), NOT_FINITE, f"{name} {{{name}}}", expected)
            fault(column > 2**53, IMPOSSIBLE, f"{name} {{{name}:.15g}}", "a whole number of at most 2**53")
            whole = (column == np.floor(column)) & (column >= least)
            fault(~whole, IMPOSSIBLE, f"{name} {{{name}:.15g}}", expected)
        shown = "({l:g} {t:g} {w:g} {h:g})"
        fault(~np.isfinite(box).all(1), NOT_FINITE, f"a box that is not finite {shown}", "four finite numbers")
        flat = (box[:, 2:] <= 0).any(1)
        fault(flat, IMPOSSIBLE, "a box of width {w:g} and height {h:g}", "a width and a height above 0")
        fault((np.abs(box) > LARGEST).any(1), IMPOSSIBLE, f"a box {shown}", f"numbers of at most {LARGEST:g} pixels")
        fault(~np.isfinite(confidence), NOT_FINITE, "confidence {c}", "a finite number")
        fault(np.isinf(world).any(1), NOT_FINITE, "world {x} {y}", "two finite numbers")
    good = ~bad
    camera, frames = raw.camera[good], frame[good].astype(np.int64)
    return Chunk(
        camera,
        id[good].astype(np.int64),
        frames,
        seconds(network, camera, frames),
        box[good],
        world[good],
        confidence[good],
        raw.line[good],
        raw.row[good],
        None if raw.embedding is None else raw.embedding[good],
        None if raw.truth is None else raw.truth[good],
    ), faults


def are_looks(embeddings: NDArray[np.floating]) -> NDArray[np.bool_]:
    """Which rows can be compared by their direction: they are finite, not 0, and their squares can be summed."""
    with np.errstate(invalid="ignore"):
        most = np.abs(embeddings).max(1, initial=0.0)
    return np.asarray(np.isfinite(most) & (most >= 1e-30) & (most <= 1e30))


def seconds(network: Network, camera: NDArray[np.int64], frame: NDArray[np.int64]) -> NDArray[np.float64]:
    """Frames of several cameras on the common clock."""
    cameras = list(network.cameras.values())
    offset, rate, fps = np.array([(c.clock_offset, c.clock_rate, c.fps) for c in cameras]).T[:, camera]
    return np.asarray(offset + rate * frame / fps)
