"""Embeddings beside a file of rows: ``.npy`` or ``.npz``, one row a tracklet or one a detection.

A table with as many rows as the file has rows of text is one a detection; any other is one a tracklet, in the order in
which ids first appear. A ``.npy`` is mapped, so that a stream of it holds little.
"""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError
from examples.mtmc.recordings.checks import A_LOOK, Raw, are_looks
from examples.mtmc.recordings.cleaning import NOT_FINITE, Log
from examples.mtmc.recordings.text import blocks


def embeddings_beside(rows: Path) -> Path | None:
    """The embeddings file of a file of rows: the same name ending in .npy or .npz."""
    stem = rows.name.removesuffix(".gz").removesuffix(".txt")
    found = [path for end in (".npy", ".npz") if (path := rows.with_name(stem + end)).is_file()]
    if len(found) == 2:
        raise InputError(found[1], None, f"{found[0].name} beside it", "one file of embeddings, not two")
    return found[0] if found else None


class Looks:
    """The embeddings of one file of rows, handed out as its rows are read."""

    def __init__(self, path: Path, rows: Path, log: Log) -> None:
        self.path, self.log = path, log
        self.table = _load(path)
        if self.table.ndim != 2 or self.table.shape[1] == 0:
            raise self._wrong_shape("rows (one a tracklet or one a detection) of at least one number")
        if self.table.dtype.kind not in "fiu":
            raise InputError(path, None, f"an array of {self.table.dtype}", "an array of numbers")
        self.rows = _count(rows)
        self.each = len(self.table) == self.rows  # one a detection
        self.number: dict[tuple[int | str, float], int] = {}  # of a tracklet, as they first appear

    def of(self, raw: Raw) -> NDArray[np.floating]:
        """The embedding of each row; NaN where it is none or missing."""
        if self.each:
            index = raw.row
        else:
            names = [raw.unknown.get(k, camera) for k, camera in enumerate(raw.camera.tolist())]
            keys = zip(names, raw.values[:, 0].tolist(), strict=True)
            index = np.array([self.number.setdefault(key, len(self.number)) for key in keys], dtype=np.int64)
        found = self.table[np.minimum(index, len(self.table) - 1)] if len(self.table) else np.zeros((len(index), 1))
        looks = found.astype(found.dtype if found.dtype.kind == "f" else np.float32)
        bad = ~are_looks(looks)
        if bad.any():
            row = int(index[bad][0]) + 1
            self.log.add(NOT_FINITE, self.path, row, "an embedding that is none", A_LOOK, int(bad.sum()))
        looks[bad | (index >= len(self.table))] = np.nan
        return looks

    def finish(self) -> None:
        """At the end of the rows: whether there were as many as embeddings."""
        if not self.each and len(self.number) != len(self.table):
            count = f"{len(self.number)} rows (one a tracklet) or {self.rows} (one a detection)"
            raise self._wrong_shape(f"{count} of at least one number")

    def _wrong_shape(self, expected: str) -> InputError:
        return InputError(self.path, None, f"an array of shape {list(self.table.shape)}", expected)


def _count(rows: Path) -> int:
    log = Log()
    for _ in blocks(rows, log):
        pass
    return log.rows


def _load(path: Path) -> NDArray[np.generic]:
    try:
        loaded = np.load(path, allow_pickle=False, mmap_mode="r" if path.suffix == ".npy" else None)
        if isinstance(loaded, np.ndarray):
            return loaded
        with loaded:
            names = loaded.files
            if len(names) != 1 and "embeddings" not in names:
                raise InputError(path, None, f"arrays {', '.join(names)[:80]}", "one array, or one named embeddings")
            array: NDArray[np.generic] = loaded["embeddings" if "embeddings" in names else names[0]]
            return array
    except (ValueError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise InputError(path, None, f"no array ({type(error).__name__})", "a NumPy file without pickles") from None
