"""On a GPU: edge attention beside torch-geometric's steps, sequences beside torch's SDPA and FlexAttention.

    python -m benchmarks.gpu            # at most four minutes; correctness first; out/bench/gpu.json
    python -m benchmarks.gpu --dry      # tiny problems on a CPU, Triton interpreted: that it runs, no figure

Edge attention trains in bfloat16, with the numbers and gradients of float32 checked first, against torch-geometric's
steps (those of benchmarks/graphs.py) eager and compiled. "Bandwidth" is the share of the card's own measured copy
bandwidth that the bytes make which a forward must read, E·H·(D + Dv) numbers. Memory is the peak above what was held.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

os.environ |= {"TRITON_INTERPRET": "1"} if "--dry" in sys.argv else {}

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import attnops
from benchmarks import _side_by_side as side
from benchmarks.graphs import composed

GRAPHS = {
    "10k nodes, 200k edges, 8 x 16": (10_000, 200_000, 8, 16),
    "50k nodes, 1M edges, 4 x 64": (50_000, 1_000_000, 4, 64),
    "100k nodes, 10M edges, 4 x 32, hubs": (100_000, 10_000_000, 4, 32),
}
Run = Callable[[], Any]


class Card:
    """Time and memory on the device; on a CPU, for `--dry`, of nothing that means anything."""

    def __init__(self, dry: bool) -> None:
        self.dry, self.device = dry, "cpu" if dry else "cuda"

    def seconds(self, run: Run, rounds: int) -> float:
        """The median of `rounds` runs, after three that are not counted."""
        if self.dry:
            return side.seconds({"run": run}, 1)["run"]
        for _ in range(3):
            run()
        times = []
        for _ in range(rounds):
            begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            begin.record()  # type: ignore[no-untyped-call]
            run()
            end.record()  # type: ignore[no-untyped-call]
            torch.cuda.synchronize()
            times.append(begin.elapsed_time(end) / 1e3)  # type: ignore[no-untyped-call]
        return statistics.median(times)

    def peak(self, run: Run) -> int:
        """Bytes above what is held."""
        if self.dry:
            return 1
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        run()
        torch.cuda.synchronize()
        return max(1, torch.cuda.max_memory_allocated() - before)

    def bandwidth(self) -> float:
        """Bytes a second of a copy, counted twice: read and written."""
        numbers = torch.ones(1 << (10 if self.dry else 28), device=self.device)
        target = torch.empty_like(numbers)
        return 8 * numbers.numel() / self.seconds(lambda: target.copy_(numbers), 20)


def graphs(card: Card, rounds: int) -> list[dict[str, Any]]:
    """Edge attention, trained in bfloat16."""
    bandwidth, rows = card.bandwidth(), []
    for name, (nodes, edges, heads, dim) in GRAPHS.items():
        if card.dry:
            nodes, edges = 12, 40
        random = torch.Generator().manual_seed(0)
        edge_index = torch.randint(0, nodes, (2, edges), generator=random)
        if "hubs" in name:
            edge_index[1, : edges // 10] = 0
        edge_index = edge_index.to(card.device)
        exact = [torch.randn(nodes, heads, dim, generator=random).to(card.device) for _ in range(4)]
        pattern = attnops.Edges(edge_index, nodes, nodes)

        def ours(*vectors: Tensor, pattern: attnops.Edges = pattern) -> Tensor:
            out = attnops.attend(*(x.transpose(0, 1) for x in vectors), pattern=pattern, backend="triton")
            assert isinstance(out, Tensor)
            return out.transpose(0, 1)

        def theirs(*vectors: Tensor, edge_index: Tensor = edge_index, nodes: int = nodes) -> Tensor:
            return composed(*vectors, edge_index, nodes)

        def train(forward: Callable[..., Tensor], dtype: torch.dtype, exact: list[Tensor] = exact) -> list[Tensor]:
            vectors = [x.to(dtype).requires_grad_() for x in exact[:3]]
            out = forward(*vectors)
            return [out, *torch.autograd.grad(out, vectors, exact[3].to(dtype))]

        side.assert_equal_numbers(train(ours, torch.float32), train(theirs, torch.float32), name, relative=1e-3)
        compiled: Callable[..., Tensor] = theirs if card.dry else torch.compile(theirs)
        runs: dict[str, Run] = {
            who: (lambda forward=forward: train(forward, torch.bfloat16))
            for who, forward in (("attnops", ours), ("composed", theirs), ("compiled", compiled))
        }
        training = {who: card.seconds(run, rounds) for who, run in runs.items()}
        half = [x.to(torch.bfloat16) for x in exact[:3]]
        with torch.no_grad():
            forward = card.seconds(lambda half=half: ours(*half), rounds)
        rows.append(
            {
                "graph": name,
                "training_composed_ratio": training["composed"] / training["attnops"],
                "training_compiled_ratio": training["compiled"] / training["attnops"],
                "memory_share": card.peak(runs["attnops"]) / card.peak(runs["composed"]),
                "forward_bandwidth_share": edges * heads * 2 * dim * 2 / forward / bandwidth,
                "training_ms": training["attnops"] * 1e3,
                "forward_ms": forward * 1e3,
            }
        )
    return rows


def sequences(card: Card, rounds: int) -> list[dict[str, Any]]:
    """Biased and windowed sequences in bfloat16, trained: `auto` under torch.compile beside what torch offers."""
    length = 64 if card.dry else 8192
    shape = (1, 8, length, 64)
    vectors = [
        torch.randn(shape, device=card.device, dtype=torch.bfloat16, requires_grad=not card.dry) for _ in range(3)
    ]
    slopes = 2.0 ** -torch.arange(1, 9, device=card.device).view(8, 1, 1)
    place = torch.arange(length, device=card.device)
    laid_out = (-slopes * (place[:, None] - place).abs()).masked_fill(place > place[:, None], float("-inf")).bfloat16()

    def alibi_of(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return score - slopes[h, 0, 0] * (q - k)

    causal = create_block_mask(lambda b, h, q, k: q >= k, None, None, length, length, device=card.device)
    near = create_block_mask(
        lambda b, h, q, k: (q >= k) & (q - k <= 256), None, None, length, length, device=card.device
    )
    flex: Callable[..., Any] = flex_attention if card.dry else torch.compile(flex_attention)
    problems: dict[str, tuple[dict[str, Any], dict[str, Callable[[], Any]]]] = {
        "causal + ALiBi": (
            {"pattern": attnops.Causal(), "bias": attnops.ALiBi(8).to(card.device)},
            {
                "sdpa_laid_out": lambda: F.scaled_dot_product_attention(*vectors, laid_out),
                "flex": lambda: flex(*vectors, score_mod=alibi_of, block_mask=causal),
            },
        ),
        "window 256": (
            {"pattern": attnops.SlidingWindow(256)},
            {
                "sdpa_bare_causal": lambda: F.scaled_dot_product_attention(*vectors, is_causal=True),
                "flex": lambda: flex(*vectors, block_mask=near),
            },
        ),
    }
    rows = []
    for name, (arguments, peers) in problems.items():

        def ours(arguments: dict[str, Any] = arguments) -> Any:
            return attnops.attend(*vectors, backend="flex", **arguments)

        attend: Run = ours if card.dry else torch.compile(ours, fullgraph=True)
        same = {who: peer for who, peer in peers.items() if who != "sdpa_bare_causal"}
        for who, peer in same.items():
            side.assert_equal_numbers([attend().float()], [peer().float()], f"{name}, {who}", relative=3e-2)

        def train(forward: Run) -> Any:
            out = forward()
            return torch.autograd.grad(out, vectors, torch.ones_like(out)) if out.requires_grad else out

        taken = {
            who: card.seconds(lambda forward=forward: train(forward), rounds)
            for who, forward in {"attnops": attend, **peers}.items()
        }
        rows.append(
            {
                "sequence": f"{name}, N = {length}",
                **{f"share_of_{who}": taken["attnops"] / taken[who] for who in peers},
                "training_ms": taken["attnops"] * 1e3,
                "peak_mb": card.peak(lambda attend=attend: train(attend)) / 1e6,
            }
        )
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--dry", "--small", action="store_true", help="tiny problems on a CPU: no figure is written")
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--out", type=Path, default=Path("out/bench"))
    options = parser.parse_args()
    if not options.dry and not torch.cuda.is_available():
        print("gpu: torch sees no GPU here; nothing was measured")
        return
    torch.manual_seed(0)
    card = Card(options.dry)
    rows = [*graphs(card, options.rounds), *sequences(card, options.rounds)]
    for row in rows:
        print(
            "  ".join(f"{name} {value:.3g}" if isinstance(value, float) else f"{value}" for name, value in row.items())
        )
    if options.dry:
        print("a dry run: that it runs, no figure")
        return
    report = {
        "name": "gpu",
        "rows": rows,
        "card": torch.cuda.get_device_name(),
        "versions": {"python": platform.python_version(), "torch": torch.__version__},
    }
    options.out.mkdir(parents=True, exist_ok=True)
    part = options.out / ".gpu.json.part"
    part.write_text(json.dumps(report, indent=1) + "\n")
    os.replace(part, options.out / "gpu.json")
    print(f"written to {options.out / 'gpu.json'}")


if __name__ == "__main__":
    main()
