"""Seeds side by side, one process a core, with one progress bar over all of them."""

from __future__ import annotations

import multiprocessing
import os
import queue
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from typing import Any

import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

from examples.mtmc.experiment import STAGES, Outcome, Size, run_seed
from examples.mtmc.scoring.evaluate import Protocol


def run_seeds(seeds: list[int], size: Size, protocol: Protocol, console: Console, workers: int | None) -> list[Outcome]:
    """Outcomes in the order of the seeds; the numbers do not depend on the number of workers."""
    workers = workers or min(len(seeds), available_cores())
    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("starting", total=len(seeds) * STAGES)

        def told(seed: int, stage: str) -> None:
            progress.update(task, advance=1, description=f"seed {seed}: {stage}")

        if workers == 1:
            return [_one(seed, size, protocol, lambda stage, seed=seed: told(seed, stage)) for seed in seeds]
        context = multiprocessing.get_context("spawn")
        news, others = context.Queue(), set(multiprocessing.active_children())
        with ProcessPoolExecutor(workers, mp_context=context, initializer=_hear, initargs=(news,)) as pool:
            runs = [pool.submit(_in_worker, seed, size, protocol) for seed in seeds]
            try:
                pending = set(runs)
                while pending:
                    done, pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED)
                    while True:
                        try:
                            told(*news.get_nowait())
                        except queue.Empty:
                            break
                    for run in done:
                        run.result()  # raises what a worker raised, at once
            except BaseException:
                for process in set(multiprocessing.active_children()) - others:
                    process.kill()  # nothing of theirs is kept: they write no files
                pool.shutdown(wait=False, cancel_futures=True)
                raise
            return [run.result() for run in runs]


def available_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


_news: Any = None  # of a worker process: where it tells how far it is


def _hear(news: Any) -> None:
    global _news
    _news = news


def _in_worker(seed: int, size: Size, protocol: Protocol) -> Outcome:
    return _one(seed, size, protocol, lambda stage: _news.put((seed, stage)))


def _one(seed: int, size: Size, protocol: Protocol, report: Any) -> Outcome:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # the same sums in the same order, whatever else runs
    try:
        return run_seed(seed, size, protocol, report)
    finally:
        torch.set_num_threads(threads)
