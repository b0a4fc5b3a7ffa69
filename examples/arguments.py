"""What an argument on the command line must be."""

from __future__ import annotations

import argparse


def positive(text: str) -> int:
    """An integer of 1 or more."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be an integer of 1 or more")
    return int(text)
