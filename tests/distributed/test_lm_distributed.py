"""The divided language model under torchrun: killed, started again, resumed by more and fewer processes; one curve."""

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

STEPS, EVERY = 40, 5
SMALL = ["--dim", "16", "--layers", "2", "--length", "64", "--rows", "2", "--every", str(EVERY), "--timeout", "20"]
SECONDS = 120  # of one start, on a busy machine


def losses(folder: Path) -> list[float]:
    held: list[float] = json.loads((folder / f"step-{STEPS:06}" / "run.json").read_text())["losses"]
    return held


def run(folder: Path, steps: int = STEPS) -> list[float]:
    """In this process, alone."""
    return lm_distributed.main([*SMALL, "--steps", str(steps), "--out", str(folder)])


def launch(folder: Path, processes: int, restarts: int) -> subprocess.Popen[str]:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", str(processes)]
    torchrun += ["--rdzv-backend", "c10d", "--rdzv-endpoint", "localhost:0", "--max-restarts", str(restarts)]
    arguments = [*torchrun, "-m", "examples.lm_distributed", *SMALL, "--steps", str(STEPS), "--out", str(folder)]
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


def saved(folder: Path, least: int) -> bool:
    return any(int(path.name[5:11]) >= least and path.suffix == "" for path in folder.glob("step-*"))


@pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="finds the processes to kill in /proc")
def test_killed_restarted_and_resumed_it_equals_one_process(tmp_path: Path) -> None:
    undisturbed = run(tmp_path / "one")
    assert losses(tmp_path / "one") == undisturbed and len(undisturbed) == STEPS

    folder = tmp_path / "killed"
    run(folder, EVERY)  # what one process wrote, two go on from
    running = launch(folder, 2, restarts=1)
    wait_until(lambda: saved(folder, 2 * EVERY), running)
    os.kill(children(running.pid)[0], signal.SIGKILL)  # torchrun starts both again
    wait_until(lambda: saved(folder, 5 * EVERY), running)
    os.kill(children(running.pid)[1], signal.SIGKILL)  # and now it ends
    code, printed = end(running)
    assert code != 0 and "Signal 9 (SIGKILL)" in printed  # torchrun names the rank that died
    assert not saved(folder, STEPS)
    starts = [line for line in printed.splitlines() if "processes, from step" in line]  # on rank 0 alone
    assert len(starts) == 2 and starts[0] == f"2 processes, from step {EVERY}"
    assert int(starts[1].split()[-1]) >= 2 * EVERY

    resumed = run(folder)  # what two wrote, one goes on from
    torch.testing.assert_close(torch.tensor(resumed), torch.tensor(undisturbed), rtol=1e-4, atol=1e-4)


def test_other_settings_are_refused(tmp_path: Path) -> None:
    run(tmp_path, EVERY)
    with pytest.raises(ValueError, match="seed = 0, not 1"):
        lm_distributed.main([*SMALL, "--out", str(tmp_path), "--seed", "1"])
