"""Run the example's commands in processes of their own that are killed, at a named call or by the clock."""

from __future__ import annotations

import functools
import importlib
import multiprocessing
import os
import signal
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

# One server imports everything once; each command is a fork of it.
CONTEXT = multiprocessing.get_context("forkserver")
CONTEXT.set_forkserver_preload(["examples.mtmc.cli", "examples.mtmc.track", "examples.mtmc.demo", "trackeval"])


@dataclass(frozen=True)
class At:
    """Before the ``call``-th call of a function (``module:name``), or with ``after`` once it is done, send ``sig``."""

    place: str
    call: int = 1
    after: bool = False
    sig: int = signal.SIGKILL


def begin(arguments: list[str | Path], at: At | None = None, said: Path | None = None, limit: int = 0) -> BaseProcess:
    """Start a command; ``said``: where its error stream goes, ``limit``: the most bytes a file may have."""
    process = CONTEXT.Process(target=_run, args=([str(x) for x in arguments], at, said, limit), daemon=False)
    process.start()
    return process


def finish(arguments: list[str | Path], at: At | None = None, said: Path | None = None, limit: int = 0) -> int:
    """Run a command and return its exit code; minus the signal that killed it."""
    process = begin(arguments, at, said, limit)
    process.join(100)
    assert process.exitcode is not None, "it hangs"
    return process.exitcode


def _run(arguments: list[str], at: At | None, said: Path | None, limit: int) -> None:
    import torch

    from examples.mtmc import cli, demo, kept
    from examples.mtmc.experiment import Size

    os.setsid()
    torch.set_num_threads(1)
    demo.SMALL = Size(training_minutes=2.0, test_minutes=1.0, per_minute=4.0, steps=1)  # type: ignore[attr-defined]
    kept._code = lambda: ""  # type: ignore[assignment]  # sources may change while tests run, in a shared tree
    out = os.open(said or os.devnull, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(out, 1)
    os.dup2(out, 2)
    sys.stdout, sys.stderr = (os.fdopen(os.dup(n), "w", buffering=1) for n in (1, 2))
    if limit:
        import resource

        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    if at:
        _arm(at)
    sys.argv = ["mtmc", *arguments]
    cli.main()


def _arm(at: At) -> None:
    module, name = at.place.split(":")
    owner: Any = importlib.import_module(module)
    *path, last = name.split(".")
    for part in path:
        owner = getattr(owner, part)
    real: Callable[..., Any] = getattr(owner, last)
    calls = 0

    @functools.wraps(real)
    def counted(*arguments: Any, **named: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls != at.call:
            return real(*arguments, **named)
        result = real(*arguments, **named) if at.after else None
        signal.raise_signal(at.sig)
        return result

    setattr(owner, last, counted)


def alive(group: int) -> list[int]:
    """Processes of a process group that still run, zombies not counted (Linux)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            state, _, pgrp = (entry / "stat").read_text().rpartition(")")[2].split()[:3]
        except (OSError, ValueError):
            continue
        if int(pgrp) == group and state != "Z":
            found.append(int(entry.name))
    return found
