"""Biased causal attention on `blockwise` beside one call of torch's SDPA with the bias laid out."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

import attnops
from benchmarks import _side_by_side as side


def peak_bytes(run: side.Run) -> int:
    """The most bytes above those held before, by the profiler's own count of allocations."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as recorded:
        result = run()
    held = peak = 0
    for event in sorted(recorded.profiler.kineto_results.events(), key=lambda event: event.start_ns()):  # type: ignore[union-attr]
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    del result
    return peak


def main() -> None:
    options = side.arguments(__doc__ or "")
    length, heads, dim = (512 if options.small else 4096), 8, 64
    query, key, value = (torch.randn(1, heads, length, dim, requires_grad=True) for _ in range(3))
    upstream = torch.randn(1, heads, length, dim)
    position = torch.arange(length)
    rows = []

    def laid_out(slopes: Tensor) -> Tensor:
        bias = -slopes.view(heads, 1, 1) * (position[:, None] - position).abs()
        bias = bias.masked_fill(position > position[:, None], float("-inf"))
        return F.scaled_dot_product_attention(query, key, value, bias)

    alibi = attnops.ALiBi(heads)
    slopes = 2.0 ** -torch.arange(1, heads + 1)

    def ours() -> Tensor:
        return attnops.attend(query, key, value, pattern=attnops.Causal(), bias=alibi, backend="blockwise")  # type: ignore[return-value]

    def theirs() -> Tensor:
        return laid_out(slopes)

    def train(forward):  # type: ignore[no-untyped-def]
        return lambda: torch.autograd.grad(forward(), (query, key, value), upstream)

    side.assert_equal_numbers([ours()], [theirs()], "ALiBi")
    side.assert_equal_numbers(list(train(ours)()), list(train(theirs)()), "ALiBi, gradients")
    rounds = 2 if options.small else 5
    with torch.no_grad():
        forward = side.seconds({"attnops": ours, "sdpa": theirs}, rounds)
    training = side.seconds({"attnops": train(ours), "sdpa": train(theirs)}, rounds)
    rows.append(
        {
            "work": f"causal + ALiBi, N={length}, H={heads}, D={dim}",
            "forward_share": forward["attnops"] / forward["sdpa"],
            "training_share": training["attnops"] / training["sdpa"],
            "training_memory_share": peak_bytes(train(ours)) / peak_bytes(train(theirs)),
        }
    )
    window = attnops.SlidingWindow(255)
    long = 1024 if options.small else 16384
    q, k, v = torch.randn(3, 1, heads, long, dim)
    where = torch.arange(long)
    back = where[:, None] - where
    mask = (back >= 0) & (back <= 255)

    def windowed() -> Tensor:
        return attnops.attend(q, k, v, pattern=window, backend="blockwise")  # type: ignore[return-value]

    def masked() -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, mask)

    side.assert_equal_numbers([windowed()], [masked()], "window")
    taken = side.seconds({"attnops": windowed, "sdpa": masked}, 1 if options.small else 3)
    rows.append({"work": f"window of 256, N={long}, forward", "forward_share": taken["attnops"] / taken["sdpa"]})
    side.write(options, "blockwise", rows)


if __name__ == "__main__":
    main()
