"""`HGTConv` against torch-geometric's own: first values, results and every gradient, over schemas and sizes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from attnops.graph import HGTConv, relation_rows

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")

KINDS = ["paper", "author", "venue"]
RELATIONS = [
    ("author", "writes", "paper"),
    ("paper", "cites", "paper"),
    ("paper", "in", "venue"),
    ("venue", "holds", "paper"),
    ("paper", "by", "author"),
]
CHANNELS = {"paper": 6, "author": 4, "venue": 3}


@st.composite
def problems(draw: Any) -> dict[str, Any]:
    return {
        "heads": draw(st.integers(1, 3)),
        "width": draw(st.integers(1, 3)),
        "in_channels": draw(st.sampled_from([CHANNELS, "out"])),
        "sizes": {kind: draw(st.integers(1, 5)) for kind in KINDS},
        "counts": [draw(st.integers(0, 9)) for _ in RELATIONS],
        "seed": draw(st.integers(0, 2**16)),
    }


def build(problem: dict[str, Any]) -> tuple[Any, Any, dict[str, Tensor], dict[Any, Tensor]]:
    out = problem["heads"] * problem["width"]
    channels = out if problem["in_channels"] == "out" else problem["in_channels"]
    layers = []
    for layer in (pyg.HGTConv, HGTConv):
        torch.manual_seed(problem["seed"])
        layers.append(layer(channels, out, (KINDS, RELATIONS), heads=problem["heads"]).double())
    sizes = problem["sizes"]
    x = {
        kind: torch.randn(sizes[kind], channels if isinstance(channels, int) else channels[kind]).double()
        for kind in KINDS
    }
    edges = {
        relation: torch.stack([torch.randint(0, sizes[relation[end]], (count,)) for end in (0, 2)])
        for relation, count in zip(RELATIONS, problem["counts"], strict=True)
    }
    return *layers, {kind: features.requires_grad_() for kind, features in x.items()}, edges


def perturb(*layers: Any) -> None:
    """Other values than ones for skips and priors, the same in all layers."""
    torch.manual_seed(5)
    state = {name: torch.randn_like(value) for name, value in layers[0].state_dict().items()}
    for layer in layers:
        layer.load_state_dict(state)


@settings(max_examples=40)
@given(problem=problems(), block=st.sampled_from([2, 64]))
def test_equal_results_and_gradients(problem: dict[str, Any], block: int) -> None:
    theirs, ours, x, edges = build(problem)
    perturb(theirs, ours)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relation_rows, "BLOCK", block)
        out = ours(x, edges)
    expected = theirs(x, edges)
    assert list(out) == list(expected)
    for kind, right in expected.items():
        torch.testing.assert_close(out[kind], right, rtol=1e-9, atol=1e-11)
    leaves = [*x.values(), *ours.parameters()], [*x.values(), *theirs.parameters()]
    grads = []
    for results, tensors in zip((out, expected), leaves, strict=True):
        total = sum((rows * torch.linspace(1, 2, rows.numel()).view_as(rows)).sum() for rows in results.values())
        grads.append(torch.autograd.grad(total, tensors, allow_unused=True))
    for mine, right, tensor in zip(*grads, leaves[0], strict=True):
        zero = torch.zeros_like(tensor)
        torch.testing.assert_close(
            zero if mine is None else mine, zero if right is None else right, rtol=1e-9, atol=1e-10
        )


@settings(max_examples=10)
@given(problem=problems())
def test_equal_parameters(problem: dict[str, Any]) -> None:
    """The same seed gives the same first values; a state loads both ways; both print alike."""
    theirs, ours, *_ = build(problem)
    assert list(ours.state_dict()) == list(theirs.state_dict())
    for name, value in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], value), name
    assert [name for name, _ in ours.named_parameters()] == [name for name, _ in theirs.named_parameters()]
    assert repr(ours) == repr(theirs)
    for layer in (ours, theirs):
        torch.manual_seed(1)
        layer.reset_parameters()
    for mine, right in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(mine, right)


def test_equal_signatures() -> None:
    import inspect

    for method in ("__init__", "forward"):
        mine, right = (inspect.signature(getattr(layer, method)).parameters for layer in (HGTConv, pyg.HGTConv))
        assert list(mine) == list(right)
        assert all(mine[name].default == parameter.default for name, parameter in right.items())


@pytest.mark.parametrize("channels", [-1, {"paper": -1, "author": 4, "venue": -1}])
def test_sizes_read_off_the_first_input(channels: Any) -> None:
    """With the same draws as theirs; a type that comes later is given its size then."""
    results = []
    for layer in (pyg.HGTConv, HGTConv):
        torch.manual_seed(3)
        conv = layer(channels, 4, (KINDS, RELATIONS), heads=2)
        x = {kind: torch.linspace(-1, 1, 2 * width).view(2, width) for kind, width in CHANNELS.items()}
        edges = {relation: torch.tensor([[0, 1], [1, 1]]) for relation in RELATIONS}
        first = {kind: x[kind] for kind in ("author", "paper")}
        some = {r: index for r, index in edges.items() if "venue" not in r}
        results.append((conv(first, some), conv(x, edges), conv.state_dict()))
    (their_first, their_out, theirs), (first, out, ours) = results
    assert list(ours) == list(theirs)
    for name, value in theirs.items():
        assert torch.equal(ours[name], value), name
    torch.testing.assert_close(first, their_first)
    torch.testing.assert_close(out, their_out)
    HGTConv(channels, 4, (KINDS, RELATIONS), heads=2).load_state_dict(theirs)  # gives the weights their sizes


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|invariant)")
@pytest.mark.parametrize("layout", ["coo", "csr"])
def test_sparse(layout: str) -> None:
    from torch_geometric.utils import to_torch_coo_tensor, to_torch_csr_tensor

    problem = {"heads": 2, "width": 2, "in_channels": CHANNELS, "seed": 1, "counts": [4, 5, 3, 2, 4]}
    problem["sizes"] = {"paper": 5, "author": 4, "venue": 2}
    theirs, ours, x, edges = build(problem)
    edges = {relation: torch.unique(index, dim=1) for relation, index in edges.items()}
    make = {"coo": to_torch_coo_tensor, "csr": to_torch_csr_tensor}[layout]
    matrices = {
        relation: make(index.flip(0), size=(problem["sizes"][relation[2]], problem["sizes"][relation[0]]))
        for relation, index in edges.items()
    }
    for given_edges in (matrices, edges):
        torch.testing.assert_close(ours(x, given_edges), theirs(x, given_edges), rtol=1e-9, atol=1e-11)


def test_in_channels_of_a_type_that_the_metadata_lack() -> None:
    """It has its map, as in theirs, and nothing else."""
    layers = [
        layer({"venue": 3, "dog": 7, **CHANNELS}, 4, (KINDS, RELATIONS), heads=2) for layer in (pyg.HGTConv, HGTConv)
    ]
    layers[1].load_state_dict(layers[0].state_dict())
    x = {kind: torch.randn(2, width) for kind, width in CHANNELS.items()}
    edges = {relation: torch.tensor([[0, 1], [1, 1]]) for relation in RELATIONS}
    expected, out = (layer(x, edges) for layer in layers)
    torch.testing.assert_close(out, expected)


@pytest.mark.parametrize("pairs_a_used", [0, 1000], ids=["blocks", "all"])
def test_features_that_no_edge_uses(pairs_a_used: int) -> None:
    """NaN there leaves the gradients of priors as theirs, and those of the relations' maps finite, unlike theirs."""
    problem = {"heads": 2, "width": 2, "in_channels": CHANNELS, "seed": 1, "counts": [4, 5, 3, 2, 4]}
    problem["sizes"] = {"paper": 5, "author": 4, "venue": 2}
    theirs, ours, x, edges = build(problem)
    x = {k: torch.cat([v.detach(), torch.full((1, v.shape[1]), float("nan")).double()]) for k, v in x.items()}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(relation_rows, "PAIRS_A_USED", pairs_a_used)
        out = ours(x, edges)
    for result in (out, theirs(x, edges)):
        sum(rows[:-1].square().sum() for rows in result.values()).backward()
    found = dict(ours.named_parameters())
    for name, parameter in theirs.named_parameters():
        if name.startswith(("k_rel", "v_rel")):
            assert parameter.grad.isnan().any() and found[name].grad.isfinite().all()
        if name.startswith("p_rel"):
            torch.testing.assert_close(found[name].grad, parameter.grad)


def test_messages_that_flow_back() -> None:
    """Within one type and relation, where theirs finds the rows it means."""
    metadata = (["paper"], [("paper", "cites", "paper")])
    layers = [layer(4, 4, metadata, heads=2, flow="target_to_source") for layer in (pyg.HGTConv, HGTConv)]
    layers[1].load_state_dict(layers[0].state_dict())
    x, edges = {"paper": torch.randn(5, 4)}, {metadata[1][0]: torch.randint(0, 5, (2, 9))}
    expected, out = (layer(x, edges) for layer in layers)
    torch.testing.assert_close(out, expected)
