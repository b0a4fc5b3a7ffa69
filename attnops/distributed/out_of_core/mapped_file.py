"""Files that are mapped into memory: their room taken, their length and header checked before a number is read.

A mapped file that is shorter than it should be ends the interpreter with a signal where it is touched, or reads as
zeros; a file whose room is not there does so where it is written. So both are errors beforehand.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


def reserve(path: Path, size: int) -> None:
    """A file of `size` bytes of zeros, for which the disk has room.

    Raises:
        OSError: a full or read-only disk, by the name of the file.
    """
    with open(path, "wb") as file:
        try:
            if size and hasattr(os, "posix_fallocate"):
                os.posix_fallocate(file.fileno(), 0, size)
            else:
                file.truncate(size)
        except OSError as error:
            raise OSError(error.errno, f"{os.strerror(error.errno or 0)}, for {size} bytes", str(path)) from error


def mapped(path: Path, size: int, dtype: torch.dtype, *, shared: bool) -> Tensor:
    """`[size]` numbers of a file; where it is `shared`, what is changed in them is changed in the file.

    Raises:
        FileNotFoundError, ValueError: a file that is missing, or of another length.
    """
    if not path.exists():
        raise FileNotFoundError(f"{path} is missing; the header beside it names it")
    held, expected = path.stat().st_size, size * dtype.itemsize
    if held != expected:
        raise ValueError(f"{path} holds {held} bytes; it must hold {expected}, {size} numbers of {dtype}")
    return torch.from_file(str(path), shared=shared, size=size, dtype=dtype) if size else torch.empty(0, dtype=dtype)


def write_header(path: Path, header: dict[str, Any]) -> None:
    """All at once: a header says that what it describes is whole."""
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(json.dumps(header), encoding="utf-8")
    draft.replace(path)


def read_header(path: Path, sizes: dict[str, int], others: dict[str, type]) -> dict[str, Any]:
    """The header of a folder, with the least value of each of its sizes and the type of each other field.

    Raises:
        FileNotFoundError: no header, so no rows or edges, or their writing did not end.
        ValueError: something else than a header.
    """
    if not path.exists():
        raise FileNotFoundError(
            f"folder {path.parent} holds no {path.name}: nothing is there, or its writing did not end"
        )
    try:
        header = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON: {error}") from error
    if not isinstance(header, dict):
        raise ValueError(f"{path} holds a {type(header).__name__}; it must hold an object")
    for name, least in sizes.items():
        value = header.get(name)
        if type(value) is not int or value < least:
            raise ValueError(f"{path}: {name} is {value!r}; it must be an integer of {least} or more")
    for name, kind in others.items():
        if not isinstance(header.get(name), kind):
            raise ValueError(f"{path}: {name} is {header.get(name)!r}; it must be a {kind.__name__}")
    return header


def require_width(where: str, width: object) -> tuple[int, ...]:
    """The axes behind the first."""
    if not isinstance(width, list | tuple) or any(type(each) is not int or each < 0 for each in width):
        raise ValueError(f"{where}width is {width!r}; it must be a tuple of integers of 0 or more")
    return tuple(width)


def require_dtype(where: str, name: object) -> torch.dtype:
    """A dtype by its name in torch."""
    dtype = getattr(torch, name, None) if isinstance(name, str) else name
    if not isinstance(dtype, torch.dtype) or dtype.is_complex:
        raise ValueError(f"{where}dtype is {name!r}; it must be a real dtype of torch")
    return dtype
