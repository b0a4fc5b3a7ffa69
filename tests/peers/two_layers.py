"""Two layers of one kind, torch-geometric's and ours with the same weights, and a small graph for them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops.graph

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")

NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
USES, MADE = ("user", "uses", "item"), ("item", "made", "user")
METADATA = (["user", "item"], [USES, MADE])


def graph(nodes: int = 7, edges: int = 20, seed: int = 0) -> tuple[Tensor, Tensor]:
    torch.manual_seed(seed)
    return torch.randn(nodes, 4), torch.unique(torch.randint(0, nodes, (2, edges)), dim=1)


class Net(nn.Module):
    """Two layers of one kind, of their library or ours."""

    def __init__(self, library: Any, name: str, **options: Any) -> None:
        super().__init__()
        self.first = getattr(library, name)(4, 3, heads=2, **options)
        self.second = getattr(library, name)(6, 2, **options)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
        return out


def both(name: str, **options: Any) -> tuple[Net, Net]:
    theirs, ours = Net(pyg, name, **options).eval(), Net(attnops.graph, name, **options).eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours
