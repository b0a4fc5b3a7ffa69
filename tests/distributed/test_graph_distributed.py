"""The divided graph under torchrun: killed, told so, started again, taken over by one process; the same loss curve."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples import graph_distributed

SMALL = ["--small", "--steps", "80", "--every", "2", "--timeout", "20"]
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
    assert len(starts) == 2 and starts[0].endswith("from step 0") and not starts[1].endswith("from step 0")
    assert printed.count("step     2  loss") == 1  # progress on rank 0 alone
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


LOOP = """
import torch
from attnops import Edges
from attnops.distributed import Partition, halo_exchange, init_processes, plan_halo

init_processes(timeout=4)
owner = torch.tensor([0, 0, 1, 1])
plan = plan_halo(Edges(torch.tensor([[0, 1, 2, 3], [1, 2, 3, 0]]), 4, 4), Partition(owner, owner, 2))
print("ready", flush=True)
while True:
    halo_exchange(torch.ones(2, 3), plan)
"""


@LINUX
@pytest.mark.parametrize("fault", [signal.SIGKILL, signal.SIGSTOP])
def test_a_lost_rank_ends_the_others_within_the_timeout(fault: signal.Signals, tmp_path: Path) -> None:
    """Without torchrun, which would end them itself."""
    (tmp_path / "loop.py").write_text(LOOP)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = str(free.getsockname()[1])
    where = {"MASTER_ADDR": "localhost", "MASTER_PORT": port, "WORLD_SIZE": "2", "PYTHONPATH": os.getcwd()}
    first, second = (start([str(tmp_path / "loop.py")], RANK=str(rank), LOCAL_RANK="0", **where) for rank in range(2))
    try:
        assert first.stdout is not None and first.stdout.readline() == "ready\n"
        time.sleep(0.2)
        os.kill(second.pid, fault)
        since = time.monotonic()
        code, printed = end(first, seconds=60)
        waited = time.monotonic() - since
    finally:
        for each in (first, second):
            each.kill()
            each.communicate()
    assert code != 0
    assert "LostRankError" in printed and "another rank ended, or did not join within the timeout" in printed, printed
    assert waited < 30, f"{waited:.0f} s, of a timeout of 4"
