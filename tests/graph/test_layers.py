"""Laws of the graph layers: what their interface does not say, and what peers got wrong."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnops
from attnops.graph import GATConv, GATv2Conv, RGATConv, TransformerConv

pytestmark = pytest.mark.usefixtures("poison")

LAYERS = [GATConv, GATv2Conv, TransformerConv]
LOOPING = [GATConv, GATv2Conv]


def make(layer: Any, channels: Any = 4, **options: Any) -> Any:
    """A layer of two heads in float64 that adds no self-loop unless told to."""
    if layer is not TransformerConv:
        options.setdefault("add_self_loops", False)
    return layer(channels, 3, **{"heads": 2, **options}).double()


def graph(nodes: int = 8, edges: int = 24, seed: int = 0) -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(nodes, 4, generator=generator).double()
    edge_index = torch.randint(0, nodes, (2, edges), generator=generator)
    return x, edge_index, torch.randn(edges, 2, generator=generator).double()


# ------------------------------------------------------------------------------------------------ nodes without edges
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_node_that_no_edge_enters(layer: Any, edge_dim: int | None, cases: ModuleType) -> None:
    """Its row is the bias (or the root) alone, with as many rows as nodes, and every gradient is finite."""
    inputs, _ = cases.CASES["B18"]()
    edges = torch.stack([inputs["src"], inputs["dst"]])
    conv = make(layer, 3, edge_dim=edge_dim)
    bare = {"root_weight": False} if layer is TransformerConv else {"bias": False}
    bare_conv = make(layer, 3, edge_dim=edge_dim, **bare)
    for index in (edges, inputs["no_edges"]):
        attr = None if edge_dim is None else torch.randn(index.shape[1], edge_dim).double()
        x = inputs["q"].clone().requires_grad_()
        out = conv(x, index, attr)
        assert out.shape == (4, 6)
        rest = conv.lin_skip(x) if layer is TransformerConv else conv.bias.expand(4, -1)
        alone = [1, 3] if index.shape[1] else [0, 1, 2, 3]
        assert torch.equal(out[alone], rest[alone])
        assert (bare_conv(x, index, attr)[alone] == 0).all()
        grads = torch.autograd.grad(out.sum(), [x, *conv.parameters()], allow_unused=True)
        assert all(grad is None or torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(("nodes", "edges"), [(0, 0), (1, 0), (3, 0)])
def test_empty_graphs(layer: Any, nodes: int, edges: int) -> None:
    x = torch.randn(nodes, 4).double()
    index = torch.empty(2, edges, dtype=torch.long)
    out, (_, weights) = make(layer)(x, index, return_attention_weights=True)
    assert out.shape == (nodes, 6) and weights.shape == (edges, 2)


# ------------------------------------------------------------------------------------------------ self-loops
@pytest.mark.parametrize("layer", LOOPING)
@pytest.mark.parametrize("counts", [(3, 3), (2, 4), (4, 2)])
def test_no_loop_between_two_sets(layer: Any, counts: tuple[int, int]) -> None:
    """By default only the given edges are used; loops asked for by name are an error."""
    x = (torch.randn(counts[0], 4).double(), torch.randn(counts[1], 5).double())
    edges = torch.tensor([[0, 1], [0, 0]])
    torch.manual_seed(0)
    conv = layer((4, 5), 3, heads=2).double()
    out, (used, weights) = conv(x, edges, return_attention_weights=True)
    assert torch.equal(used, edges)
    torch.testing.assert_close(weights.sum(0), torch.ones(2).double())
    assert out.shape == (counts[1], 6) and (out[1:] == conv.bias).all()
    torch.manual_seed(0)
    assert torch.equal(make(layer, (4, 5))(x, edges), out)
    with pytest.raises(ValueError, match="add_self_loops is True, but x is a pair of two node sets"):
        make(layer, (4, 5), add_self_loops=True)(x, edges)


def test_no_loop_between_two_sets_by_case(cases: ModuleType) -> None:
    """The case's numbers, through a transformer layer whose maps are the identity."""
    inputs, expected = cases.CASES["B19"]()
    conv = TransformerConv((6, 3), 3, root_weight=False, bias=False).double()
    with torch.no_grad():
        conv.lin_query.weight.copy_(torch.eye(3))
        conv.lin_key.weight.copy_(torch.eye(3, 6))
        conv.lin_value.weight.copy_(torch.eye(6)[3:])
    for name in ("3to3", "2to4", "4to2"):
        x = (torch.cat([inputs[f"k_{name}"], inputs[f"v_{name}"]], dim=1), inputs[f"q_{name}"])
        edges = torch.stack([inputs["src"], inputs["dst"]])
        out, (_, weights) = conv(x, edges, return_attention_weights=True)
        torch.testing.assert_close(out, expected[f"out_{name}"])
        torch.testing.assert_close(weights[:, 0], expected[f"w_{name}"])


