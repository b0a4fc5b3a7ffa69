"""Edge attention and its memory as the graph grows, beside torch's `embedding_bag` over the same rows.

20 edges a node, 4 heads of 32. `embedding_bag` sums the value rows of each node's sources: it reads the same memory in
the same order and does no attention. An exponent of 1 is time or memory in step with the edges; caches alone, which
hold less and less of the rows, give `embedding_bag` more than that.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

import attnops
from benchmarks import _side_by_side as side
from benchmarks._memory import peak_bytes

DEGREE, HEADS, DIM = 20, 4, 32


def main() -> None:
    options = side.arguments(__doc__ or "")
    rows = [measured(edges // (100 if options.small else 1), options) for edges in (10**5, 10**6, 10**7)]
    side.write(options, "growth", [*rows, exponents(rows[0], rows[-1])])


def exponents(first: dict[str, Any], last: dict[str, Any]) -> dict[str, Any]:
    """Of each column, between the smallest and the largest graph."""
    steps = math.log(last["edges"] / first["edges"])
    found = {key: math.log(last[key] / first[key]) / steps for key in first if key != "edges"}
    return {"edges": "exponent", **found}


def measured(edges: int, options: argparse.Namespace) -> dict[str, Any]:
    nodes = edges // DEGREE
    vectors = tuple(torch.randn(nodes, HEADS, DIM, requires_grad=True) for _ in range(3))
    table = vectors[2].detach().flatten(1)
    upstream = torch.randn(nodes, HEADS, DIM)
    edge_index = torch.randint(0, nodes, (2, edges))
    pattern = attnops.Edges(edge_index, nodes, nodes)
    sources = edge_index[0][torch.argsort(edge_index[1], stable=True)]
    starts = F.pad(torch.bincount(edge_index[1], minlength=nodes).cumsum(0), (1, 0))

    def attend() -> Tensor:
        out = attnops.attend(*(x.transpose(0, 1) for x in vectors), pattern=pattern, backend="native")
        assert isinstance(out, Tensor)
        return out.transpose(0, 1)

    def bag() -> Tensor:
        return F.embedding_bag(sources, table, starts, mode="sum", include_last_offset=True)

    def train() -> tuple[Tensor, ...]:
        return torch.autograd.grad(attend(), vectors, upstream)

    rounds = 9 if edges < 10**6 else 3
    with torch.no_grad():
        forward = side.seconds({"attend": attend, "bag": bag}, rounds, turn=0.02)
    training = side.seconds({"attend": train}, rounds, turn=0.02)
    return {
        "edges": edges,
        "forward_ms": forward["attend"] * 1e3,
        "embedding_bag_ms": forward["bag"] * 1e3,
        "training_ms": training["attend"] * 1e3,
        "training_memory_MB": peak_bytes(train) / 1e6,
    }


if __name__ == "__main__":
    main()
