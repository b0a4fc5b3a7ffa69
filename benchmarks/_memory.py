"""How much memory a call takes above what was held before it."""

from __future__ import annotations

import ctypes
import gc
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

HIGH_WATER = Path("/proc/self/clear_refs")


def peak_bytes(run: Callable[[], Any]) -> int:
    """The process' largest resident size while `run` runs, less that before: torch's tensors and everybody's scratch.

    Linux alone. What the allocator kept from before is handed back first, so that it is counted if it is used. Let it
    have run before, so that what is made once is made.
    """
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    HIGH_WATER.write_text("5")
    before = _resident("VmRSS")
    run()
    return max(1, _resident("VmHWM") - before)


def _resident(name: str) -> int:
    found = re.search(rf"^{name}:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024
