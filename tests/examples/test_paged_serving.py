"""The serving example: the same tokens from fewer bytes."""

from __future__ import annotations

import torch

from examples import paged_serving


def test_pages_answer_the_same_from_a_third_of_the_bytes() -> None:
    contiguous, paged = paged_serving.main(["--small"])
    assert torch.equal(contiguous.tokens, paged.tokens)
    assert paged.bytes <= 0.35 * contiguous.bytes
