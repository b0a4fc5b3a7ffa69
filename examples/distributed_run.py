"""The folder of a run over several processes: its checkpoints, and that no two runs write into it at once."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from attnops.distributed import agree

KEPT = 2  # checkpoints: the last one, and the one before


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


def keep(
    folder: Path,
    model: torch.nn.Module,
    optimizer: torch.optim.Optimizer,
    losses: list[float],
    settings: Mapping[str, object],
) -> None:
    """A checkpoint after the last of `losses`: all processes write their shares, and it gets its name when all have."""
    path = folder / f"step-{len(losses):06}"
    part = path.with_suffix(".part")
    if dist.get_rank() == 0:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(parents=True)
    dist.barrier()
    of_model, of_optimizer = get_state_dict(model, optimizer)
    save({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=part)
    if dist.get_rank() == 0:
        (part / "run.json").write_text(json.dumps({"losses": losses, "settings": settings}), encoding="utf-8")
        shutil.rmtree(path, ignore_errors=True)
        part.rename(path)
        for old in checkpoints(folder)[:-KEPT]:
            shutil.rmtree(old)
    dist.barrier()


def resume(
    folder: Path, model: torch.nn.Module, optimizer: torch.optim.Optimizer, settings: Mapping[str, object]
) -> list[float]:
    """Model and optimizer get what the last whole checkpoint holds, whatever number of processes wrote it.

    Returns:
        The losses until then; none where there is no checkpoint.

    Raises:
        ValueError: a run of other settings.
    """
    found = checkpoints(folder)
    if not found:
        return []
    held: dict[str, Any] = json.loads((found[-1] / "run.json").read_text(encoding="utf-8"))
    for name, mine in settings.items():
        theirs = held["settings"].get(name)
        if theirs != mine:
            raise ValueError(f"{found[-1]} is of {name} = {theirs!r}, not {mine!r}; name another folder by --out")
    of_model, of_optimizer = get_state_dict(model, optimizer)
    load({"model": of_model, "optimizer": of_optimizer}, checkpoint_id=found[-1])
    set_state_dict(model, optimizer, model_state_dict=of_model, optim_state_dict=of_optimizer)
    return list(held["losses"])
