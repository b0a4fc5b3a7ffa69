"""`RGATConv` against torch-geometric's own: every option, first values, results, weights and every gradient."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnops.graph import RGATConv, relation_rows

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")

CHANNELS, OUT, EDGE_DIM = 4, 3, 2
ADDITIVE, MULTIPLICATIVE = "additive-self-attention", "multiplicative-self-attention"


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    flag = st.booleans()
    mode = draw(st.sampled_from([ADDITIVE, MULTIPLICATIVE]))
    options: dict[str, Any] = {
        "num_relations": draw(st.integers(1, 4)),
        "mod": draw(st.sampled_from([None, "additive", "scaled", "f-additive", "f-scaled"])),
        "attention_mechanism": draw(st.sampled_from(["within-relation", "across-relation"])),
        "attention_mode": mode,
        "dim": draw(st.integers(1, 3)) if mode == MULTIPLICATIVE else 1,
        "heads": draw(st.sampled_from([1, 2])),
        "concat": draw(flag),
        "bias": draw(flag),
        "edge_dim": draw(st.sampled_from([None, EDGE_DIM])),
        "negative_slope": draw(st.sampled_from([0.0, 0.2])),
        "aggr": draw(st.sampled_from(["add", "mean", "max"])),
        "flow": draw(st.sampled_from(["source_to_target", "target_to_source"])),
    }
    options |= draw(st.sampled_from([{}, {"num_bases": 2}, {"num_blocks": 1}, {"num_blocks": 2}]))
    if options.get("num_blocks") == 2:
        options["heads"] = 2
    return {
        "options": options,
        "nodes": draw(st.integers(1, 6)),
        "edges": draw(st.integers(0, 14)),
        "attr": options["edge_dim"] is not None and draw(flag),
        "seed": draw(st.integers(0, 2**16)),
    }


def build(problem: dict[str, Any]) -> tuple[Any, Any, Tensor, Tensor, Tensor, Tensor | None]:
    layers = []
    for layer in (pyg.RGATConv, RGATConv):
        torch.manual_seed(problem["seed"])
        layers.append(layer(CHANNELS, OUT, **problem["options"]).double())
    state = layers[1].state_dict()  # theirs leaves l2 unset
    for name in ("w", "l1", "b1", "l2", "b2"):
        state[name] = torch.randn_like(state[name])
    for layer in layers:
        layer.load_state_dict(state)
    nodes, count = problem["nodes"], problem["edges"]
    x = torch.randn(nodes, CHANNELS).double().requires_grad_()
    edge_index, edge_type = (
        torch.randint(0, nodes, (2, count)),
        torch.randint(0, problem["options"]["num_relations"], (count,)),
    )
    attr = torch.randn(count, EDGE_DIM).double().requires_grad_() if problem["attr"] else None
    return *layers, x, edge_index, edge_type, attr


def close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-10)


@settings(max_examples=120)
@given(problem=problems(), block=st.sampled_from([2, 64]))
def test_equal_results_and_gradients(problem: dict[str, Any], block: int) -> None:
    theirs, ours, x, edge_index, edge_type, attr = build(problem)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relation_rows, "BLOCK", block)
        out, (index, weights) = ours(x, edge_index, edge_type, attr, return_attention_weights=True)
        close(ours(x, edge_index, edge_type, attr), out)
    expected, (_, expected_weights) = theirs(x, edge_index, edge_type, attr, return_attention_weights=False)
    assert index is edge_index
    close(weights, expected_weights)
    close(out, expected)
    cotangent, other = torch.randn_like(expected), torch.randn_like(weights)
    grads = []
    for layer, found, listed in ((ours, out, weights), (theirs, expected, expected_weights)):
        leaves = [x, *([] if attr is None else [attr]), *layer.parameters()]
        total = (found * cotangent).sum() + (listed * other).sum()
        grads.append(torch.autograd.grad(total, leaves, allow_unused=True))
    for mine, right, leaf in zip(*grads, leaves, strict=True):
        zero = torch.zeros_like(leaf)
        close(zero if mine is None else mine, zero if right is None else right)


@settings(max_examples=20)
@given(problem=problems())
def test_equal_parameters(problem: dict[str, Any]) -> None:
    """The same seed gives the same first values, but for l2, which theirs leaves unset; both print alike."""
    layers = []
    for layer in (pyg.RGATConv, RGATConv):
        torch.manual_seed(problem["seed"])
        layers.append(layer(CHANNELS, OUT, **problem["options"]))
        layers[-1].reset_parameters()
    theirs, ours = layers
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        right = torch.full_like(value, 1 / OUT) if name == "l2" else value
        assert torch.equal(ours.state_dict()[name], right), name
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert repr(ours) == repr(theirs)


def test_equal_signatures() -> None:
    for method in ("__init__", "forward"):
        mine, right = (inspect.signature(getattr(layer, method)).parameters for layer in (RGATConv, pyg.RGATConv))
        assert list(mine) == list(right)
        assert all(mine[name].default == parameter.default for name, parameter in right.items())


PLAIN: dict[str, Any] = {"options": {"num_relations": 3, "heads": 2}, "nodes": 5, "edges": 9, "attr": False, "seed": 0}


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|invariant)")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_relations_as_the_values_of_a_matrix(layout: str) -> None:
    from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

    theirs, ours, x, edge_index, edge_type, _ = build(PLAIN)
    edge_index = torch.unique(edge_index, dim=1)
    edge_type = edge_type[: edge_index.shape[1]]
    make = {"coo": to_torch_coo_tensor, "csr": to_torch_csr_tensor}[layout]
    matrix = make(edge_index.flip(0), edge_type, size=(5, 5))
    stored = edge_type[torch.argsort(edge_index[1] * 5 + edge_index[0])]
    # theirs documents None here too, and fails on it
    expected, (their_matrix, their_weights) = theirs(x, matrix, stored, return_attention_weights=True)
    out, (weighted, weights) = ours(x, matrix, return_attention_weights=True)
    close(out, expected)
    close(weights, their_weights)
    close(weighted.to_dense(), their_matrix.to_dense())
    close(ours(x, edge_index, edge_type), expected)
    close(ours(x, matrix, stored), expected)


def test_pairs_sizes_and_edge_index() -> None:
    from torch_geometric import EdgeIndex

    theirs, ours, x, edge_index, edge_type, _ = build(PLAIN)
    pair = (x, torch.randn(5, CHANNELS).double())
    close(ours(pair, edge_index, edge_type), theirs(pair, edge_index, edge_type))
    close(ours(x, edge_index, edge_type, size=(5, 5)), theirs(x, edge_index, edge_type, size=(5, 5)))
    wrapped = EdgeIndex(edge_index, sparse_size=(5, 5))
    close(ours(x, wrapped, edge_type), theirs(x, wrapped, edge_type))
    fewer = (x, torch.randn(6, CHANNELS).double())
    assert ours(fewer, edge_index, edge_type).shape == (6, 2 * OUT)


def test_dropout() -> None:
    """In training the weights that come back are those before dropout, as theirs; the mean is unbiased."""
    ours = RGATConv(CHANNELS, OUT, 3, heads=2, dropout=0.5).double()
    _, _, x, edge_index, edge_type, _ = build(PLAIN)
    _, (_, weights) = ours(x, edge_index, edge_type, return_attention_weights=True)
    mean = torch.stack([ours(x, edge_index, edge_type) for _ in range(800)]).mean(0)
    ours.eval()
    expected, (_, kept) = ours(x, edge_index, edge_type, return_attention_weights=True)
    close(weights, kept)
    assert (mean - expected).abs().max() < 0.25 * expected.abs().max()


@pytest.mark.parametrize("counts", [(5, 5), (7, 4), (3, 6)])
def test_a_pair_where_messages_flow_back(counts: tuple[int, int]) -> None:
    """The first of the pair sends, whatever the flow; theirs has a row for every sender, ours for every receiver."""
    options = {**PLAIN["options"], "flow": "target_to_source"}
    theirs, ours, *_ = build({**PLAIN, "options": options})
    x = [torch.randn(count, CHANNELS).double().requires_grad_() for count in counts]
    edges = torch.stack([torch.randint(0, min(counts), (9,)), torch.randint(0, counts[0], (9,))])
    types = torch.randint(0, 3, (9,))
    rows = min(counts)
    out, expected = ours(tuple(x), edges, types), theirs(tuple(x), edges, types)
    assert out.shape[0] == counts[1]
    close(out[:rows], expected[:rows])
    grads = [
        torch.autograd.grad(each[:rows].square().sum(), [*x, layer.q])
        for each, layer in ((out, ours), (expected, theirs))
    ]
    for mine, right in zip(*grads, strict=True):
        close(mine, right)


@pytest.mark.parametrize("mechanism", ["within-relation", "across-relation"])
@pytest.mark.parametrize("pairs_a_used", [0, 1000], ids=["blocks", "all"])
def test_features_that_no_edge_uses(mechanism: str, pairs_a_used: int) -> None:
    """NaN there leaves gradients alone, as in theirs, however rows are mapped."""
    theirs, ours, x, edge_index, edge_type, _ = build(
        {**PLAIN, "options": {**PLAIN["options"], "attention_mechanism": mechanism}}
    )
    x = torch.cat([x.detach(), torch.full((1, CHANNELS), float("nan"), dtype=torch.float64)])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relation_rows, "PAIRS_A_USED", pairs_a_used)
        out = ours(x, edge_index.clone(), edge_type)
    expected = theirs(x, edge_index, edge_type)
    close(out, expected)
    for result in (out, expected):
        result.square().sum().backward()
    for name in ("weight", "q", "k"):
        close(getattr(ours, name).grad, getattr(theirs, name).grad)
