"""Graph layers beside torch-geometric's of the same name and weights; edges are sorted once, in the first call."""

from __future__ import annotations

import statistics
from functools import partial
from typing import Any

import torch
import torch_geometric.nn as peer
from torch import Tensor, nn

import attnops.graph as ours
from benchmarks import _side_by_side as side

LAYERS = ("GATConv", "GATv2Conv", "TransformerConv")


def main() -> None:
    options = side.arguments(__doc__ or "")
    nodes, edges, width, heads = (200, 4_000, 64, 4) if options.small else (20_000, 400_000, 64, 4)
    x, edge_index = torch.randn(nodes, width), torch.randint(0, nodes, (2, edges))
    rows: list[dict[str, Any]] = []
    for name in LAYERS:
        mine: nn.Module = getattr(ours, name)(width, 32, heads=heads)
        theirs: nn.Module = getattr(peer, name)(width, 32, heads=heads)
        theirs.load_state_dict(mine.state_dict())

        def train(layer: nn.Module) -> list[Tensor]:
            out: Tensor = layer(x, edge_index)
            return list(torch.autograd.grad(out.square().mean(), list(layer.parameters()), allow_unused=True))

        pairs = [(a, b) for a, b in zip(train(mine), train(theirs), strict=True) if a is not None]
        side.assert_equal_numbers([mine(x, edge_index)], [theirs(x, edge_index)], name)
        side.assert_equal_numbers([a for a, _ in pairs], [b for _, b in pairs], f"{name}, gradients")
        rounds = 2 if options.small else 3
        with torch.no_grad():
            forward = side.seconds(
                {"attnops": partial(mine, x, edge_index), "peer": partial(theirs, x, edge_index)}, rounds
            )
        training = side.seconds({"attnops": partial(train, mine), "peer": partial(train, theirs)}, rounds)
        rows.append(
            {
                "layer": name,
                "forward_pyg_ratio": forward["peer"] / forward["attnops"],
                "training_pyg_ratio": training["peer"] / training["attnops"],
                "training_ms": training["attnops"] * 1e3,
            }
        )
    means = {
        key: statistics.geometric_mean(row[key] for row in rows) for key in ("forward_pyg_ratio", "training_pyg_ratio")
    }
    side.write(options, "layers", [*rows, {"layer": "geometric mean", **means}])


if __name__ == "__main__":
    main()
