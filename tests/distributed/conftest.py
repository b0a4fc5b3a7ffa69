"""Processes that tests of `attnops.distributed` run in: started once, used by many tests, killed where one hangs.

A test hands a module-level function to the fixture `ranks`, which runs it on so many processes of one gloo group:

    def law(group, length):                 # runs on every rank; group is the process group of these ranks
        ...
        return result                       # anything that pickles

    def test_law(ranks):
        first, second = ranks(law, 8, world=2)

What raises on a rank fails the test with that rank's traceback; ranks that do not answer in time are killed.
"""

from __future__ import annotations

import datetime
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

MOST = 4  # processes
COLLECTIVE_SECONDS = 30  # after which a collective that waits for a rank raises


def _serve(rank: int, store: str, connection: Connection) -> None:
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    timeout = datetime.timedelta(seconds=COLLECTIVE_SECONDS)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=MOST, timeout=timeout)
    groups = {world: dist.new_group(list(range(world)), timeout=timeout) for world in range(1, MOST + 1)}
    connection.send(("ready", None))
    while True:
        function, arguments, world = connection.recv()
        torch.manual_seed(0)
        try:
            connection.send(("result", function(groups[world], *arguments)))
        except BaseException:
            connection.send(("error", traceback.format_exc()))


def _quick_starts() -> Any:
    """Processes that import nothing: they are forked from one that has, once for all tests."""
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["attnops.distributed.tensor_parallel", "attnops.graph", "torch.distributed.fsdp", "torch_geometric.data"]
    )
    return context


class Ranks:
    """A pool of gloo processes, started when first asked for and again after a failure."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._started = folder, 0
        self._workers: list[tuple[Any, Connection]] = []

    def __call__(self, function: Callable[..., Any], *arguments: Any, world: int = 2, seconds: float = 60) -> list[Any]:
        """`function(group, *arguments)` on `world` processes; what each returned, in the order of ranks."""
        if not self._workers:
            self._start()
        for _, connection in self._workers[:world]:
            connection.send((function, arguments, world))
        deadline = time.monotonic() + seconds
        answers: list[Any] = [None] * world
        waiting = set(range(world))
        failure = None
        while waiting and failure is None:
            if time.monotonic() > deadline:
                failure = f"ranks {sorted(waiting)} gave no answer within {seconds:.0f} s"
            for rank in sorted(waiting):
                process, connection = self._workers[rank]
                if connection.poll(0.002):
                    try:
                        kind, value = connection.recv()
                    except EOFError:
                        failure = f"rank {rank} died with exit code {process.exitcode}"
                        break
                    waiting.discard(rank)
                    if kind == "error":
                        failure = f"rank {rank} of {world} raised:\n{value}"
                        break
                    answers[rank] = value
        if failure is not None:
            self.stop()  # the others may wait for it in a collective
            pytest.fail(failure)
        return answers

    def _start(self) -> None:
        context = _quick_starts()
        self._started += 1
        store = self._folder / f"store{self._started}"
        for rank in range(MOST):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(rank, str(store), theirs), daemon=True)
            process.start()
            theirs.close()
            self._workers.append((process, ours))
        for rank, (_, connection) in enumerate(self._workers):
            if not connection.poll(90) or connection.recv() != ("ready", None):
                self.stop()
                pytest.fail(f"rank {rank} of the pool did not start within 90 s")

    def stop(self) -> None:
        """End the processes, whatever they do."""
        for process, connection in self._workers:
            process.kill()
            process.join()
            connection.close()
        self._workers = []


@pytest.fixture(scope="session")
def ranks() -> Iterator[Ranks]:
    """Run a function on several gloo processes; see the head of this file."""
    with tempfile.TemporaryDirectory() as folder:
        pool = Ranks(Path(folder))
        yield pool
        pool.stop()
