"""The graph layers under torch.compile, torch.export and vmap, forward and backward, as they are called otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.graph import GATConv, GATv2Conv, HeteroAttention, TransformerConv

LAYERS = [GATConv, GATv2Conv, TransformerConv]
NODES, SEES, FOLLOWS = 6, ("camera", "sees", "person"), ("person", "follows", "person")


def problem(edge_dim: int | None) -> tuple[Tensor, ...]:
    """A graph whose edges hold self-loops, features where the layer reads them."""
    torch.manual_seed(0)
    x, edges = torch.randn(NODES, 4).double(), torch.randint(0, NODES, (2, 20))
    assert (edges[0] == edges[1]).any()
    return (x, edges) if edge_dim is None else (x, edges, torch.randn(20, edge_dim).double())


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_compiled_in_one_graph(layer: Any, edge_dim: int | None) -> None:
    """With self-loops as by default, and a mean that must not count those that were replaced."""
    x, *rest = problem(edge_dim)
    x.requires_grad_()
    conv = layer(4, 3, heads=2, edge_dim=edge_dim, aggr="mean").double()
    out, expected = torch.compile(conv, fullgraph=True, backend="aot_eager")(x, *rest), conv(x, *rest)
    torch.testing.assert_close(out, expected)
    found = torch.autograd.grad(out.square().sum(), [x, *conv.parameters()])
    wanted = torch.autograd.grad(expected.square().sum(), [x, *conv.parameters()])
    for ours, right in zip(found, wanted, strict=True):
        torch.testing.assert_close(ours, right)


@pytest.mark.parametrize("fill_value", ["mean", "max", "mul"])
def test_loops_compiled_are_loops(fill_value: Any) -> None:
    """Whatever the loops carry; a weight that is returned is 0 on an edge that was replaced."""
    arguments = problem(2)
    conv = GATv2Conv(4, 3, heads=2, edge_dim=2, fill_value=fill_value).double()
    expected, (_, weights) = conv(*arguments, return_attention_weights=True)
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    out, (edges, listed) = compiled(*arguments, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    used = torch.ones(edges.shape[1], dtype=torch.bool)
    used[:20] = edges[0, :20] != edges[1, :20]
    assert (listed[~used] == 0).all()
    torch.testing.assert_close(listed[used], weights)


@pytest.mark.parametrize("score", ["dot", "gatv2"])
def test_hetero_compiled_in_one_graph(score: Any) -> None:
    torch.manual_seed(0)
    x = {"camera": torch.randn(3, 4).double(), "person": torch.randn(5, 4).double()}
    edges = {SEES: torch.tensor([[0, 1, 2, 2], [0, 1, 1, 4]]), FOLLOWS: torch.randint(0, 5, (2, 8))}
    attr = {FOLLOWS: torch.randn(8, 2).double()}
    layer = HeteroAttention((list(x), list(edges)), 4, 3, 2, score=score, edge_dim={FOLLOWS: 2}, type_prior=True)
    layer = layer.double()
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, edges, attr)
    torch.testing.assert_close(out, layer(x, edges, attr))


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_exported(layer: Any) -> None:
    arguments = problem(None)
    conv = layer(4, 3, heads=2).double()
    torch.testing.assert_close(torch.export.export(conv, arguments).module()(*arguments), conv(*arguments))


@pytest.mark.parametrize("layer", LAYERS)
def test_vmap_over_features_and_parameters(layer: Any) -> None:
    """A batch of features on one graph, and an ensemble of layers on one input."""
    x, edges = problem(None)
    layers = [layer(4, 3, heads=2).double() for _ in range(3)]
    batch = torch.randn(3, NODES, 4).double()
    batched = torch.vmap(lambda rows: layers[0](rows, edges))(batch)
    torch.testing.assert_close(batched, torch.stack([layers[0](rows, edges) for rows in batch]))
    parameters, buffers = torch.func.stack_module_state(layers)

    def call(*state: Any) -> Tensor:
        out: Tensor = torch.func.functional_call(layers[0], state, (x, edges))
        return out

    torch.testing.assert_close(torch.vmap(call)(parameters, buffers), torch.stack([each(x, edges) for each in layers]))
