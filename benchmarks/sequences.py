"""Biased and windowed attention over sequences on `native`, beside torch's SDPA and FlexAttention."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attnops
from benchmarks import _side_by_side as side
from benchmarks._memory import peak_bytes

HEADS, DIM = 8, 64
Forward = Callable[[], Any]


class Work:
    """Vectors of one size, and the ways to attend over them."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.query, self.key, self.value = (torch.randn(1, HEADS, length, DIM, requires_grad=True) for _ in range(3))
        self.upstream = torch.randn(1, HEADS, length, DIM)

    def ours(self, **arguments: Any) -> Forward:
        return lambda: attnops.attend(self.query, self.key, self.value, backend="native", **arguments)

    def sdpa(self, bias: Callable[[], Tensor] | None = None, causal: bool = False) -> Forward:
        """Torch's SDPA, with a mask that is laid out anew in each call, as a model does that learns it."""
        return lambda: F.scaled_dot_product_attention(
            self.query, self.key, self.value, None if bias is None else bias(), is_causal=causal
        )

    def train(self, forward: Forward, *parameters: Tensor) -> Forward:
        leaves = (self.query, self.key, self.value, *parameters)
        return lambda: torch.autograd.grad(forward(), leaves, self.upstream)


def differences(length: int) -> Tensor:
    """p_j - p_i of all pairs."""
    position = torch.arange(length)
    return position - position.unsqueeze(1)


def alibi(length: int, rounds: int) -> dict[str, Any]:
    """Causal attention with ALiBi, trained."""
    work, bias = Work(length), attnops.ALiBi(HEADS)
    slopes = bias.slopes(torch.arange(HEADS), torch.float32).view(HEADS, 1, 1)
    gap = differences(length)
    future = gap > 0

    def laid_out() -> Tensor:
        return (slopes * gap).masked_fill(future, float("-inf")).unsqueeze(0)

    ours = work.train(work.ours(pattern=attnops.Causal(), bias=bias))
    theirs, bare = work.train(work.sdpa(laid_out)), work.train(work.sdpa(causal=True))
    side.assert_equal_numbers(list(ours()), list(theirs()), "ALiBi, gradients")
    taken = side.seconds({"attnops": ours, "laid out": theirs, "bare": bare}, rounds)
    return {
        "work": f"causal + ALiBi, N={length}, training",
        "share_of_sdpa_laid_out": taken["attnops"] / taken["laid out"],
        "share_of_bare_causal_sdpa": taken["attnops"] / taken["bare"],
        "share_of_memory": peak_bytes(ours) / peak_bytes(theirs),
        "seconds": taken["attnops"],
    }


def table(length: int, rounds: int) -> dict[str, Any]:
    """Causal attention with a learned table of relative positions, trained with its gradient."""
    work, bias = Work(length), attnops.RelativeBias(HEADS, bidirectional=False)
    torch.nn.init.normal_(bias.weight)
    gap = differences(length)
    future = gap > 0
    buckets = bias.bucket(torch.arange(length).unsqueeze(1), torch.arange(length))

    def laid_out() -> Tensor:
        values = F.embedding(buckets, bias.weight).permute(2, 0, 1)
        return values.masked_fill(future, float("-inf")).unsqueeze(0)

    ours = work.train(work.ours(pattern=attnops.Causal(), bias=bias), bias.weight)
    theirs = work.train(work.sdpa(laid_out), bias.weight)
    side.assert_equal_numbers(list(ours()), list(theirs()), "table, gradients")
    taken = side.seconds({"attnops": ours, "laid out": theirs}, rounds)
    return {
        "work": f"causal + a learned table, N={length}, training",
        "share_of_sdpa_laid_out": taken["attnops"] / taken["laid out"],
        "seconds": taken["attnops"],
    }


def window_forward(length: int, width: int, rounds: int) -> dict[str, Any]:
    """A sliding window, forward."""
    work = Work(length)
    gap = differences(length)
    mask = (gap <= 0) & (gap > -width)
    blocks = create_block_mask(lambda b, h, q, k: (k <= q) & (k > q - width), None, None, length, length, device="cpu")
    compiled, vectors = torch.compile(flex_attention), [x.detach() for x in (work.query, work.key, work.value)]
    runs = {
        "attnops": work.ours(pattern=attnops.SlidingWindow(width - 1)),
        "sdpa": work.sdpa(lambda: mask),
        "flex": lambda: compiled(*vectors, block_mask=blocks),
    }
    with torch.no_grad():
        for name in ("sdpa", "flex"):
            side.assert_equal_numbers([runs["attnops"]()], [runs[name]()], f"window beside {name}")
        taken = side.seconds(runs, rounds)
    return {
        "work": f"window of {width}, N={length}, forward",
        "times_faster_than_masked_sdpa": taken["sdpa"] / taken["attnops"],
        "share_of_compiled_flex": taken["attnops"] / taken["flex"],
        "seconds": taken["attnops"],
    }


def window_training(length: int, width: int, rounds: int) -> dict[str, Any]:
    """A sliding window, trained."""
    small = Work(min(length, 1024))
    gap = differences(small.length)
    mask = (gap <= 0) & (gap > -width)
    pattern = attnops.SlidingWindow(width - 1)
    ours, theirs = (small.train(each) for each in (small.ours(pattern=pattern), small.sdpa(lambda: mask)))
    side.assert_equal_numbers(list(ours()), list(theirs()), "window, gradients")
    work = Work(length)
    runs = {"attnops": work.train(work.ours(pattern=pattern)), "bare": work.train(work.sdpa(causal=True))}
    taken = side.seconds(runs, rounds)
    return {
        "work": f"window of {width}, N={length}, training",
        "times_faster_than_bare_causal_sdpa": taken["bare"] / taken["attnops"],
        "seconds": taken["attnops"],
    }


def decode(length: int, rounds: int) -> dict[str, Any]:
    """One query of 8 heads against a cache of 2."""
    query = torch.randn(1, HEADS, 1, DIM)
    key, value = torch.randn(2, 1, 2, length, DIM)
    runs: dict[str, Forward] = {
        "attnops": lambda: attnops.attend(query, key, value, backend="native"),
        "sdpa": lambda: F.scaled_dot_product_attention(query, key, value, enable_gqa=True),
    }
    with torch.no_grad():
        side.assert_equal_numbers([runs["attnops"]()], [runs["sdpa"]()], "decode")
        taken = side.seconds(runs, rounds)
    return {
        "work": f"decode, 1 query, cache {length}, 8 heads on 2",
        "share_of_sdpa": taken["attnops"] / taken["sdpa"],
        "seconds": taken["attnops"],
    }


def main() -> None:
    options = side.arguments(__doc__ or "")
    small, rounds = options.small, 2 if options.small else 5
    rows = [
        alibi(512 if small else 4096, rounds),
        table(512 if small else 4096, rounds),
        window_forward(1024 if small else 16384, 256, 1 if small else 3),
        window_training(1024 if small else 16384, 256, 1 if small else 2),
        decode(1024 if small else 32768, 5 * rounds),
    ]
    side.write(options, "sequences", rows)


if __name__ == "__main__":
    main()
