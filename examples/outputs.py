"""What a run leaves: a folder of JSON, text and pictures, each written whole under another name and then renamed."""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def add_out(parser: argparse.ArgumentParser, name: str) -> None:
    """The argument `--out`: the folder that the run is kept in, out/`name` where it is not given."""
    parser.add_argument("--out", type=folder, default=f"out/{name}", help=f"folder for what is kept (out/{name})")


def folder(text: str) -> Path:
    """A folder to write into, made if need be; asked for before the work begins, so that no work is lost."""
    path = Path(text)
    try:
        path.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise argparse.ArgumentTypeError(f"{path} is a file; it must be a folder") from None
    except OSError as error:
        raise argparse.ArgumentTypeError(f"{path} cannot be made: {error.strerror}") from None
    if not os.access(path, os.W_OK | os.X_OK):
        raise argparse.ArgumentTypeError(f"{path} cannot be written into")
    return path


def write_text(path: Path, text: str) -> None:
    """The file holds `text`, or what it held before, whenever the process dies."""
    _whole(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_json(path: Path, value: Any) -> None:
    """As `write_text`, of a value as JSON."""
    write_text(path, json.dumps(value, indent=1) + "\n")


def save(figure: Figure, path: Path, dpi: int = 120) -> None:
    """As `write_text`, of a picture; the figure is closed."""
    from matplotlib import pyplot

    _whole(path, lambda part: figure.savefig(part, dpi=dpi, format=path.suffix[1:]))
    pyplot.close(figure)


def _whole(path: Path, write: Callable[[Path], object]) -> None:
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        write(part)
        part.replace(path)
    finally:
        part.unlink(missing_ok=True)
