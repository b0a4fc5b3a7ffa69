"""Nodes mapped by the relations that they send by: in blocks and all of them, the same as edge by edge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import attnops
from attnops.graph import HeteroAttention, HGTConv, RGATConv
from attnops.graph import relation_rows as module


@given(
    relations=st.integers(1, 4),
    nodes=st.integers(1, 9),
    edges=st.integers(0, 30),
    groups=st.integers(1, 3),
    with_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("pairs_a_used", [0, 1000], ids=["blocks", "all"])
def test_each_edge_finds_its_node_mapped_by_its_relation(
    pairs_a_used: int, relations: int, nodes: int, edges: int, groups: int, with_bias: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    relation, node = (torch.randint(most, (edges,), generator=random) for most in (relations, nodes))
    x, weight, bias = (
        torch.randn(*shape, generator=random, dtype=torch.float64, requires_grad=True)
        for shape in ((nodes, groups * 3), (relations, groups, 3, 2), (relations, groups * 2))
    )
    given_bias = bias if with_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS_A_USED", pairs_a_used)
        patch.setattr(module, "BLOCK", 4)
        rows = module.relation_rows(relation, node, relations, nodes)
        mapped = module.map_rows(x, weight, rows, given_bias)
    assert (rows.relation is None) == (pairs_a_used > 0 and edges > 0)
    assert torch.equal(rows.node[rows.row], node)
    got = mapped[:, rows.row]  # [G, E, F]
    right = torch.einsum("egd,egdf->gef", x.view(nodes, groups, 3)[node], weight[relation])
    if with_bias:
        right = right + bias.view(relations, groups, 2)[relation].transpose(0, 1)
    torch.testing.assert_close(got, right, rtol=1e-12, atol=1e-12)
    upstream = torch.randn(got.shape, generator=random, dtype=torch.float64)
    for mine, theirs in zip(*(torch.autograd.grad(out, (x, weight), upstream) for out in (got, right)), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-12, atol=1e-12)


@given(relations=st.integers(1, 4), nodes=st.integers(0, 9), edges=st.integers(0, 30), seed=st.integers(0, 1000))
@pytest.mark.parametrize("pairs_a_used", [0, 1000], ids=["blocks", "all"])
def test_rows_are_spread_and_summed_by_their_nodes(
    pairs_a_used: int, relations: int, nodes: int, edges: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    edges = edges if nodes else 0
    relation, node = (torch.randint(max(1, most), (edges,), generator=random) for most in (relations, nodes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS_A_USED", pairs_a_used)
        patch.setattr(module, "BLOCK", 4)
        rows = module.relation_rows(relation, node, relations, nodes)
    x = torch.randn(nodes, 2, 3, generator=random, requires_grad=True)
    spread = module.spread_to_rows(x, rows)
    assert torch.equal(spread, x[rows.node])
    y = torch.randn(spread.shape, generator=random)
    right = torch.zeros(nodes, 2, 3).index_add(0, rows.node, y)
    torch.testing.assert_close(module.sum_of_rows(y, rows, nodes), right)
    (gradient,) = torch.autograd.grad(spread, x, y)
    torch.testing.assert_close(gradient, right)


def test_a_node_that_no_edge_uses_is_not_read() -> None:
    x = torch.tensor([[1.0, 2.0], [float("nan")] * 2, [3.0, 4.0]])
    weight = torch.ones(2, 1, 2, 1, requires_grad=True)
    rows = module.relation_rows(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 2, 2]), 2, 3)
    assert rows.relation is None and rows.used is not None and rows.used.tolist() == [True, False, True]
    mapped = module.map_rows(x, weight, rows)[0, :, 0]
    assert mapped.tolist() == [3, 3, 0, 0, 7, 7]
    (gradient,) = torch.autograd.grad(mapped.sum(), weight)
    assert gradient.flatten().tolist() == [4, 6, 4, 6]
    every = module.relation_rows(torch.tensor([0, 1, 1, 0]), torch.tensor([0, 1, 2, 2]), 2, 3)
    assert every.used is None  # nothing is copied then


def test_relations_without_edges_are_not_mapped() -> None:
    node = torch.arange(100).repeat(30)
    few = module.relation_rows(torch.zeros_like(node), node, 40, 100)
    assert few.relation is not None and few.node.shape[0] <= 100 + module.BLOCK
    most = module.relation_rows(torch.zeros_like(node), node, 2, 100)
    assert most.relation is None and most.node.shape[0] == 200


def test_sparse_features_are_mapped_too() -> None:
    x = torch.randn(9, 4).relu().to_sparse()
    layer, edges, kinds = RGATConv(4, 4, 2), torch.randint(9, (2, 20)), torch.randint(2, (20,))
    torch.testing.assert_close(layer(x, edges, kinds), layer(x.to_dense(), edges, kinds))
    hetero = HeteroAttention((["a"], [("a", "x", "a")]), 4, 4, heads=2, keys="relation")
    found, right = (hetero({"a": each}, {("a", "x", "a"): edges})["a"] for each in (x, x.to_dense()))
    torch.testing.assert_close(found, right)


@pytest.mark.parametrize("keys, softmax", [("relation", "joint"), ("type", "relation"), ("relation", "relation")])
def test_a_bias_of_positions_sees_nodes_however_they_are_mapped(keys: str, softmax: str) -> None:
    torch.manual_seed(0)
    one, other = ("a", "x", "a"), ("a", "y", "a")
    layer = HeteroAttention((["a"], [one, other]), 4, 4, heads=2, keys=keys, softmax=softmax, bias=attnops.ALiBi(2))
    x, edges = {"a": torch.randn(6, 4)}, {one: torch.tensor([[0, 5], [1, 1]]), other: torch.tensor([[3], [1]])}
    outs = []
    for pairs_a_used in (0, 1000):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, "PAIRS_A_USED", pairs_a_used)
            outs.append(layer(x, {relation: index.clone() for relation, index in edges.items()})["a"])
    torch.testing.assert_close(*outs)


def test_a_relation_of_a_type_that_is_none_has_no_edges() -> None:
    layer = HGTConv(4, 4, (["a"], [("a", "x", "a"), ("z", "y", "a")]))
    out = layer({"a": torch.randn(3, 4)}, {("a", "x", "a"): torch.tensor([[0], [1]])})
    assert out["a"].shape == (3, 4)


def test_two_relations_of_one_joined_name_are_refused() -> None:
    with pytest.raises(ValueError, match="names join to 'a__b__c__b'"):
        HeteroAttention((["a", "a__b", "b"], [("a", "b__c", "b"), ("a__b", "c", "b")]), 4, 4, keys="relation")


def test_relations_of_torch_geometrics_index_are_checked() -> None:
    geometric = pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
    layer, edges = RGATConv(4, 4, 2), torch.randint(9, (2, 20))
    with pytest.raises(ValueError, match="edge_type holds 7"):
        layer(torch.randn(9, 4), edges, geometric.Index(torch.full((20,), 7)))
    kinds, x = torch.randint(2, (20,)), torch.randn(9, 4)
    torch.testing.assert_close(layer(x, edges, geometric.Index(kinds)), layer(x, edges, kinds))


def test_relations_may_be_vmapped() -> None:
    torch.manual_seed(0)
    relation, node = torch.randint(3, (2, 5)), torch.randint(30, (5,))

    def row_of(kinds: torch.Tensor) -> torch.Tensor:
        return module.relation_rows(kinds, node, 3, 30).row

    assert torch.equal(torch.func.vmap(row_of)(relation), node * 3 + relation)
