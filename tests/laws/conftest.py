"""Small blocks, so that small problems fall into several of them."""

from __future__ import annotations

import pytest

from attnops import flash
from attnops.backends import blockwise


@pytest.fixture(autouse=True)
def _small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(blockwise, "ROWS", 3)
    monkeypatch.setattr(flash, "ROWS", 3)
