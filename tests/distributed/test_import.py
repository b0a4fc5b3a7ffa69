"""What `import attnops.distributed` loads, and what it names."""

from __future__ import annotations

import subprocess
import sys

import pytest

import attnops.distributed

HEAVY = ("sympy", "torch.distributed.tensor", "torch.distributed.checkpoint", "torch.distributed.fsdp")
SCRIPT = """
import sys
import attnops.distributed
print(*(name for name in sys.argv[1:] if name in sys.modules))
attnops.distributed.tensor_parallel_plan
print("torch.distributed.tensor" in sys.modules)
"""


def test_tensor_parallel_parts_are_imported_when_first_asked_for() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT, *HEAVY], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["", "True"]


@pytest.mark.parametrize("name", ["tensor_parallel_plan", "whole_state_dict"])
def test_they_are_names_of_the_package_all_the_same(name: str) -> None:
    assert name in dir(attnops.distributed) and getattr(attnops.distributed, name).__name__ == name


def test_other_names_are_none() -> None:
    with pytest.raises(AttributeError, match=r"'attnops.distributed' has no attribute 'tensor_paralel_plan'"):
        attnops.distributed.tensor_paralel_plan  # noqa: B018
