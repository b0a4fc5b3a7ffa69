"""Nodes mapped by the relations that they send by: in blocks and all of them, the same as edge by edge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from attnops.graph import relation_rows as module


@given(
    relations=st.integers(1, 4),
    nodes=st.integers(1, 9),
    edges=st.integers(0, 30),
    groups=st.integers(1, 3),
    with_bias=st.booleans(),
    seed=st.integers(0, 1000),
)
@pytest.mark.parametrize("pairs_an_edge", [0, 1000], ids=["blocks", "all"])
def test_each_edge_finds_its_node_mapped_by_its_relation(
    pairs_an_edge: int, relations: int, nodes: int, edges: int, groups: int, with_bias: bool, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    relation, node = (torch.randint(most, (edges,), generator=random) for most in (relations, nodes))
    x, weight, bias = (
        torch.randn(*shape, generator=random, dtype=torch.float64, requires_grad=True)
        for shape in ((nodes, groups * 3), (relations, groups, 3, 2), (relations, groups * 2))
    )
    given_bias = bias if with_bias else None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS_AN_EDGE", pairs_an_edge)
        patch.setattr(module, "BLOCK", 4)
        rows = module.relation_rows(relation, node, relations, nodes)
        mapped = module.map_rows(x, weight, rows, given_bias)
    assert (rows.relation is None) == (pairs_an_edge > 0 and edges > 0)
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
@pytest.mark.parametrize("pairs_an_edge", [0, 1000], ids=["blocks", "all"])
def test_rows_are_spread_and_summed_by_their_nodes(
    pairs_an_edge: int, relations: int, nodes: int, edges: int, seed: int
) -> None:
    random = torch.Generator().manual_seed(seed)
    edges = edges if nodes else 0
    relation, node = (torch.randint(max(1, most), (edges,), generator=random) for most in (relations, nodes))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "PAIRS_AN_EDGE", pairs_an_edge)
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
