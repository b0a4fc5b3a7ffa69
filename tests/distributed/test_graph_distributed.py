"""The divided graph under torchrun: killed, told so, started again, taken over by one process; the same loss curve."""

from __future__ import annotations

import datetime
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path

import pytest
import torch
import torch.distributed as dist

from attnops import Edges
from attnops.distributed import LostRankError, Partition, halo_exchange, init_processes, plan_halo
from examples import graph_distributed

SMALL = ["--small", "--steps", "80", "--every", "2", "--timeout", "20"]
TIMEOUT = 3  # of the process group, where a rank is lost
SECONDS = 120  # of one start, on a busy machine
LINUX = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes to kill in /proc")


def start(arguments: list[str], **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", **environment},
        start_new_session=True,
    )


def wait_until(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.01)


def end(running: subprocess.Popen[str], seconds: float = SECONDS) -> tuple[int, str]:
    try:
        printed, _ = running.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        pytest.fail("the run did not end: " + running.communicate()[0])
    return running.returncode, printed


def workers(torchrun: subprocess.Popen[str]) -> list[int]:
    """The processes that torchrun started, by rank."""
    children = Path(f"/proc/{torchrun.pid}/task/{torchrun.pid}/children").read_text().split()
    return [int(child) for child in children]


def steps_saved(folder: Path) -> int:
    return max((int(path.name[5:11]) for path in folder.glob("step-*") if path.suffix == ""), default=0)


@LINUX
def test_killed_restarted_and_taken_over_it_equals_one_process(tmp_path: Path) -> None:
    want = graph_distributed.main([*SMALL, "--out", str(tmp_path / "one")])
    assert len(want) == 80 and want[-1] < 0.1 * want[0]

    torchrun = ["-m", "torch.distributed.run", "--nproc-per-node", "2", "--max-restarts", "1"]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0"]
    running = start([*torchrun, "-m", "examples.graph_distributed", *SMALL, "--out", str(tmp_path / "two")])
    # The first time torchrun starts both anew, and they go on; the second time it ends them.
    wait_until(lambda: steps_saved(tmp_path / "two") >= 2, running)
    first = workers(running)
    os.kill(first[1], signal.SIGKILL)
    before = steps_saved(tmp_path / "two")
    wait_until(lambda: steps_saved(tmp_path / "two") > before + 4, running)
    os.kill(max(workers(running)), signal.SIGKILL)
    code, printed = end(running)
    assert code != 0 and "Signal 9 (SIGKILL)" in printed
    starts = [line for line in printed.splitlines() if "processes, from step" in line]
    assert len(starts) == 2  # progress on rank 0 alone
    assert starts[0].endswith("from step 0") and not starts[1].endswith("from step 0")
    left = steps_saved(tmp_path / "two")
    assert left < 80

    # One process takes over.
    got = graph_distributed.main([*SMALL, "--out", str(tmp_path / "two")])
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-5, atol=0)
    held = json.loads((tmp_path / "two" / "step-000080" / "run.json").read_text())
    assert held["losses"] == got and not list((tmp_path / "two").glob("*.part"))


def test_other_settings_are_refused(tmp_path: Path) -> None:
    short = ["--small", "--steps", "2", "--out", str(tmp_path)]
    graph_distributed.main(short)
    with pytest.raises(ValueError, match="seed = 0, not 1"):
        graph_distributed.main([*short, "--seed", "1"])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--steps", "0"], "--steps: is '0'; it must be an integer of 1 or more"),
        (["--every", "-1"], "--every: is '-1'"),
        (["--dim", "6"], "--dim is 6; it must be a multiple of 4"),
    ],
)
def test_bad_arguments(arguments: list[str], words: str, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        graph_distributed.main(arguments)
    assert words in capfd.readouterr().err


@pytest.mark.parametrize("timeout", [0, -1, float("nan")])
def test_a_timeout_that_is_none(timeout: float) -> None:
    with pytest.raises(ValueError, match=r"timeout is .*it must be"):
        init_processes(timeout)


def exchange_for_ever(rank: int, store: str, connection: Connection) -> None:
    """A rank that says what ended it."""
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=2, timeout=datetime.timedelta(seconds=TIMEOUT)
    )
    owner = torch.tensor([0, 0, 1, 1])
    plan = plan_halo(Edges(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), 4, 4), Partition(owner, owner, 2))
    connection.send("ready")
    try:
        while True:
            halo_exchange(torch.ones(2, 3), plan)
    except LostRankError as error:
        connection.send(str(error))


@LINUX
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_the_others_within_the_timeout(fault: signal.Signals, tmp_path: Path) -> None:
    """Without torchrun, which would end them itself."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["attnops.distributed"])
    ours, theirs = zip(*(context.Pipe() for _ in range(2)), strict=True)
    first, second = (
        context.Process(target=exchange_for_ever, args=(rank, str(tmp_path / "store"), theirs[rank]), daemon=True)
        for rank in range(2)
    )
    try:
        for each in (first, second):
            each.start()
        for connection in ours:
            assert connection.poll(SECONDS) and connection.recv() == "ready"
        time.sleep(0.1)
        assert second.pid is not None
        os.kill(second.pid, fault)
        since = time.monotonic()
        assert ours[0].poll(TIMEOUT + 20), "the other rank waits on"
        said, waited = ours[0].recv(), time.monotonic() - since
    finally:
        for each in (first, second):
            each.kill()
            each.join()
    assert "another rank ended, or did not join within the timeout of the process group" in said
    assert waited > TIMEOUT - 1 if fault == signal.SIGSTOP else True
