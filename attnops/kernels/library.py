"""The compiled library: found beside this file, loaded once, told whose threads to use."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from attnops.checks import has_memory

INTERFACE = 2  # of csrc/interface.h
# Another build may be named, such as one with sanitizers; or none, by a path where nothing is.
PATH = Path(os.environ.get("ATTNOPS_LIBRARY") or Path(__file__).with_name("libattnops.so"))
LEVELS = ("plain", "x86-64-v2", "x86-64-v3", "x86-64-v4")


class Rows(ctypes.Structure):
    """Rows of a `[B, H, N, D]` tensor whose last axis is contiguous: its pointer, and strides in elements."""

    _fields_ = (("data", ctypes.c_void_p), ("batch", ctypes.c_int64), ("head", ctypes.c_int64), ("row", ctypes.c_int64))

    @classmethod
    def of(cls, tensor: Tensor | None) -> Rows:
        """The rows of a tensor, or of none; the tensor must outlive the call."""
        if tensor is None:
            return cls(None, 0, 0, 0)
        batch, head, row = tensor.stride()[:3]
        return cls(address(tensor), batch, head, row)


def address(tensor: Tensor) -> int:
    """Where a tensor lies.

    Raises:
        RuntimeError: nowhere: its memory was given back (`untyped_storage().resize_(0)`).
    """
    if tensor.numel() > 0 and not has_memory(tensor):
        raise RuntimeError(f"a tensor of shape {list(tensor.shape)} has no memory: its storage was resized to 0")
    return tensor.data_ptr()


def pointer(tensor: Tensor | None) -> int | None:
    """Where a contiguous tensor lies; None for none."""
    return None if tensor is None else address(tensor)


def readable_rows(tensor: Tensor) -> Tensor:
    """The tensor itself where its last axis is contiguous, else a copy that is."""
    return tensor if tensor.shape[-1] <= 1 or tensor.stride(-1) == 1 else tensor.contiguous()


def load() -> Any:
    """The library.

    Raises:
        OSError: it was not built, or for another interface; `unavailable` says so in words.
    """
    if _LIBRARY is None:
        raise OSError(_REASON)
    return _LIBRARY


def unavailable() -> str | None:
    """Why the library cannot be used, in words; None where it can."""
    return _REASON


def _openmp_of_torch() -> int | None:
    """OpenMP's entry as torch sees it, so that torch's threads are used and no others; None where it has none."""
    try:
        torch_library = ctypes.CDLL(torch._C.__file__)
        return ctypes.cast(torch_library.GOMP_parallel, ctypes.c_void_p).value
    except (OSError, AttributeError):
        return None


def _open() -> tuple[Any, str | None]:
    """The library, or None and why, in words."""
    if not PATH.exists():
        if os.environ.get("ATTNOPS_LIBRARY"):
            return None, f"ATTNOPS_LIBRARY names {PATH}, where nothing is"
        return None, (
            "the compiled kernels are not in this installation; they are built where a C++17 compiler (g++ 12 or "
            "clang 12 and newer) is found: install one, then reinstall attnops from source"
        )
    try:
        library = ctypes.CDLL(str(PATH))
        interface = library.attnops_interface()
    except (OSError, AttributeError) as error:
        return None, f"the compiled kernels do not load ({error}); reinstall attnops from source"
    if interface != INTERFACE:
        return None, "the compiled kernels are of another version of attnops; reinstall it from source"
    library.attnops_set_openmp.argtypes = [ctypes.c_void_p]
    library.attnops_set_openmp.restype = None
    library.attnops_set_openmp(_openmp_of_torch())
    return library, None


# Opened now, not when first asked for: a traced function cannot.
_LIBRARY, _REASON = _open()


def level() -> str:
    """The vector level in use."""
    return LEVELS[load().attnops_level()]


def levels() -> tuple[str, ...]:
    """The vector levels that this machine has, the widest last; the widest is used unless another is chosen."""
    before = level()
    has = tuple(name for place, name in enumerate(LEVELS) if load().attnops_set_level(place) == place)
    use_level(before)
    return has


def use_level(name: str) -> None:
    """Take another vector level, for all threads; for tests.

    Raises:
        ValueError: no level of this machine.
    """
    place = LEVELS.index(name) if name in LEVELS else -1
    if load().attnops_set_level(place) != place:
        raise ValueError(f"level is {name!r}; it must be one of {', '.join(levels())}")


def require_size(name: str, structure: type[ctypes.Structure]) -> None:
    """Give the library up where its structure is not the one that Python fills: it is of other sources."""
    global _LIBRARY, _REASON
    if _LIBRARY is None:
        return
    size = getattr(_LIBRARY, f"{name}_size", None)
    if size is not None:
        size.restype = ctypes.c_int64
    if size is None or size() != ctypes.sizeof(structure):
        _LIBRARY, _REASON = None, "the compiled kernels are of another version of attnops; reinstall it from source"


def call(name: str, structure: ctypes.Structure) -> None:
    """Run one of the library's functions.

    Raises:
        MemoryError: it found no memory.
    """
    if getattr(load(), name)(ctypes.byref(structure)) != 0:
        raise MemoryError(f"{name} found no memory for its scratch space")


def threads() -> int:
    """As many as torch uses."""
    return torch.get_num_threads()
