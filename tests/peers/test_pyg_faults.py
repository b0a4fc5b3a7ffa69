"""Where torch-geometric is at fault: each line of docs/pyg.md, theirs and ours; what no longer holds fails here."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch

import attnops
from attnops.graph import GATConv, GATv2Conv, HeteroAttention, HGTConv, RGATConv, TransformerConv

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
from torch_geometric.utils import (  # noqa: E402
    add_self_loops,
    remove_self_loops,
    softmax,
    to_torch_coo_tensor,
    to_torch_csc_tensor,
    to_torch_csr_tensor,
)

pytestmark = pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|invariant)")
EDGES = torch.tensor([[0, 1], [0, 0]])
CITES, WRITES = ("paper", "cites", "paper"), ("author", "writes", "paper")
METADATA = (["paper", "author"], [CITES, WRITES])


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
@pytest.mark.parametrize("counts", [(3, 3), (2, 4), (4, 2)])
def test_loops_between_two_sets(name: str, counts: tuple[int, int], cases: ModuleType) -> None:
    """Case B19: with default options theirs uses edges that were not given."""
    inputs, _ = cases.CASES["B19"]()
    edges = torch.stack([inputs["src"], inputs["dst"]])
    x = (torch.randn(counts[0], 4), torch.randn(counts[1], 5))
    used = [
        layer((4, 5), 3)(x, edges, return_attention_weights=True)[1][0]
        for layer in (getattr(pyg, name), {"GATConv": GATConv, "GATv2Conv": GATv2Conv}[name])
    ]
    assert used[0].shape[1] > 2 and torch.equal(used[1], edges)


def test_a_type_that_only_sends(cases: ModuleType) -> None:
    """Case B24: missing from the output of theirs, so a second layer fails on it."""
    inputs, _ = cases.CASES["B24"]()
    sizes, relations = inputs["sizes"], list(inputs["edges"])
    theirs, ours = (layer(3, 3, (list(sizes), relations)).double() for layer in (pyg.HGTConv, HGTConv))
    ours.load_state_dict(theirs.state_dict())
    expected, out = theirs(inputs["q"], inputs["edges"]), ours(inputs["q"], inputs["edges"])
    assert set(expected) == {"p", "c"} and set(out) == set(sizes)
    torch.testing.assert_close({kind: out[kind] for kind in expected}, expected)
    with pytest.raises(KeyError):
        theirs(expected, inputs["edges"])
    assert set(ours(out, inputs["edges"])) == set(sizes)


def test_no_relation() -> None:
    x = {"paper": torch.randn(3, 4), "author": torch.randn(2, 4)}
    theirs, ours = pyg.HGTConv(4, 4, METADATA), HGTConv(4, 4, METADATA)
    with pytest.raises((RuntimeError, ValueError)):
        theirs(x, {})
    assert {kind: rows.shape for kind, rows in ours(x, {}).items()} == {"paper": (3, 4), "author": (2, 4)}


def test_degree_weights_that_are_not_set() -> None:
    """Theirs computes a matrix for `l2` and does not store it: what was in memory stays."""
    theirs, ours = pyg.RGATConv(4, 3, 2, mod="scaled"), RGATConv(4, 3, 2, mod="scaled")
    for layer in (theirs, ours):
        with torch.no_grad():
            layer.l2.fill_(7)
        layer.reset_parameters()
    assert (theirs.l2 == 7).all() and torch.equal(ours.l2, torch.full((3, 3), 1 / 3))


def test_relations_as_values() -> None:
    types = torch.tensor([1, 0])
    matrix = to_torch_csr_tensor(EDGES.flip(0), types, size=(3, 3))
    theirs, ours = pyg.RGATConv(4, 3, 2), RGATConv(4, 3, 2)
    x = torch.randn(3, 4)
    with pytest.raises(TypeError):
        theirs(x, matrix)
    torch.testing.assert_close(ours(x, matrix), ours(x, EDGES, types))


def test_a_group_that_is_forbidden(cases: ModuleType) -> None:
    logits, index = torch.tensor([float("-inf"), float("-inf"), 1.0]), torch.tensor([0, 0, 1])
    assert softmax(logits, index)[:2].isnan().all()
    nothing = attnops.attend(
        torch.zeros(1, 2, 1), torch.zeros(1, 3, 1), torch.ones(1, 3, 1), bias=logits.view(1, -1),
        pattern=attnops.Edges(torch.stack([torch.arange(3), index]), 2, 3), return_weights=True,
    )  # fmt: skip
    assert nothing.out.flatten().tolist() == [0, 1] and nothing.weights.flatten().tolist() == [0, 0, 1]
    layer = HeteroAttention(METADATA, 4, 3)
    x = {"paper": torch.randn(2, 4), "author": torch.randn(2, 4)}
    out = layer(x, {CITES: EDGES}, edge_data={"prior": {CITES: torch.zeros(2)}})
    assert (out["paper"] == 0).all()


def test_matrices() -> None:
    x, attr = torch.randn(3, 4), torch.randn(2, 2)
    columns, featured = (
        to_torch_csc_tensor(EDGES.flip(0), size=(3, 3)),
        to_torch_coo_tensor(EDGES.flip(0), attr, (3, 3)),
    )
    for name, ours in (("GATConv", GATConv), ("GATv2Conv", GATv2Conv)):
        theirs = getattr(pyg, name)
        with pytest.raises((ValueError, RuntimeError, AssertionError)):
            theirs(4, 3)(x, columns)
        ours(4, 3, add_self_loops=False)(x, columns)
        with pytest.raises((ValueError, RuntimeError, AssertionError)):
            theirs(4, 3, edge_dim=2, fill_value=0.0)(x, featured, return_attention_weights=True)
        ours(4, 3, edge_dim=2, fill_value=0.0)(x, featured, return_attention_weights=True)
    loose = torch.sparse_coo_tensor(EDGES.flip(0), torch.ones(2), (3, 3))
    with pytest.raises(RuntimeError, match="uncoalesced"):
        pyg.TransformerConv(4, 3)(x, loose)
    assert TransformerConv(4, 3)(x, loose).shape == (3, 3) and not loose.is_coalesced()


def test_edge_features_of_one_number() -> None:
    x, attr = torch.randn(3, 4), torch.randn(2)
    with pytest.raises(RuntimeError):
        pyg.TransformerConv(4, 3, edge_dim=1)(x, EDGES, attr)
    assert TransformerConv(4, 3, edge_dim=1)(x, EDGES, attr).shape == (3, 3)


def test_rows_where_messages_flow_back() -> None:
    """Edges from targets to sources: a row for every node that hears."""
    x, edges = (torch.randn(3, 4), torch.randn(2, 5)), torch.tensor([[0, 1], [2, 0]])
    options: dict[str, Any] = {"add_self_loops": False, "flow": "target_to_source"}
    assert GATConv((4, 5), 3, **options)(x, edges).shape == (2, 3)
    assert pyg.GATConv((4, 5), 3, **options)(x, edges).shape == (3, 3)


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv, TransformerConv])
def test_an_edge_that_is_not_there(layer: Any) -> None:
    """A negative end reads a row from behind in theirs, or whatever torch makes of it; here it is named."""
    with pytest.raises(ValueError, match=r"edge_index\[0\] holds .* -1; it must be from 0 to 2"):
        layer(4, 3)(torch.randn(3, 4), torch.tensor([[-1, 1], [0, 0]]))


def test_relations_in_another_order() -> None:
    """Theirs takes relations for sorted by their place in the metadata, and reads wrong maps where they are not."""
    back = ("paper", "by", "author")
    metadata = (["paper", "author"], [WRITES, back, CITES])
    theirs, ours = pyg.HGTConv(4, 4, metadata), HGTConv(4, 4, metadata)
    ours.load_state_dict(theirs.state_dict())
    x = {"paper": torch.randn(5, 4), "author": torch.randn(5, 4)}
    edges = {relation: torch.randint(0, 5, (2, 8)) for relation in metadata[1]}
    turned = dict(reversed(edges.items()))
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))
    torch.testing.assert_close(ours(x, turned), ours(x, edges))
    assert (theirs(x, turned)["paper"] - theirs(x, edges)["paper"]).abs().max() > 1e-3


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_loops_of_sampled_targets(name: str) -> None:
    """Targets that are the first of the sources: theirs adds their loops, ours where they are listed."""
    theirs, ours = (layer(4, 3) for layer in (getattr(pyg, name), {"GATConv": GATConv, "GATv2Conv": GATv2Conv}[name]))
    ours.load_state_dict(theirs.state_dict())
    x, edges = torch.randn(6, 4), torch.tensor([[0, 4, 5, 1], [1, 2, 0, 1]])
    listed, _ = add_self_loops(remove_self_loops(edges)[0], num_nodes=3)
    expected = theirs((x, x[:3]), edges)
    torch.testing.assert_close(ours((x, x[:3]), listed), expected)
    assert not torch.allclose(ours((x, x[:3]), edges), expected)


def test_weights_over_a_matrix_of_features() -> None:
    """Theirs declares a CSR matrix of a size that its values have not."""
    matrix, x = to_torch_csr_tensor(EDGES.flip(0), torch.randn(2, 2), size=(3, 3)), torch.randn(3, 4)
    theirs, ours = (
        layer(4, 3, edge_dim=2, fill_value=0.0)(x, matrix, return_attention_weights=True)[1][0]
        for layer in (pyg.GATConv, GATConv)
    )
    assert theirs.shape == (3, 3, 2, 1) and ours.to_dense().shape == (3, 3, 1)
    with pytest.raises(RuntimeError):
        theirs.to_dense()
    torch.testing.assert_close(ours.values().shape, theirs.values().shape)


def test_two_relations_where_messages_flow_back() -> None:
    """Theirs finds rows out of range; ours turns every relation round."""
    metadata = (["paper"], [CITES, ("paper", "likes", "paper")])
    edges = {relation: torch.tensor([[0, 1, 2], [1, 2, 3]]) for relation in metadata[1]}
    x = {"paper": torch.randn(5, 4)}
    with pytest.raises(IndexError):
        pyg.HGTConv(4, 4, metadata, flow="target_to_source")(x, edges)
    assert HGTConv(4, 4, metadata, flow="target_to_source")(x, edges)["paper"].shape == (5, 4)
