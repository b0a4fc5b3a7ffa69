"""Three bottlenecks of attention, measured here: pairs, state, bandwidth.

    python -m examples.bottlenecks            # about twenty seconds
    python -m examples.bottlenecks --small

Pairs: a causal text attends N² / 2 pairs; a window or linear attention makes the work grow with N. State: what a cache
keeps of a token, under several kinds of heads. Bandwidth: one new token reads all of the cache once, so its time is the
bytes that it reads; so do the weights of a linear layer, which a step of few tokens reads once.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from functools import partial

import torch

from attnops import Causal, SlidingWindow, attend, linear_attend
from attnops.seq import Decoder, KVCache, LatentConfig, TransformerConfig
from examples.outputs import add_out, write_json

KINDS = {
    "8 key heads (MHA)": {},
    "2 key heads (GQA)": {"kv_heads": 2},
    "1 key head (MQA)": {"kv_heads": 1},
    "latent of 64 + 16 (MLA)": {"latent": LatentConfig(rank=64, rotary_dim=16)},
}


def seconds(run: Callable[[], object], repeats: int = 5) -> float:
    """The least of several."""
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def pairs(lengths: list[int]) -> dict[str, list[float]]:
    """Microseconds a token, at each length."""
    table: dict[str, list[float]] = {"all of the past": [], "a window of 128": [], "linear attention": []}
    for length in lengths:
        query, key, value = torch.randn(3, 4, length, 32)
        runs: tuple[Callable[[], object], ...] = (
            partial(attend, query, key, value, pattern=Causal()),
            partial(attend, query, key, value, pattern=SlidingWindow(127)),
            partial(linear_attend, query, key, value, causal=True),
        )
        for row, run in zip(table.values(), runs, strict=True):
            row.append(seconds(run) / length * 1e6)
    return table


def model_of(kind: str) -> Decoder:
    """Two layers of 8 heads of 32 channels."""
    return Decoder(TransformerConfig(vocab_size=64, dim=256, layers=2, heads=8, **KINDS[kind])).eval()  # type: ignore[arg-type]


def state() -> dict[str, float]:
    """Bytes of a cache for each token and layer."""
    table = {}
    for kind in KINDS:
        cache = KVCache()
        model_of(kind)(torch.zeros(1, 10, dtype=torch.int64), cache=cache)
        table[kind] = cache.memory() / 10 / 2
    return table


def bandwidth(held: list[int]) -> dict[str, list[tuple[float, float]]]:
    """Of one new token's attention over so many held ones: milliseconds, and gigabytes read a second."""
    table: dict[str, list[tuple[float, float]]] = {}
    for heads in (8, 2, 1):
        row = table[f"{heads} key heads" if heads > 1 else "1 key head"] = []
        for length in held:
            query, (key, value) = torch.randn(8, 1, 64), torch.randn(2, heads, length, 64)
            took = seconds(partial(attend, query, key, value), 20)
            row.append((took * 1e3, 2 * key.numel() * 4 / took / 1e9))
    return table


def weights(tokens: list[int], vocabulary: int) -> dict[str, list[tuple[float, float]]]:
    """The same of a head of so many ids, 576 wide, over the tokens of one step."""
    table: dict[str, list[tuple[float, float]]] = {}
    model = Decoder(TransformerConfig(vocab_size=vocabulary, dim=576, layers=1, heads=9))
    weight = model.embeddings.token.weight
    runs: dict[str, Callable[..., object]] = {"torch": torch.nn.functional.linear, "attnops": model.head}
    for name, run in runs.items():
        took = [seconds(partial(run, torch.randn(count, 576), weight)) for count in tokens]
        table[name] = [(each * 1e3, weight.numel() * 4 / each / 1e9) for each in took]
    return table


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="short texts")
    add_out(parser, "bottlenecks")
    chosen = parser.parse_args(arguments)
    small = chosen.small
    torch.manual_seed(0)
    with torch.inference_mode():
        lengths = [256, 512] if small else [512, 2048, 8192, 16384]
        print("pairs: microseconds a token, 4 heads of 32 channels\n")
        print("| N | " + " | ".join(map(str, lengths)) + " |\n| --- |" + " --: |" * len(lengths))
        by_length = pairs(lengths)
        for name, row in by_length.items():
            print(f"| {name} | " + " | ".join(f"{value:.1f}" for value in row) + " |")
        print("\nstate: bytes a token and layer, 8 heads of 32 channels, float32\n")
        print("| cache | bytes |\n| --- | --: |")
        by_kind = state()
        for name, value in by_kind.items():
            print(f"| {name} | {value:.0f} |")
        held = [1024, 4096] if small else [2048, 16384, 65536]
        print("\nbandwidth: one new token, 8 heads of 64 channels, milliseconds (gigabytes read a second)\n")
        print("| held tokens | " + " | ".join(map(str, held)) + " |\n| --- |" + " --: |" * len(held))
        by_heads = bandwidth(held)
        for name, cells in by_heads.items():
            print(f"| {name} | " + " | ".join(f"{ms:.2f} ({rate:.1f})" for ms, rate in cells) + " |")
        tokens, vocabulary = [1, 8, 16], 4096 if small else 49152
        print(f"\nweights: a linear layer from 576 to {vocabulary}, milliseconds (gigabytes read a second)\n")
        print("| tokens | " + " | ".join(map(str, tokens)) + " |\n| --- |" + " --: |" * len(tokens))
        by_layer = weights(tokens, vocabulary)
        for name, cells in by_layer.items():
            print(f"| {name} | " + " | ".join(f"{ms:.2f} ({rate:.1f})" for ms, rate in cells) + " |")
    figures = {"lengths": lengths, "pairs": by_length, "state": by_kind, "held": held, "bandwidth": by_heads}
    figures |= {"tokens": tokens, "weights": by_layer}
    write_json(chosen.out / "bottlenecks.json", figures)


if __name__ == "__main__":
    main()
