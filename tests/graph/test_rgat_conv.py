"""`RGATConv` where its interface does not say: nodes without edges, how it runs, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops.graph import RGATConv, edge_cache, typed_edges
from attnops.patterns import edges as edges_module

pytestmark = pytest.mark.usefixtures("poison")


def problem(**options: Any) -> tuple[RGATConv, Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    layer = RGATConv(4, 3, 3, heads=2, **options).double()
    return layer, torch.randn(6, 4).double(), torch.randint(0, 5, (2, 12)), torch.randint(0, 3, (12,))


@pytest.mark.parametrize("mechanism", ["within-relation", "across-relation"])
@pytest.mark.parametrize("mod", [None, "additive", "scaled", "f-additive", "f-scaled"])
def test_a_node_that_no_edge_enters(mechanism: str, mod: str | None) -> None:
    """Its row is the bias; with no edge at all, every row is, and gradients are finite."""
    layer, x, edges, types = problem(attention_mechanism=mechanism, mod=mod)
    x.requires_grad_()
    for index, kinds in ((edges, types), (edges[:, :0], types[:0])):
        out = layer(x, index, kinds)
        assert out.shape == (6, 6) and torch.equal(out[5], layer.bias)
        grads = torch.autograd.grad(out.sum(), [x, *layer.parameters()], allow_unused=True)
        assert all(grad is None or torch.isfinite(grad).all() for grad in grads)
    assert torch.equal(out, layer.bias.expand(6, -1))


@pytest.mark.parametrize("mechanism", ["within-relation", "across-relation"])
def test_one_call_of_the_operator(mechanism: str) -> None:
    layer, x, edges, types = problem(attention_mechanism=mechanism)
    with attnops.trace() as plans:
        layer(x, edges, types)
    assert len(plans) == 1


def test_sorted_once(monkeypatch: pytest.MonkeyPatch) -> None:
    layer, x, edges, types = problem()
    read, sorts = [], []
    rows, sort = typed_edges.relation_rows, edges_module.sort_edges
    monkeypatch.setattr(typed_edges, "relation_rows", lambda *a: read.append(1) or rows(*a))
    monkeypatch.setattr(edges_module, "sort_edges", lambda *a: sorts.append(1) or sort(*a))
    edge_cache.forget()
    for _ in range(3):
        out = layer(x, edges, types)
    assert len(read) == 2  # of sources and of targets
    count = len(sorts)
    types[0] = (types[0] + 1) % 3
    assert not torch.equal(layer(x, edges, types), out)
    assert len(read) == 4 and len(sorts) > count


@pytest.mark.parametrize("mechanism", ["within-relation", "across-relation"])
@pytest.mark.parametrize("options", [{}, {"num_blocks": 2}, {"mod": "f-additive"}])
def test_compiled_in_one_graph(mechanism: str, options: dict[str, Any]) -> None:
    layer, *arguments = problem(attention_mechanism=mechanism, **options)
    out = torch.compile(layer, fullgraph=True, backend="aot_eager")(*arguments)
    torch.testing.assert_close(out, layer(*arguments))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"edge_type": torch.full((12,), 3)}, "edge_type holds 3; it must be from 0 to num_relations - 1 = 2"),
        ({"edge_type": torch.full((12,), -1)}, "edge_type holds -1"),
        ({"edge_type": torch.zeros(11).long()}, r"edge_type has shape \[11\]; it must be \[E = 12\]"),
        ({"edge_type": torch.zeros(12)}, "edge_type is torch.float32; it must be an integer tensor"),
        ({"edge_type": None}, "edge_type is NoneType"),
        ({"edge_index": torch.full((2, 12), 6)}, r"edge_index\[0\] holds .* 6; it must be from 0 to 5"),
        ({"edge_index": torch.zeros(2, 12)}, "edge_index is torch.float32"),
        ({"edge_attr": torch.zeros(12, 2).double()}, "edge_attr was given, but the layer has edge_dim=None"),
        ({"edge_attr": torch.zeros(3, 2).double()}, r"edge_attr has shape \[3, 2\]; its first axis must be E = 12"),
        ({"size": (6, 7)}, r"size is \(6, 7\); x has 6 sources and 6 targets"),
        ({"x": torch.zeros(6, 5).double()}, r"x has shape \[6, 5\]; it must be \[N, in_channels = 4\]"),
    ],
)
def test_bad_inputs_are_named(change: dict[str, Any], message: str) -> None:
    layer, x, edges, types = problem()
    with pytest.raises((ValueError, TypeError), match=message):
        layer(**{"x": x, "edge_index": edges, "edge_type": types, **change})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"attention_mechanism": "across"}, "attention_mechanism is 'across'; it must be one of"),
        ({"attention_mode": "dot"}, "attention_mode is 'dot'"),
        ({"dim": 2}, "dim is 2; with attention_mode='additive-self-attention' it must be 1"),
        ({"mod": "plus"}, "mod is 'plus'"),
        ({"mod": "scaled", "dropout": 0.1}, "mod is 'scaled' beside dropout = 0.1"),
        ({"num_bases": 2, "num_blocks": 2}, "num_bases and num_blocks were both given"),
        ({"num_blocks": 3}, "num_blocks is 3; it must divide in_channels = 4 and heads · out_channels = 6"),
        ({"num_relations": 0}, "num_relations is 0"),
        ({"edge_dim": -1}, "edge_dim is -1; it must be an integer of 1 or more"),
        ({"edge_dim": 0}, "edge_dim is 0"),
    ],
)
def test_bad_options_are_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        RGATConv(**{"in_channels": 4, "out_channels": 3, "num_relations": 3, "heads": 2, **options})
