"""The page on distributed attention does what it says, on several processes; the page is what users copy from."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

import attnops.distributed

PAGE = Path(__file__).parents[2] / "docs" / "distributed.md"


def run(group: Any, blocks: list[str]) -> int:
    """Every block, one after the other, in the processes of the pool instead of torchrun's."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(attnops.distributed, "init_processes", lambda timeout: torch.device("cpu"))
        patch.setattr(dist, "destroy_process_group", lambda: None)
        exec("\n".join(blocks), {})
    return dist.get_world_size()


def test_every_block_runs(ranks: Any) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) >= 5
    pytest.importorskip("pymetis", reason="the page divides a graph by METIS")
    assert ranks(run, blocks, world=4) == [4] * 4
