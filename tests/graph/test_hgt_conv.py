"""`HGTConv` where its interface does not say, and where its peer is wrong."""

from __future__ import annotations

import gc
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops.graph import HGTConv, edge_cache, hgt_conv
from attnops.patterns import edges as edges_module

pytestmark = pytest.mark.usefixtures("poison")

WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
METADATA = (["author", "paper"], [WRITES, CITES])


def problem() -> tuple[HGTConv, dict[str, Tensor], dict[Any, Tensor]]:
    torch.manual_seed(0)
    layer = HGTConv({"author": 3, "paper": 4}, 4, METADATA, heads=2).double()
    x = {"author": torch.randn(3, 3).double(), "paper": torch.randn(5, 4).double()}
    return layer, x, {WRITES: torch.randint(0, 3, (2, 6)), CITES: torch.randint(0, 5, (2, 8))}


def test_relations_without_edges_and_types_without_nodes(cases: ModuleType) -> None:
    """Case B24: every type comes back with its own number of rows; one that nothing enters keeps its skip alone."""
    inputs, _ = cases.CASES["B24"]()
    sizes, relations = inputs["sizes"], list(inputs["edges"])
    layer = HGTConv(3, 3, (list(sizes), relations)).double()
    x = {kind: inputs["q"][kind].clone().requires_grad_() for kind in sizes}
    for given_edges in (inputs["edges"], {r: e for r, e in inputs["edges"].items() if e.shape[1]}, {}):
        out = layer(x, given_edges)
        assert {kind: rows.shape for kind, rows in out.items()} == {kind: (count, 3) for kind, count in sizes.items()}
        for kind in ("a", "c"):
            share = layer.skip[kind].sigmoid()
            alone = share * layer.out_lin.lins[kind].bias + (1 - share) * x[kind]
            torch.testing.assert_close(out[kind], alone)
        grads = torch.autograd.grad(
            sum(rows.sum() for rows in out.values()), [*x.values(), *layer.parameters()], allow_unused=True
        )
        assert all(grad is None or torch.isfinite(grad).all() for grad in grads)
    without = layer({"a": x["a"], "p": x["p"]}, {relations[0]: inputs["edges"][relations[0]]})
    assert {kind: len(rows) for kind, rows in without.items()} == {"a": 3, "p": 2}


def test_one_call_of_the_operator() -> None:
    layer, x, edges = problem()
    with attnops.trace() as plans:
        layer(x, edges)
    assert len(plans) == 1 and plans[0].problem.score == "dot" and not plans[0].problem.biased


