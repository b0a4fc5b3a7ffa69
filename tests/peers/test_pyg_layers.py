"""The graph layers against torch-geometric's own: options, first values, results, weights and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attnops.graph

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")

CHANNELS, OUT, EDGE_DIM = 5, 3, 2
NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
REDUCED = st.sampled_from(["mean", "add", "min", "max", "mul"])
FILL = st.one_of(REDUCED, st.sampled_from([0.5, torch.tensor([0.25, -1.0], dtype=torch.float64)]))


@st.composite
def problems(draw: Any, name: str) -> dict[str, Any]:
    """Options of a layer, a graph and what its nodes and edges hold, by number of seed."""
    flag = st.booleans()
    bipartite = draw(flag)
    options: dict[str, Any] = {"heads": draw(st.integers(1, 3)), "concat": draw(flag), "bias": draw(flag)}
    options["edge_dim"] = draw(st.sampled_from([None, EDGE_DIM]))
    if name == "TransformerConv":
        options |= {"beta": draw(flag), "root_weight": draw(flag)}
    else:
        options |= {"residual": draw(flag), "negative_slope": draw(st.sampled_from([0.0, 0.2, 1.5]))}
        options |= {"add_self_loops": False if bipartite else draw(flag), "fill_value": draw(FILL)}
    if name == "GATv2Conv":
        options["share_weights"] = draw(flag)
    options["flow"] = draw(st.sampled_from(["source_to_target", "target_to_source"]))
    nodes = (draw(st.integers(1, 6)), draw(st.integers(1, 6)))
    if bipartite and name != "TransformerConv" and options["flow"] == "target_to_source":
        nodes = (nodes[0], nodes[0])  # theirs returns as many rows as there are sources
    options["aggr"] = draw(st.sampled_from(["add", "sum", "mean", "max", "min", "mul", "std"]))
    same = options.get("share_weights", False)
    return {
        "options": options,
        "bipartite": bipartite,
        "channels": (CHANNELS, CHANNELS if same else CHANNELS + 1) if bipartite else CHANNELS,
        "nodes": nodes,
        "edges": draw(st.integers(0, 12)),
        "attr": options["edge_dim"] is not None and (name == "TransformerConv" or draw(flag)),
        "seed": draw(st.integers(0, 2**16)),
    }


def build(problem: dict[str, Any], name: str) -> tuple[Any, Any, Any, Tensor, Tensor | None]:
    """Their layer, ours, and inputs that require gradients."""
    layers = []
    for library in (pyg, attnops.graph):
        torch.manual_seed(problem["seed"])
        layers.append(getattr(library, name)(problem["channels"], OUT, **problem["options"]).double())
    sources, targets = problem["nodes"]
    backwards = problem["options"].get("flow") == "target_to_source"
    if problem["bipartite"]:
        left, right = problem["channels"]
        x = (torch.randn(sources, left).double(), torch.randn(targets, right).double())
        x = tuple(features.requires_grad_() for features in x)
        ends = (sources, targets) if not backwards else (targets, sources)
    else:
        x, ends = torch.randn(sources, CHANNELS).double().requires_grad_(), (sources, sources)
    edge_index = torch.stack([torch.randint(0, count, (problem["edges"],)) for count in ends])
    attr = torch.randn(problem["edges"], EDGE_DIM).double().requires_grad_() if problem["attr"] else None
    return *layers, x, edge_index, attr


def tensors(x: Any, attr: Tensor | None, layer: Any) -> list[Tensor]:
    """All that a gradient may flow to."""
    return [*(x if isinstance(x, tuple) else (x,)), *([] if attr is None else [attr]), *layer.parameters()]


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=60)
@given(data=st.data())
def test_equal_results_and_gradients(name: str, data: Any) -> None:
    problem = data.draw(problems(name))
    theirs, ours, x, edge_index, attr = build(problem, name)
    expected, (expected_index, expected_weights) = theirs(x, edge_index, attr, return_attention_weights=True)
    out, (index, weights) = ours(x, edge_index, attr, return_attention_weights=True)
    assert torch.equal(index, expected_index)
    close(weights, expected_weights)
    close(out, expected)
    close(ours(x, edge_index, attr), expected)
    cotangent, other = torch.randn_like(expected), torch.randn_like(expected_weights)
    wanted = torch.autograd.grad(
        (expected * cotangent).sum() + (expected_weights * other).sum(), tensors(x, attr, theirs), allow_unused=True
    )
    found = torch.autograd.grad(
        (out * cotangent).sum() + (weights * other).sum(), tensors(x, attr, ours), allow_unused=True
    )
    for mine, right, tensor in zip(found, wanted, tensors(x, attr, ours), strict=True):
        zero = torch.zeros_like(tensor)
        close(zero if mine is None else mine, zero if right is None else right)


@pytest.mark.parametrize("name", NAMES)
@settings(max_examples=30)
@given(data=st.data())
def test_equal_parameters(name: str, data: Any) -> None:
    """The same seed gives the same first values; a state loads both ways; both print alike."""
    problem = data.draw(problems(name))
    theirs, ours, *_ = build(problem, name)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for key, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[key], value), key
    assert [key for key, _ in ours.named_parameters()] == [key for key, _ in theirs.named_parameters()]
    theirs.reset_parameters()
    assert not torch.equal(next(theirs.parameters()), next(ours.parameters()))
    ours.load_state_dict(theirs.state_dict())
    ours.reset_parameters()
    theirs.load_state_dict(ours.state_dict())
    for mine, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, right)
    assert repr(ours) == repr(theirs)


@pytest.mark.parametrize("name", NAMES)
def test_equal_signatures(name: str) -> None:
    """The same arguments in the same order with the same defaults, of the constructor and of a call."""
    import inspect

    ours, theirs = getattr(attnops.graph, name), getattr(pyg, name)
    for method in ("__init__", "forward"):
        mine, right = inspect.signature(getattr(ours, method)), inspect.signature(getattr(theirs, method))
        assert list(mine.parameters) == list(right.parameters)
        for argument, parameter in right.parameters.items():
            assert mine.parameters[argument].default == parameter.default, argument


@pytest.mark.parametrize("name", NAMES)
def test_sizes_read_off_the_first_input(name: str) -> None:
    x, edge_index, attr = torch.randn(4, CHANNELS), torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.randn(3, EDGE_DIM)
    results = []
    for library in (pyg, attnops.graph):
        torch.manual_seed(3)
        layer = getattr(library, name)(-1, OUT, heads=2, edge_dim=-1)
        torch.manual_seed(4)
        results.append((layer(x, edge_index, attr), layer.state_dict()))
    (expected, theirs), (out, ours) = results
    assert list(ours) == list(theirs)
    fresh = getattr(attnops.graph, name)(-1, OUT, heads=2, edge_dim=-1)
    fresh.load_state_dict(theirs)  # gives the weights their sizes
    torch.testing.assert_close(fresh(x, edge_index, attr), expected, rtol=1e-5, atol=1e-6)
    assert out.shape == expected.shape
    empty = getattr(attnops.graph, name)(-1, OUT, heads=2, edge_dim=-1)
    again = getattr(attnops.graph, name)(CHANNELS, OUT, heads=2, edge_dim=EDGE_DIM)
    again.load_state_dict(empty.state_dict())  # takes the sizes away
    torch.testing.assert_close(again(x, edge_index, attr).shape, expected.shape)


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_weights_and_output_agree_under_dropout(name: str) -> None:
    """In training the weights returned are those after dropout, the output their sum; in evaluation none drop."""
    x, edge_index = torch.randn(30, CHANNELS).double(), torch.randint(0, 30, (2, 400))
    layer = getattr(attnops.graph, name)(CHANNELS, OUT, heads=2, dropout=0.5, bias=False).double()
    out, (index, weights) = layer(x, edge_index, return_attention_weights=True)
    left = (layer.lin if name == "GATConv" else layer.lin_l)(x).view(-1, 2, OUT)
    summed = torch.zeros(30, 2, OUT).double().index_add(0, index[1], weights.unsqueeze(-1) * left[index[0]])
    close(out, summed.flatten(1))
    assert 0.4 < (weights == 0).double().mean() < 0.6
    layer.eval()
    kept = layer(x, edge_index, return_attention_weights=True)[1][1]
    torch.testing.assert_close(weights[weights > 0], 2 * kept[weights > 0])
    assert torch.equal(layer(x, edge_index), layer(x, edge_index))


def test_transformer_weights_are_those_before_dropout() -> None:
    x, edge_index = torch.randn(30, CHANNELS).double(), torch.randint(0, 30, (2, 400))
    layer = attnops.graph.TransformerConv(CHANNELS, OUT, heads=2, dropout=0.5).double()
    trained, (_, weights) = layer(x, edge_index, return_attention_weights=False)  # as theirs: False asks too
    layer.eval()
    evaluated, (_, kept) = layer(x, edge_index, return_attention_weights=True)
    close(weights, kept)
    assert not torch.allclose(trained, evaluated)


@pytest.mark.parametrize("name", NAMES)
def test_dropout_is_unbiased(name: str) -> None:
    x, edge_index = torch.randn(4, CHANNELS).double(), torch.tensor([[0, 1, 2, 3], [0, 0, 0, 0]])
    layer = getattr(attnops.graph, name)(CHANNELS, OUT, dropout=0.5).double()
    mean = torch.stack([layer(x, edge_index) for _ in range(600)]).mean(0)
    expected = layer.eval()(x, edge_index)
    assert (mean - expected).abs().max() < 0.25 * expected.abs().max()
