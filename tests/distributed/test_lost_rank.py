"""A rank that is killed, or hangs, in the middle of training ends the others with an error that says so."""

from __future__ import annotations

import datetime
import multiprocessing
import os
import signal
import time
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

import attnops
from attnops.distributed import LostRankError, context_attend

TIMEOUT = 3  # seconds, of the process group


def train_for_ever(rank: int, store: str, connection: Connection) -> None:
    """A rank that says what ended it."""
    torch.set_num_threads(1)
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=TIMEOUT)
    )
    x = torch.randn(1, 2, 64, 8, requires_grad=True)
    steps = 0
    try:
        while True:
            out = context_attend(x, x, x, pattern=attnops.Causal(), order="zigzag")
            assert isinstance(out, torch.Tensor)
            out.sum().backward()  # type: ignore[no-untyped-call]
            steps += 1
            if steps == 3:
                connection.send("ready")
    except LostRankError as error:
        connection.send(str(error))


@pytest.mark.skipif(
    "forkserver" not in multiprocessing.get_all_start_methods(), reason="stops processes by signals of POSIX"
)
@pytest.mark.parametrize("fault", ["SIGKILL", "SIGSTOP"])
def test_a_lost_rank_ends_the_others_within_the_timeout(fault: str, tmp_path: Path) -> None:
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attnops.distributed"])
    ours, theirs = zip(*(context.Pipe() for _ in range(2)), strict=True)
    workers = [
        context.Process(target=train_for_ever, args=(rank, str(tmp_path / "store"), theirs[rank]), daemon=True)
        for rank in range(2)
    ]
    try:
        for worker in workers:
            worker.start()
        for connection in ours:
            assert connection.poll(120) and connection.recv() == "ready"
        assert workers[1].pid is not None
        os.kill(workers[1].pid, getattr(signal, fault))
        since = time.monotonic()
        assert ours[0].poll(TIMEOUT + 30), "the other rank waits on"
        said, waited = ours[0].recv(), time.monotonic() - since
    finally:
        for worker in workers:
            worker.kill()
            worker.join()
    assert "another rank ended, or did not join within the timeout of the process group" in said
    assert waited < TIMEOUT + 20
