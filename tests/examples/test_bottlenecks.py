"""The bottlenecks example: what it says of bytes is what the caches say."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from examples import bottlenecks


def test_the_tables_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bottlenecks.main(["--small", "--out", str(tmp_path)])
    printed = capsys.readouterr().out
    for line in ("8 key heads (MHA) | 2048", "2 key heads (GQA) | 512", "latent of 64 + 16 (MLA) | 320"):
        assert f"| {line} |" in printed
    kept = json.loads((tmp_path / "bottlenecks.json").read_text())
    assert kept["state"]["8 key heads (MHA)"] == 2048 and len(kept["pairs"]["all of the past"]) == len(kept["lengths"])
