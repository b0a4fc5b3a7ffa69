"""How wrong is attention in 8 bits, and what helps? FlashAttention-3's error table, emulated.

    python -m examples.fp8_attention            # 2 heads, 2048 tokens
    python -m examples.fp8_attention --small

Queries, keys and values are normal; normal with one entry in a thousand of ten times the deviation, as their section
4.3 draws them; and with two channels of queries and keys ten times as wide, as trained models have them. The error is
the root of the mean square against float64.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor

from attnops import attend
from attnops.seq import fp8_attend
from examples.outputs import add_out, write_json

ROWS = {
    "float16": {},
    "fp8, one scale a head": {"block_size": None, "rotate": False},
    "fp8, a scale a block": {"block_size": 64, "rotate": False},
    "fp8, rotated": {"block_size": None, "rotate": True},
    "fp8, a scale a block, rotated": {"block_size": 64, "rotate": True},
}


INPUTS = ("normal", "with outliers", "wide channels")


def draw(shape: tuple[int, ...], kind: str) -> Tensor:
    """N(0, 1); with outliers + N(0, 100) · Bernoulli(0.001); with wide channels, the first two times 10."""
    x = torch.randn(shape, dtype=torch.float64)
    if kind == "with outliers":
        x += torch.randn(shape, dtype=torch.float64) * 10 * (torch.rand(shape) < 0.001)
    elif kind == "wide channels":
        x[..., :2] *= 10
    return x


def measure(heads: int, length: int, dim: int) -> dict[str, dict[str, float]]:
    """Root mean square errors: {input: {row: error}}."""
    table: dict[str, dict[str, float]] = {}
    for name in INPUTS:
        query, key = (draw((heads, length, dim), name) for _ in range(2))
        value = draw((heads, length, dim), "normal" if name == "wide channels" else name)
        exact = attend(query, key, value)
        assert isinstance(exact, Tensor)
        table[name] = {}
        for row, options in ROWS.items():
            if row == "float16":
                found = attend(query.half(), key.half(), value.half(), backend="reference")
            else:
                found = fp8_attend(query, key, value, **options)  # type: ignore[arg-type]
            assert isinstance(found, Tensor)
            table[name][row] = float((found.double() - exact).square().mean().sqrt())
    return table


def main(arguments: list[str] | None = None) -> dict[str, dict[str, float]]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--small", action="store_true", help="256 tokens")
    parser.add_argument("--seed", type=int, default=0)
    add_out(parser, "fp8_attention")
    chosen = parser.parse_args(arguments)
    torch.manual_seed(chosen.seed)
    table = measure(heads=2, length=256 if chosen.small else 2048, dim=128)
    print("| | " + " | ".join(table) + " |")
    print("| --- |" + " --: |" * len(table))
    for row in ROWS:
        print(f"| {row} | " + " | ".join(f"{table[column][row]:.1e}" for column in table) + " |")
    write_json(chosen.out / "errors.json", table)
    return table


if __name__ == "__main__":
    main()