@pytest.mark.parametrize("layer", LOOPING)
def test_loops_replace_those_given(layer: Any) -> None:
    x, _, _ = graph()
    edges = torch.tensor([[0, 1, 1, 2], [0, 0, 1, 2]])
    _, (index, _) = make(layer, add_self_loops=True)(x, edges, return_attention_weights=True)
    loops = torch.arange(8)
    assert torch.equal(index, torch.cat([torch.tensor([[1], [0]]), torch.stack([loops, loops])], dim=1))


# ------------------------------------------------------------------------------------------------ symmetry and bits
@pytest.mark.parametrize("layer", LAYERS)
@given(seed=st.integers(0, 1000))
def test_names_and_order_do_not_matter(layer: Any, seed: int) -> None:
    """Renamed nodes give the same rows elsewhere; permuted edges the same rows, and their weights permuted."""
    x, edges, attr = graph(seed=seed)
    conv = make(layer, edge_dim=2)
    out, (_, weights) = conv(x, edges, attr, return_attention_weights=True)
    order, names = torch.randperm(edges.shape[1]), torch.randperm(8)
    permuted, (_, permuted_weights) = conv(x, edges[:, order], attr[order], return_attention_weights=True)
    torch.testing.assert_close(permuted, out)
    torch.testing.assert_close(permuted_weights, weights[order])
    renamed = torch.empty_like(x)
    renamed[names] = x
    torch.testing.assert_close(conv(renamed, names[edges], attr)[names], out)


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_the_same_bits_every_time(layer: Any, edge_dim: int | None) -> None:
    """Forward and backward, five runs."""
    torch.manual_seed(0)
    conv = layer(4, 3, heads=2, edge_dim=edge_dim)
    x, edges, attr = graph(12, 60)
    x, attr = x.float().requires_grad_(), attr.float().requires_grad_()
    runs = []
    for _ in range(5):
        out = conv(x, edges, attr if edge_dim else None)
        runs.append([out, *torch.autograd.grad(out.square().sum(), [x, *conv.parameters()])])
    for run in runs[1:]:
        assert all(torch.equal(ours, first) for ours, first in zip(run, runs[0], strict=True))


@pytest.mark.parametrize("layer", LAYERS)
def test_gradients_by_differences(layer: Any) -> None:
    conv = make(layer, edge_dim=2)
    x, edges, attr = graph(4, 7)

    def run(x: Tensor, attr: Tensor, *parameters: Tensor) -> Tensor:
        named = dict(zip(dict(conv.named_parameters()), parameters, strict=True))
        out: Tensor = torch.func.functional_call(conv, named, (x, edges, attr))
        return out

    inputs = [tensor.detach().clone().requires_grad_() for tensor in (x, attr, *conv.parameters())]
    assert torch.autograd.gradcheck(run, inputs)


