"""The serving example: the same tokens from fewer bytes."""

from __future__ import annotations

import json
from pathlib import Path

import torch

from examples import paged_serving


def test_pages_answer_the_same_from_a_third_of_the_bytes(tmp_path: Path) -> None:
    contiguous, paged = paged_serving.main(["--small", "--out", str(tmp_path)])
    assert torch.equal(contiguous.tokens, paged.tokens)
    assert paged.bytes <= 0.35 * contiguous.bytes
    kept = json.loads((tmp_path / "paged_serving.json").read_text())
    assert kept["same_tokens"] and kept["paged"]["bytes"] == paged.bytes
