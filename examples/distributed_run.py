"""The folder of a run over several processes: its whole checkpoints, and that no two runs write into it at once."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import torch.distributed as dist

from attnops.distributed import agree


def positive(text: str) -> int:
    """An argument."""
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError(f"is {text!r}; it must be an integer of 1 or more")
    return int(text)


def checkpoints(folder: Path) -> list[Path]:
    """The whole ones, the last one last: run.json is written when all processes have written their shares."""
    return sorted(path.parent for path in folder.glob("step-*/run.json") if path.parent.suffix != ".part")


@contextmanager
def claim(folder: Path, settings: Mapping[str, object], device: str) -> Iterator[None]:
    """Rank 0 locks the folder within the context; the system lets go of it when the process dies.

    Raises:
        ValueError, DisagreementError: another run is at work there; processes of other settings.
    """
    refusal = None
    with (folder / "lock").open("a") as lock:
        try:
            import fcntl

            if dist.get_rank() == 0:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except ImportError:  # no POSIX: nothing holds two runs apart
            pass
        except OSError:
            refusal = ValueError(f"another run is writing into {folder}; name another folder by --out")
        agree("train", settings, refusal=refusal, device=device)
        yield
