"""The graph layers under torch.compile, torch.export and vmap, forward and backward, as they are called otherwise."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.backends import blockwise
from attnops.graph import GATConv, GATv2Conv, HeteroAttention, HGTConv, RGATConv, TransformerConv

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


class OneKind(torch.nn.Module):
    """A layer over two relations of one type of nodes, or over edges of two types, as a function of tensors."""

    def __init__(self, layer: torch.nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor, edges: Tensor, types: Tensor) -> Tensor:
        if isinstance(self.layer, RGATConv):
            rows: Tensor = self.layer(x, edges, types)
            return rows
        out: Tensor = self.layer({"a": x}, {("a", "x", "a"): edges, ("a", "y", "a"): edges})["a"]
        return out


@pytest.mark.parametrize(
    "layer",
    [
        lambda metadata: HGTConv(4, 4, metadata),
        lambda metadata: HeteroAttention(metadata, 4, 4),
        lambda metadata: HeteroAttention(metadata, 4, 4, keys="relation"),
        lambda metadata: HeteroAttention(metadata, 4, 4, softmax="relation"),
        lambda metadata: RGATConv(4, 4, 2),
        lambda metadata: RGATConv(4, 4, 2, attention_mechanism="within-relation"),
    ],
    ids=["hgt", "hetero", "keys", "softmax", "rgat", "within"],
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_exported_for_any_number_of_nodes_and_edges(layer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    # `blockwise` estimates an int of the sizes, which fixes them; a ranking of backends holds in a range of sizes only
    monkeypatch.setattr(blockwise, "int", lambda size: size, raising=False)
    model = OneKind(layer((["a"], [("a", "x", "a"), ("a", "y", "a")]))).eval()
    nodes, count = (
        torch.export.Dim(name, min=low, max=high) for name, low, high in (("nodes", 25, 60), ("count", 110, 200))
    )
    first, other = (
        (torch.randn(n, 4), torch.randint(0, n, (2, e)), torch.randint(0, 2, (e,))) for n, e in ((30, 140), (50, 120))
    )
    shapes = ({0: nodes}, {1: count}, {0: count})
    exported = torch.export.export(model, first, dynamic_shapes=shapes, strict=False).module()
    torch.testing.assert_close(exported(*other), model(*other))
