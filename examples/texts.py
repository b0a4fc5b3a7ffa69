"""Texts that examples are given on the command line."""

from __future__ import annotations

import gzip
from pathlib import Path


def read(path: Path) -> str:
    """The text of a file, zipped or not; a run without it ends, saying why."""
    try:
        held = path.read_bytes()
        return (gzip.decompress(held) if path.suffix == ".gz" else held).decode()
    except (OSError, EOFError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) and error.strerror else "it is no text in UTF-8"
        raise SystemExit(f"error: {path} cannot be read: {reason}") from None


def require_characters(text: str, least: int) -> None:
    """End the run, saying why, where a text is too short to be cut into what is asked for."""
    if len(text) < least:
        raise SystemExit(f"error: the text has {len(text)} characters; it must have {least} or more")
