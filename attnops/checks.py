"""What numbers given as arguments must be, and tensors have; errors name the argument, what it was and must be."""

from __future__ import annotations

import torch
from torch import Tensor

NUMBERS = (int, float, torch.SymInt, torch.SymFloat)


def require_number(**arguments: object) -> None:
    """Raise `TypeError` for what is not a real number, `ValueError` for NaN and infinity."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, NUMBERS):
            raise TypeError(f"{name} is {_shown(value)}; it must be a real number")
        if not -float("inf") < value < float("inf"):
            raise ValueError(f"{name} is {value}; it must be finite")
        if type(value) is int and not -(2**62) < value < 2**62:
            raise ValueError(f"{name} is {_shown(value)}; it must fit in 63 bits")


def require_positive(**arguments: object) -> None:
    """Raise `ValueError` for an argument that is not an integer of 1 or more."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value < 2**62:
            raise ValueError(f"{name} is {_shown(value)}; it must be an integer of 1 or more (and below 2^62)")


def require_count(**arguments: object) -> None:
    """Raise `ValueError` for an argument that is not an integer of 0 or more."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**62:
            raise ValueError(f"{name} is {_shown(value)}; it must be an integer of 0 or more (and below 2^62)")


def require_index(count: int, **arguments: object) -> None:
    """Raise `TypeError` for an argument that is no integer, `ValueError` for one that is not in 0 … count - 1."""
    for name, value in arguments.items():
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} is {_shown(value)}; it must be an integer")
        if not 0 <= value < count:
            raise ValueError(f"{name} is {_shown(value)}; it must be from 0 to {count - 1}")


def require_flag(**arguments: object) -> None:
    """Raise `TypeError` for an argument that is neither True nor False."""
    for name, value in arguments.items():
        if not isinstance(value, bool):
            raise TypeError(f"{name} is {_shown(value)}; it must be True or False")


def _shown(value: object) -> str:
    """A value as an error names it: a tensor by its kind, what is long by its type."""
    text = repr(value)
    return f"a {type(value).__name__}" if isinstance(value, torch.Tensor) or len(text) > 40 else text


def has_memory(tensor: Tensor) -> bool:
    """Whether a plain tensor has numbers in memory: not where its storage was resized to 0."""
    return tensor.untyped_storage().nbytes() > 0
