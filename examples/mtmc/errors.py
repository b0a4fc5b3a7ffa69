"""What a user's file got wrong, in one line."""

from __future__ import annotations

from pathlib import Path


class InputError(Exception):
    """A file that cannot be used: says the file, the line, what was found and what was expected.

    >>> print(InputError("cam1.txt", 7, "a NaN box", "four finite numbers"))
    cam1.txt, line 7: found a NaN box; expected four finite numbers
    """

    def __init__(self, path: str | Path, line: int | None, found: str, expected: str) -> None:
        place = f"{path}, line {line}" if line is not None else f"{path}"
        message = f"{place}: found {found}; expected {expected}"
        line_of_text = " ".join(message.split())
        # what data say must not reach the terminal as a command to it
        super().__init__("".join(x if x.isprintable() else ascii(x)[1:-1] for x in line_of_text))
