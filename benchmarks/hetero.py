"""Heterogeneous layers beside torch-geometric's HGTConv: 3 node types, 20 relations, training.

`first_ms` is a first training step on a graph, joining and sorting its relations included; `training_ms` one of the
steps that follow, for which both are kept. HeteroAttention has no peer: it is timed beside HGTConv, whose work it does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as peer
from torch import Tensor, nn

from attnops.graph import HeteroAttention, HGTConv
from benchmarks import _side_by_side as side

KINDS, RELATIONS, WIDTH, HEADS = ["paper", "author", "venue"], 20, 64, 4


def main() -> None:
    options = side.arguments(__doc__ or "")
    nodes, edges = (200, 400) if options.small else (5_000, 10_000)
    relations = [(KINDS[r % 3], f"relation {r}", KINDS[r // 3 % 3]) for r in range(RELATIONS)]
    x = {kind: torch.randn(nodes, WIDTH) for kind in KINDS}
    edge_index = {relation: torch.randint(0, nodes, (2, edges)) for relation in relations}
    metadata = (KINDS, relations)
    theirs = peer.HGTConv(WIDTH, WIDTH, metadata, heads=HEADS)
    hgt = HGTConv(WIDTH, WIDTH, metadata, heads=HEADS)
    hgt.load_state_dict(theirs.state_dict())

    def train(layer: nn.Module, edges: dict[tuple[str, str, str], Tensor] = edge_index) -> list[Tensor]:
        out: dict[str, Tensor] = layer(x, edges)
        total = sum(rows.square().mean() for rows in out.values())
        assert isinstance(total, Tensor)
        return list(torch.autograd.grad(total, list(layer.parameters()), allow_unused=True))

    pairs = [(a, b) for a, b in zip(train(hgt), train(theirs), strict=True) if a is not None]
    side.assert_equal_numbers(list(hgt(x, edge_index).values()), list(theirs(x, edge_index).values()), "HGTConv")
    side.assert_equal_numbers([a for a, _ in pairs], [b for _, b in pairs], "HGTConv, gradients")
    layers: dict[str, nn.Module] = {
        "HGTConv": hgt,
        "HeteroAttention": HeteroAttention(metadata, WIDTH, WIDTH // HEADS, HEADS),
        "HeteroAttention, keys and values a relation": HeteroAttention(
            metadata, WIDTH, WIDTH // HEADS, HEADS, keys="relation", relation_prior="scale"
        ),
        "HeteroAttention, a softmax a relation": HeteroAttention(
            metadata, WIDTH, WIDTH // HEADS, HEADS, softmax="relation"
        ),
    }
    runs: dict[str, Callable[[], Any]] = {name: partial(train, layer) for name, layer in layers.items()}
    times = side.seconds({**runs, "peer": partial(train, theirs)}, 2 if options.small else 3)
    rows = []
    for name in layers:
        rows.append(
            {
                "layer": name,
                "training_ratio": times["peer"] / times[name],
                "training_ms": times[name] * 1e3,
                "first_ms": first(partial(train, layers[name]), edge_index) * 1e3,
                "peer_ms": times["peer"] * 1e3,
            }
        )
    side.write(options, "hetero", rows)


def first(run: Callable[[dict[Any, Tensor]], Any], edges: dict[Any, Tensor]) -> float:
    """Seconds of a step on a graph that was not seen before."""
    taken = []
    for _ in range(3):
        unseen = {relation: index.clone() for relation, index in edges.items()}
        start = time.perf_counter()
        run(unseen)
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


if __name__ == "__main__":
    main()
