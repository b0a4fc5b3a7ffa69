"""Embeddings beside a file of rows: ``.npy`` or ``.npz``, one row a tracklet or one a detection."""

from __future__ import annotations

import zipfile
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from examples.mtmc.errors import InputError
from examples.mtmc.recordings.rows import Gathered


def embeddings_beside(rows: Path) -> Path | None:
    """The embeddings file of a file of rows: the same name ending in .npy or .npz."""
    stem = rows.name.removesuffix(".gz").removesuffix(".txt")
    found = [path for end in (".npy", ".npz") if (path := rows.with_name(stem + end)).is_file()]
    if len(found) == 2:
        raise InputError(found[1], None, f"{found[0].name} beside it", "one file of embeddings, not two")
    return found[0] if found else None


def read_embeddings(path: Path, gathered: Gathered) -> dict[tuple[str, int], NDArray[np.float64]]:
    """One embedding a tracklet: as given (in order of first appearance), or the mean over its detections."""
    table = _load(path)
    keys = list(gathered.frames)
    expected = f"{len(keys)} rows (one a tracklet) or {gathered.count} (one a detection) of at least one number"
    if table.ndim != 2 or table.shape[1] == 0 or table.shape[0] not in (len(keys), gathered.count):
        raise InputError(path, None, f"an array of shape {list(table.shape)}", expected)
    if table.dtype.kind not in "fiu":
        raise InputError(path, None, f"an array of {table.dtype}", "an array of numbers")
    table = table.astype(np.float64)
    bad = np.flatnonzero(~np.isfinite(table).all(1))
    if len(bad):
        raise InputError(path, int(bad[0]) + 1, "an embedding that is not finite", "finite numbers in every row")
    if table.shape[0] == len(keys):
        return dict(zip(keys, table, strict=True))
    return {key: table[gathered.row[key]].mean(0) for key in keys}


def _load(path: Path) -> NDArray[np.generic]:
    try:
        loaded = np.load(path, allow_pickle=False)
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