@pytest.mark.filterwarnings("ignore:Sparse (CSR|invariant)")
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
def test_sparse_features(layer: Any, layout: torch.layout) -> None:
    """Words of a document: mostly zeros, given as a sparse matrix, forward and backward as if they were dense."""
    x, edges, _ = graph()
    x = torch.where(x > 0.5, x, 0)
    conv = make(layer)
    outs = [conv(features, edges) for features in (x.to_sparse(layout=layout), x)]
    torch.testing.assert_close(outs[0], outs[1])
    grads = [torch.autograd.grad(out.square().sum(), list(conv.parameters())) for out in outs]
    torch.testing.assert_close(grads[0], grads[1])


# ------------------------------------------------------------------------------------------------ precision
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("autocast", [False, True])
def test_a_node_of_many_neighbours_in_half_precision(
    layer: Any, dtype: torch.dtype, autocast: bool, cases: ModuleType
) -> None:
    """Weights and outputs sum in float32; no dtype error, and the dtype in is the dtype out."""
    inputs, _ = cases.CASES["B56"]()
    count = len(inputs["src"])
    conv = layer((2, 2), 2, edge_dim=1, bias=False, **({} if layer is TransformerConv else {"add_self_loops": False}))
    with torch.no_grad():
        for parameter in conv.parameters():
            parameter.zero_()
        for name in ("lin_value", "lin_src", "lin_l"):
            if hasattr(conv, name):
                getattr(conv, name).weight.copy_(torch.eye(2))
    x = (inputs["v"].to(dtype), torch.zeros(1, 2, dtype=dtype))
    edges, attr = torch.stack([inputs["src"], inputs["dst"]]), inputs["edge_bias"].view(-1, 1)
    if autocast:
        with torch.autocast("cpu", dtype):
            out, (_, weights) = conv((x[0].float(), x[1].float()), edges, attr, return_attention_weights=True)
    else:
        conv, attr = conv.to(dtype), attr.to(dtype)
        out, (_, weights) = conv(x, edges, attr, return_attention_weights=True)
    assert out.dtype == dtype and out.shape == (1, 2) and weights.shape == (count, 1)
    torch.testing.assert_close(out.double(), torch.ones(1, 2).double(), rtol=0, atol=1e-2)
    torch.testing.assert_close(weights.double().sum(), torch.tensor(1.0).double(), rtol=0, atol=1e-2)


# ------------------------------------------------------------------------------------------------ bad inputs
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_index": torch.tensor([[0, 8], [1, 1]])}, r"edge_index\[0\] holds .* 8; it must be from 0 to 7"),
        ({"edge_index": torch.tensor([[0, 1], [1, -1]])}, r"edge_index\[1\] holds .* -1; it must be from 0 to 7"),
        ({"edge_index": torch.tensor([[0.0], [1.0]])}, "edge_index is torch.float32; it must be an integer tensor"),
        ({"edge_index": torch.tensor([[0, 1, 2]])}, r"edge_index has shape \[1, 3\]; it must be \[2, E\]"),
        ({"edge_index": [[0], [1]]}, "edge_index is list"),
        ({"edge_attr": torch.randn(3, 2).double()}, r"edge_attr has shape \[3, 2\]; its first axis must be E = 24"),
        ({"edge_attr": torch.randn(24, 3).double()}, r"edge_attr has shape \[24, 3\]; it must be \[E, edge_dim = 2\]"),
        ({"edge_attr": [[0.0]]}, "edge_attr is list"),
        ({"x": torch.randn(8, 5).double()}, r"x has shape \[8, 5\]; it must be \[N, in_channels = 4\]"),
        ({"x": torch.randn(2, 8, 4).double()}, r"x has shape \[2, 8, 4\]"),
        ({"x": [[0.0]]}, r"x is list|x\[0\] is list"),
    ],
)
@pytest.mark.parametrize("loops", [False, True])
def test_bad_inputs_are_named(layer: Any, change: dict[str, Any], message: str, loops: bool) -> None:
    x, edge_index, edge_attr = graph()
    arguments = {"x": x, "edge_index": edge_index, "edge_attr": edge_attr, **change}
    if "edge_attr" not in change and isinstance(arguments["edge_index"], Tensor):
        arguments["edge_attr"] = torch.randn(arguments["edge_index"].shape[1], 2).double()
    conv = make(layer, edge_dim=2, **({} if layer is TransformerConv else {"add_self_loops": loops}))
    with pytest.raises((ValueError, TypeError), match=message):
        conv(**arguments)