def test_joined_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Relations are joined and sorted once; an edit of any of them is noticed; all is released with the first."""
    layer, x, edges = problem()
    joins, sorts = [], []
    join, sort = hgt_conv.join_relations, edges_module.sort_edges
    monkeypatch.setattr(hgt_conv, "join_relations", lambda *a: joins.append(1) or join(*a))
    monkeypatch.setattr(edges_module, "sort_edges", lambda *a: sorts.append(1) or sort(*a))
    edge_cache.forget()
    for _ in range(3):
        out = layer(x, edges)
    assert len(joins) == len(sorts) == 1
    other = {WRITES: edges[WRITES], CITES: edges[CITES].clone()}
    assert torch.equal(layer(x, other)["paper"], out["paper"]) and len(joins) == 2
    layer(x, edges)
    assert len(joins) == 2  # both are kept
    edges[CITES][0, 0] = (edges[CITES][0, 0] + 1) % 5
    assert not torch.equal(layer(x, edges)["paper"], out["paper"]) and len(joins) == 3
    del edges, other
    gc.collect()
    assert len(edge_cache._kept) == 0


def test_compiled_in_one_graph() -> None:
    layer, x, edges = problem()
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(x, edges)
    torch.testing.assert_close(out, layer(x, edges))


def test_the_same_bits_every_time() -> None:
    layer, x, edges = problem()
    runs = []
    for _ in range(3):
        total = sum(rows.square().sum() for rows in layer(x, edges).values())
        runs.append(torch.autograd.grad(total, list(layer.parameters()), allow_unused=True))
    for run in runs[1:]:
        assert all(a is b or torch.equal(a, b) for a, b in zip(run, runs[0], strict=True))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x": {"dog": torch.zeros(1, 3)}}, "x_dict holds the node type 'dog'; the metadata have author, paper"),
        ({"x": {"paper": torch.zeros(2, 3)}}, r"x_dict\['paper'\] is \[2, 3\]; .* \[N, in_channels = 4\]"),
        (
            {"edges": {("paper", "x", "paper"): torch.zeros(2, 1).long()}},
            "holds the relation .*; the metadata have",
        ),
        ({"x": {"paper": torch.zeros(5, 4)}}, r"x_dict\['paper'\] is torch.float32; it must be torch.float64, as the"),
        ({"edges": {WRITES: torch.tensor([[3], [0]])}}, r"of the relation .*: edge_index\[0\] holds .* 3; .* 0 to 2"),
        ({"edges": {WRITES: torch.tensor([[0], [-1]])}}, r"of the relation .*: edge_index\[1\] holds .* -1"),
        ({"edges": {WRITES: torch.zeros(2, 1)}}, "of the relation .*: edge_index is torch.float32"),
    ],
)
def test_bad_inputs_are_named(change: dict[str, Any], message: str) -> None:
    layer, x, edges = problem()
    with pytest.raises((ValueError, TypeError), match=message):
        layer({**x, **change.get("x", {})}, {**edges, **change.get("edges", {})})
    with pytest.raises(ValueError, match="x_dict is empty"):
        layer({}, {})


def test_bad_options_are_named() -> None:
    with pytest.raises(ValueError, match="out_channels is 5; it must be a multiple of heads = 2"):
        HGTConv(4, 5, METADATA, heads=2)
    with pytest.raises(TypeError, match="HGTConv has no argument 'aggr'"):
        HGTConv(4, 4, METADATA, aggr="mean")
    with pytest.raises(ValueError, match="flow is 'both'"):
        HGTConv(4, 4, METADATA, flow="both")
    with pytest.raises(ValueError, match="in_channels lacks the node type 'paper'"):
        HGTConv({"author": 3}, 4, METADATA)


def test_layers_with_types_in_another_order_share_no_rows() -> None:
    """Rows lie in the order of `in_channels`, which is then part of what a kept graph is found by."""
    layer, x, edges = problem()
    other = HGTConv({"paper": 4, "author": 3}, 4, METADATA, heads=2).double()
    other.load_state_dict(layer.state_dict())
    alone = other(x, {relation: index.clone() for relation, index in edges.items()})
    layer(x, edges)
    torch.testing.assert_close(other(x, edges), alone)


def test_a_relation_named_twice() -> None:
    with pytest.raises(ValueError, match=r"metadata hold the relation \('author', 'writes', 'paper'\) twice"):
        HGTConv(4, 4, (["author", "paper"], [WRITES, CITES, WRITES]))


def test_messages_that_flow_back() -> None:
    """As a layer over the relations turned round, on their edges turned round."""
    turned = {relation: relation[::-1] for relation in (WRITES, CITES)}
    layer, x, edges = problem()
    back = HGTConv({"author": 3, "paper": 4}, 4, METADATA, heads=2, flow="target_to_source").double()
    other = HGTConv({"author": 3, "paper": 4}, 4, (METADATA[0], list(turned.values())), heads=2).double()
    with torch.no_grad():
        for mine, right in zip(back.parameters(), other.parameters(), strict=True):
            mine.copy_(right.normal_())
    forward = layer(x, edges)
    expected = other(x, {turned[relation]: index.flip(0) for relation, index in edges.items()})
    torch.testing.assert_close(back(x, edges), expected)
    assert torch.equal(layer(x, edges)["paper"], forward["paper"])
