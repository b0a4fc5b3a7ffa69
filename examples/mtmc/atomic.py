"""Results appear whole or not at all: they are written beside their place and renamed into it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def results(out: Path, last: str = "summary.json") -> Iterator[Path]:
    """A temporary sibling of ``out`` to write into; its files move into ``out`` once the block ends without an error.

    A new ``out`` appears by one rename. In one that exists each file is replaced by one rename, ``last`` at the end,
    so that a summary never speaks of files that are not there. Files of others in ``out`` are left alone.
    """
    out = out.resolve()
    if out.exists() and not out.is_dir():
        raise NotADirectoryError(f"--out: {out} is a file; it must be a folder, or not exist yet")
    out.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".part", dir=out.parent))
    draft.chmod(0o755)
    try:
        yield draft
        if not out.exists():
            draft.rename(out)
            return
        files = [path.relative_to(draft) for path in draft.rglob("*") if path.is_file()]
        for name in sorted(files, key=lambda name: (str(name) == last, str(name))):
            (out / name).parent.mkdir(parents=True, exist_ok=True)
            os.replace(draft / name, out / name)
    finally:
        shutil.rmtree(draft, ignore_errors=True)
