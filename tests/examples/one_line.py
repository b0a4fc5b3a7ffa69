"""What every error of a user's file looks like."""

from __future__ import annotations

from pathlib import Path


def assert_one_line(message: str, path: Path, line: int | None, expected: str) -> None:
    assert "\n" not in message
    assert message.startswith(str(path)), message
    assert line is None or f", line {line}:" in message, message
    assert "; expected " in message and expected in message, message
