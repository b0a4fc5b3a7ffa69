"""Intermediate rows that a killed process left are removed at the next start, those of a living one are not."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from attnops.distributed.out_of_core import MappedRows, map_rows, sum_rows

pytest.importorskip("fcntl", reason="files are locked by a call of POSIX")

SCRIPT = """
import sys
import torch
from attnops.distributed.out_of_core import MappedRows, map_rows, sum_rows
x = MappedRows.open(sys.argv[1], requires_grad=True)
y = map_rows(torch.nn.Linear(2, 2), x)
sum_rows(lambda where, rows: rows.sum(), y).backward()
print("ready", flush=True)
sys.stdin.read()
"""


def scratch(folder: Path) -> list[str]:
    """What is there beside the rows that the test made."""
    found = [*folder.glob("*rows-*"), *folder.glob("x/*grad-*")]
    return sorted(path.name.split("-")[0] for path in found)


def test_what_a_killed_process_left_is_removed(tmp_path: Path) -> None:
    MappedRows.from_tensor(tmp_path / "x", torch.ones(5, 2), 2)
    other = subprocess.Popen(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "x")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with other:
        try:
            assert other.stdout is not None and other.stdout.readline() == "ready\n"
            assert scratch(tmp_path) == ["grad", "rows"]
            MappedRows.open(tmp_path / "x")
            assert scratch(tmp_path) == ["grad", "rows"]  # its process lives
        finally:
            other.send_signal(signal.SIGKILL)
    assert scratch(tmp_path) == ["grad", "rows"]
    x = MappedRows.open(tmp_path / "x", requires_grad=True)
    assert scratch(tmp_path) == []
    assert torch.equal(x.tensor(), torch.ones(5, 2))


def test_ones_own_and_what_others_named_alike_are_left(tmp_path: Path) -> None:
    x = MappedRows.from_tensor(tmp_path / "x", torch.ones(5, 2), 2, requires_grad=True)
    y = map_rows(torch.nn.Identity(), x)
    sum_rows(lambda where, rows: rows.sum(), y).backward()
    mine = tmp_path / "rows-of-my-own"
    mine.mkdir()
    (mine / "000000.rows").write_bytes(b"kept")
    MappedRows.open(tmp_path / "x")
    assert torch.equal(y.tensor(), torch.ones(5, 2)) and x.grad is not None
    assert (mine / "000000.rows").read_bytes() == b"kept"
    del y
    assert scratch(tmp_path) == ["grad", "rows"]  # the gradient, and the folder of another
