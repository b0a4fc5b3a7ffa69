"""Seeds side by side, one process a core, with one progress bar over all of them.

Each finished seed is kept in a folder, under a key of its settings and of the code. A run that finds it there uses it,
so a run that was killed goes on where it was.
"""

from __future__ import annotations

import multiprocessing
import os
import queue
import threading
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import partial
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.mtmc.experiment import STAGES, Outcome, Size, run_seed
from examples.mtmc.kept import keep, key, recall
from examples.mtmc.scoring.evaluate import Protocol

Report = Callable[[str], None]
Run = Callable[[int, Size, Protocol, Report], Outcome]


def run_seeds(
    seeds: list[int],
    size: Size,
    protocol: Protocol,
    console: Console,
    workers: int | None,
    work: Path | None = None,
    run: Run | None = None,
    stages: int = STAGES,
) -> list[Outcome]:
    """Outcomes in the order of the seeds; the numbers do not depend on the number of workers.

    ``work`` is the folder where finished seeds are kept and looked for; None keeps nothing. ``run`` makes the outcome
    of a seed in so many ``stages``; None is ``run_seed``.
    """
    run = run or run_seed
    if work is not None:
        work.mkdir(parents=True, exist_ok=True)  # fails now rather than after the first seed
    found = _finished(seeds, size, protocol, work, console, run)
    missing = [seed for seed in seeds if seed not in found]
    workers = min(workers or available_cores(), max(len(missing), 1))
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as progress:
        task = progress.add_task("starting", total=len(missing) * stages)

        def told(seed: int, stage: str) -> None:
            progress.update(task, advance=1, description=f"seed {seed}: {stage}")

        if workers == 1:
            for seed in missing:
                found[seed] = _one(seed, size, protocol, work, partial(told, seed), run)
            return [found[seed] for seed in seeds]
        context = multiprocessing.get_context("spawn")
        news, others = context.Queue(), set(multiprocessing.active_children())
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_begin, initargs=(news,)) as pool:
            jobs = {seed: pool.submit(_in_worker, seed, size, protocol, work, run) for seed in missing}
            try:
                pending = set(jobs.values())
                while pending:
                    done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    while True:
                        try:
                            told(*news.get_nowait())
                        except queue.Empty:
                            break
                    for job in done:
                        job.result()  # raises what a worker raised, at once
            except BaseException:
                for process in set(multiprocessing.active_children()) - others:
                    process.kill()  # what they keep appears whole or not at all
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            found |= {seed: job.result() for seed, job in jobs.items()}
            return [found[seed] for seed in seeds]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _place(work: Path, seed: int, size: Size, protocol: Protocol, run: Run) -> Path:
    return work / f"seed-{seed}-{key(seed, size, protocol, run.__name__)}.npz"


def _finished(
    seeds: list[int], size: Size, protocol: Protocol, work: Path | None, console: Console, run: Run
) -> dict[int, Outcome]:
    """Outcomes that an earlier run of the same code and settings kept; a damaged one is as good as none."""
    found: dict[int, Outcome] = {}
    if work is None:
        return found
    for seed in seeds:
        path = _place(work, seed, size, protocol, run)
        try:
            outcome = recall(path)
            if not isinstance(outcome, Outcome) or outcome.seed != seed:
                raise ValueError(f"{path} holds no outcome of seed {seed}")
            found[seed] = outcome
        except FileNotFoundError:
            continue
        except ValueError:
            console.print(f"Seed {seed}: what was kept of it is damaged; it is done again", soft_wrap=True)
    if found:
        names = ", ".join(map(str, found))
        console.print(f"Finished in an earlier run and not done again: seed(s) {names}", soft_wrap=True)
    return found


_news: Any = None  # of a worker process: where it tells how far it is


def _begin(news: Any) -> None:
    global _news
    _news = news
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed would wait for work for ever."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)


def _in_worker(seed: int, size: Size, protocol: Protocol, work: Path | None, run: Run) -> Outcome:
    return _one(seed, size, protocol, work, lambda stage: _news.put((seed, stage)), run)


def _one(seed: int, size: Size, protocol: Protocol, work: Path | None, report: Report, run: Run) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, whatever else runs
    try:
        outcome = run(seed, size, protocol, report)
    finally:
        torch.set_num_threads(threads)
    if work is not None:
        place = _place(work, seed, size, protocol, run)
        for old in place.parent.glob(f"seed-{seed}-*.npz"):
            old.unlink(missing_ok=True)  # of other settings or other code
        keep(place, outcome)
    return outcome
