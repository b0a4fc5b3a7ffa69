"""GAT and GATv2 beside torch-geometric's models: the same parameters, numbers and gradients."""

from __future__ import annotations

from typing import Any

import pytest
import torch

pytest.importorskip("torch_geometric", reason="the extra graph is not installed")

from torch_geometric import nn as pyg

from attnops.graph import GAT, GATv2


@pytest.mark.parametrize("v2", [False, True])
@pytest.mark.parametrize("layers", [1, 2, 3])
@pytest.mark.parametrize("out_channels", [None, 3])
@pytest.mark.parametrize("options", [{}, {"edge_dim": 2, "act": "elu"}, {"residual": True, "add_self_loops": False}])
def test_model(v2: bool, layers: int, out_channels: int | None, options: dict[str, Any]) -> None:
    theirs = pyg.GAT(5, 8, layers, out_channels, v2=v2, heads=2, **options)
    ours = (GATv2 if v2 else GAT)(5, 8, layers, out_channels, heads=2, **options)
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(6, 5, requires_grad=True)
    edge_index = torch.tensor([[0, 1, 2, 3, 4, 0], [1, 2, 3, 3, 0, 2]])
    attr = torch.randn(6, 2) if "edge_dim" in options else None
    out, expected = (model(x, edge_index, edge_attr=attr) for model in (ours, theirs))
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    leaves = [dict(model.named_parameters()) for model in (ours, theirs)]
    gradients = [
        torch.autograd.grad(result.square().sum(), [x, *(named[name] for name in leaves[0])])
        for result, named in zip((out, expected), leaves, strict=True)
    ]
    for ours_grad, theirs_grad in zip(*gradients, strict=True):
        torch.testing.assert_close(ours_grad, theirs_grad, atol=1e-4, rtol=1e-4)


def test_dropout_is_between_layers_and_on_weights() -> None:
    model = GAT(5, 8, 3, heads=2, dropout=0.5)
    assert [conv.dropout for conv in model.convs] == [0.5] * 3
    x, edge_index = torch.randn(6, 5), torch.tensor([[0, 1, 2], [1, 2, 3]])
    assert not torch.equal(model(x, edge_index), model(x, edge_index))
    model.eval()
    assert torch.equal(model(x, edge_index), model(x, edge_index))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: GAT(5, 7, 2, heads=2), "hidden_channels is 7; it must be a multiple of heads = 2"),
        (lambda: GATv2(5, 8, 0), "num_layers is 0"),
        (lambda: GAT(5, 8, 2, act="nothing"), "act is 'nothing'"),
    ],
)
def test_errors(make: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        make()
