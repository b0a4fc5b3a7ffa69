"""Features of another dtype than a layer's weights are named, by type and by relation."""

from __future__ import annotations

import pytest
import torch

from attnops.graph import HeteroAttention

SEES, FOLLOWS = ("camera", "sees", "person"), ("person", "follows", "person")


def test_hetero_attention() -> None:
    layer = HeteroAttention((["camera", "person"], [SEES, FOLLOWS]), {"camera": 4, "person": 6}, 3, edge_dim={SEES: 2})
    x = {"camera": torch.randn(2, 4), "person": torch.randn(3, 6)}
    edges, attr = {SEES: torch.tensor([[0, 1], [2, 0]])}, {SEES: torch.randn(2, 2)}
    layer(x, edges, attr)
    with pytest.raises(
        TypeError, match=r"x_dict\['camera'\] is torch.float64; it must be torch.float32, as the weights"
    ):
        layer({kind: features.double() for kind, features in x.items()}, edges, attr)
    with pytest.raises(TypeError, match=r"edge_attr_dict\[.*\] is torch.float64; it must be torch.float32"):
        layer(x, edges, {SEES: attr[SEES].double()})
