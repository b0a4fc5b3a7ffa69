"""Folders of intermediate rows: gone when nothing refers to them, and when the process that made them was killed."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from pathlib import Path

try:
    import fcntl
except ImportError:  # not a POSIX system: nothing is locked there, and nothing left behind is removed
    fcntl = None  # type: ignore[assignment]

LOCK = "owner.lock"  # held for as long as the process lives that works in the folder; the system lets go of it


def make_scratch(parent: Path, prefix: str) -> tuple[Path, int | None]:
    """A new folder `PREFIX…` in `parent`, and its lock.

    It gets its name when the lock is held, so that no other process takes it for one that was left behind.
    """
    draft = Path(tempfile.mkdtemp(prefix=f"new-{prefix}", dir=parent))
    lock = None
    if fcntl is not None:
        lock = os.open(draft / LOCK, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(lock, fcntl.LOCK_EX)
    folder = draft.with_name(draft.name.removeprefix("new-"))
    draft.rename(folder)
    return folder, lock


def remove_with(owner: object, folder: Path, lock: int | None) -> None:
    """Remove the folder when nothing refers to `owner`."""
    weakref.finalize(owner, _remove, folder, lock)


def remove_stale(parent: Path, prefix: str) -> None:
    """Remove folders of that prefix whose process is gone: their lock can be had."""
    for path in parent.glob(f"{prefix}*/{LOCK}") if fcntl is not None else ():
        try:
            lock = os.open(path, os.O_RDWR | os.O_NOFOLLOW)
        except OSError:  # gone meanwhile, or another user's
            continue
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(path.parent, ignore_errors=True)
        except OSError:  # held: its process lives
            pass
        finally:
            os.close(lock)


def _remove(folder: Path, lock: int | None) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    if lock is not None:
        os.close(lock)
