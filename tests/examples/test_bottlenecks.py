"""The bottlenecks example: what it says of bytes is what the caches say."""

from __future__ import annotations

import pytest

from examples import bottlenecks


def test_the_tables_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    bottlenecks.main(["--small"])
    printed = capsys.readouterr().out
    for line in ("8 key heads (MHA) | 2048", "2 key heads (GQA) | 512", "latent of 64 + 16 (MLA) | 320"):
        assert f"| {line} |" in printed
