"""The divided language model under torchrun: killed, told so, started with other numbers of processes; one curve."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from examples import lm_distributed

SMALL = ["--small", "--dim", "16", "--rows", "2", "--timeout", "20"]
STEPS, EVERY = 20, 5  # of --small
SECONDS = 120  # of one start, on a busy machine


def losses(folder: Path) -> list[float]:
    held: list[float] = json.loads((folder / f"step-{STEPS:06}" / "run.json").read_text())["losses"]
    return held


@pytest.fixture(scope="module")
def one_process(tmp_path_factory: pytest.TempPathFactory) -> list[float]:
    threads = torch.get_num_threads()
    folder = tmp_path_factory.mktemp("one")
    run = lm_distributed.main([*SMALL, "--out", str(folder)])
    torch.set_num_threads(threads)
    assert losses(folder) == run and len(run) == STEPS
    return run


def launch(folder: Path, processes: int, restarts: int = 0, steps: int = STEPS) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", str(restarts)]
    arguments = [*torchrun, "-m", "examples.lm_distributed", *SMALL, "--out", str(folder)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    return subprocess.Popen(
        arguments, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def children(process: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{process}/task/{process}/children").read_text().split()]


def wait_until(condition: Callable[[], bool], running: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert running.poll() is None, running.communicate()[0]
        assert time.monotonic() < deadline, "nothing happened"
        time.sleep(0.02)


def end(running: subprocess.Popen[str]) -> tuple[int, str]:
    try:
        printed, _ = running.communicate(timeout=SECONDS)
    except subprocess.TimeoutExpired:
        os.killpg(running.pid, signal.SIGKILL)
        pytest.fail("the run did not end: " + running.communicate()[0])
    return running.returncode, printed


def close(got: list[float], want: list[float]) -> None:
    torch.testing.assert_close(torch.tensor(got), torch.tensor(want), rtol=1e-4, atol=1e-4)


def saved(folder: Path, least: int) -> bool:
    return any(int(path.name[5:11]) >= least and path.suffix == "" for path in folder.glob("step-*"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes to kill in /proc")
def test_killed_resumed_and_restarted_it_equals_one_process(one_process: list[float], tmp_path: Path) -> None:
    # Two processes; one is killed behind the first checkpoint, and all end with an error.
    running = launch(tmp_path, 2)
    wait_until(lambda: saved(tmp_path, EVERY), running)
    os.kill(children(running.pid)[-1], signal.SIGKILL)
    code, printed = end(running)
    assert code != 0
    assert not saved(tmp_path, STEPS)
    assert "Signal 9 (SIGKILL)" in printed  # torchrun names the rank that died

    # Three go on from its checkpoint; one is killed again, and torchrun starts all three anew.
    running = launch(tmp_path, 3, restarts=1)
    wait_until(lambda: saved(tmp_path, 2 * EVERY), running)
    os.kill(children(running.pid)[0], signal.SIGKILL)
    code, printed = end(running)
    assert code == 0, printed
    starts = [line for line in printed.splitlines() if "processes, from step" in line]
    assert len(starts) == 2 and all(line.startswith("3 processes, from step") for line in starts)
    assert all(not line.endswith("from step 0") for line in starts)
    assert printed.count(f"step    {STEPS}  loss") == 1  # progress on rank 0 alone
    close(losses(tmp_path), one_process)

    # One process reads what three wrote.
    again = lm_distributed.main([*SMALL, "--out", str(tmp_path)])
    assert again == losses(tmp_path)


def test_other_settings_are_refused(one_process: list[float], tmp_path: Path) -> None:
    lm_distributed.main([*SMALL, "--out", str(tmp_path)])
    with pytest.raises(ValueError, match="seed = 0, not 1"):
        lm_distributed.main([*SMALL, "--out", str(tmp_path), "--seed", "1"])
