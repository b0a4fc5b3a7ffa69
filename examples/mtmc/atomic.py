"""Results appear whole or not at all: they are written beside their place and renamed into it.

A run that was killed leaves its draft, ``.NAME.RANDOM.part``, behind. A run holds a lock on its draft as long as it
lives, so that the next run knows whose are dead, and sweeps them.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

WORK = ".work"  # in a folder of results: what an unfinished run is resumed from


@contextmanager
def results(out: Path, last: str = "summary.json") -> Iterator[Path]:
    """A temporary sibling of ``out`` to write into; its files move into ``out`` once the block ends without an error.

    A new ``out`` (or one that holds ``WORK`` alone) appears by one rename. In one that exists, an empty one too (it may
    be a mount, or where somebody's shell stands), each file is replaced by one rename; ``last`` is taken away before
    and comes at the end, so that where it is, everything else belongs to it.
    Files of others in ``out`` are left alone.
    """
    out = out.resolve()
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out: {out} is a file; it must be a folder, or not exist yet")
    _make_parent(out)
    sweep(out)
    draft, lock = _folder(out)
    try:
        yield draft
        work = out / WORK
        if not out.exists() or (os.listdir(out) == [WORK] and out != Path.cwd()):
            if work.exists():
                work.rename(draft / WORK)
            draft.rename(out)  # over the folder that is empty now, too
            return
        files = [path.relative_to(draft) for path in draft.rglob("*") if path.is_file()]
        (out / last).unlink(missing_ok=True)
        for name in sorted(files, key=lambda name: (str(name) == last, str(name))):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft / name, out / name)
    except OSError as error:
        raise _named(error, out) from None
    except sqlite3.OperationalError as error:  # a full disk, to a table
        raise OSError(f"{out}: {error}") from None
    finally:
        os.close(lock)
        shutil.rmtree(draft, ignore_errors=True)


@contextmanager
def replaced(path: Path) -> Iterator[Path]:
    """A temporary sibling of a file to write; it takes the file's place once the block ends without an error."""
    path = path.resolve()
    if path.is_dir():
        raise IsADirectoryError(f"--out: {path} is a folder; it must be a file")
    _make_parent(path)
    sweep(path)
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", suffix=".part", dir=path.parent)
    draft = Path(name)
    try:
        _lock(handle)
        draft.chmod(0o644)
        yield draft
        os.replace(draft, path)
    except OSError as error:
        raise _named(error, path) from None
    finally:
        os.close(handle)
        draft.unlink(missing_ok=True)


def _make_parent(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except (FileExistsError, NotADirectoryError):
        raise NotADirectoryError(f"--out: {path} cannot be made: a folder above it is a file") from None


def _named(error: OSError, path: Path) -> OSError:
    """A full disk says no name: the one that was asked for."""
    if error.errno is not None and error.filename is None:
        error.filename = str(path)
    return error


def sweep(path: Path) -> None:
    """Take away the drafts of ``path`` that runs which are no more left behind."""
    for draft in path.parent.glob(f".{_literal(path.name)}.*.part"):
        if draft.is_symlink() or "." in draft.name.removeprefix(f".{path.name}.").removesuffix(".part"):
            continue  # of another path, whose name begins like ours
        try:
            handle = os.open(draft, os.O_RDONLY)
        except OSError:
            continue
        try:
            if _lock(handle):
                shutil.rmtree(draft) if draft.is_dir() else draft.unlink(missing_ok=True)
        except OSError:
            pass  # not ours to take away
        finally:
            os.close(handle)


def _folder(out: Path) -> tuple[Path, int]:
    while True:
        try:
            draft = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
        except OSError as error:
            error.filename = str(out)  # what was asked for, not the draft's name
            raise
        lock = os.open(draft, os.O_RDONLY)
        if _lock(lock) and draft.exists():  # not swept by another run before it was locked
            draft.chmod(0o755)
            return draft, lock
        os.close(lock)


def _literal(name: str) -> str:
    return "".join(f"[{letter}]" if letter in "*?[" else letter for letter in name)


def _lock(handle: int) -> bool:
    """Take the lock that ends with the process; False where a live run holds it."""
    if sys.platform == "win32":  # no such locks: nothing is swept there
        return True
    import fcntl

    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