def test_bad_options_are_named() -> None:
    x, edges, attr = graph()
    with pytest.raises(TypeError, match="GATConv has no argument 'node_dim'"):
        GATConv(4, 3, node_dim=0)
    with pytest.raises(ValueError, match="flow is 'up'"):
        GATv2Conv(4, 3, flow="up")
    with pytest.raises(ValueError, match="fill_value is 'median'"):
        GATConv(4, 3, edge_dim=2, fill_value="median").double()(x, edges, attr)
    with pytest.raises(ValueError, match=r"size is \(8, 7\); x has 8 sources and 8 targets"):
        make(GATConv)((x, x.clone()), edges, size=(8, 7))
    with pytest.raises(ValueError, match="edge_attr is None; the layer has edge_dim=2"):
        make(TransformerConv, edge_dim=2)(x, edges)
    for layer in (GATv2Conv, TransformerConv):
        with pytest.raises(ValueError, match="edge_attr was given, but the layer has edge_dim=None"):
            make(layer)(x, edges, attr)
        with pytest.raises(ValueError, match=r"x\[1\] is None"):
            make(layer)((x, None), edges)


# ------------------------------------------------------------------------------------------------ how it runs
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_a_graph_runs_on_its_edges(layer: Any, edge_dim: int | None) -> None:
    """No dense call is made, and one call of the operator is all."""
    x, edges, attr = graph(300, 900)
    with attnops.trace() as plans:
        make(layer, edge_dim=edge_dim)(x, edges, attr if edge_dim else None)
    assert len(plans) == 1 and plans[0].backend in ("native", "scatter")


def test_import_needs_no_torch_geometric() -> None:
    code = (
        "import sys, torch, attnops.graph as graph\n"
        "graph.GATConv(4, 3)(torch.randn(3, 4), torch.tensor([[0, 1], [1, 2]]))\n"
        "loaded = {name.split('.')[0] for name in sys.modules}\n"
        "assert not loaded & {'torch_geometric', 'torch_scatter', 'torch_sparse'}, loaded"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)


# ------------------------------------------------------------------------------------------------ message passing
@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("step", ["message", "edge_update", "aggregate", "update", "propagate", "edge_updater"])
def test_a_step_that_nothing_would_call(layer: Any, step: str) -> None:
    """A subclass written for torch-geometric's message passing must not be silently another layer."""
    mine = type("Mine", (layer,), {step: lambda self, x_j: 0 * x_j})
    with pytest.raises(TypeError, match=f"Mine defines '{step}', which is never called.*subclass torch-geometric's"):
        mine(4, 3)
    assert not hasattr(make(layer), f"register_{step}_forward_pre_hook") or step == "message"
    type("Mine", (layer,), {"forward": lambda self, x: x, "messages": 3})(4, 3)


# ------------------------------------------------------------------------------------------------ edge features
@pytest.mark.parametrize("layer", [*LAYERS, RGATConv])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_edge_features_of_another_dtype(layer: Any, dtype: torch.dtype) -> None:
    x, edge_index, attr = graph()
    conv = make(layer, edge_dim=2) if layer is not RGATConv else RGATConv(4, 3, 1, edge_dim=2).double()
    more = [torch.zeros(24).long()] if layer is RGATConv else []
    with pytest.raises(TypeError, match=f"edge_attr is {dtype}; it must be torch.float64, as the weights of"):
        conv(x, edge_index, *more, attr.to(dtype))
    with torch.autocast("cpu", torch.bfloat16):
        conv.float()(x.float(), edge_index, *more, attr.bfloat16())
