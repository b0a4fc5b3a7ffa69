"""Every option of every layer runs on the compiled kernels where they are there, and gives what `scatter` gives."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops import graph

WHY_NOT = attnops.available_backends().get("native", "there is no such backend")
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=f"native: {WHY_NOT}")

NODES, EDGES = 300, 2000
CASES: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = []
for name in ("GATConv", "GATv2Conv"):
    for edge_dim, loops, residual in itertools.product((None, 2), (False, True), (False, True)):
        options = {"edge_dim": edge_dim, "add_self_loops": loops, "residual": residual, "heads": 2}
        CASES.append((name, (4, 3), options))
CASES += [("GATv2Conv", (4, 3), {"share_weights": True}), ("GATConv", (4, 3), {"aggr": "mean", "concat": False})]
for edge_dim, beta in itertools.product((None, 2), (False, True)):
    CASES.append(("TransformerConv", (4, 3), {"edge_dim": edge_dim, "beta": beta, "heads": 2}))
for mechanism, mode, mod in itertools.product(
    ("within-relation", "across-relation"),
    ("additive-self-attention", "multiplicative-self-attention"),
    (None, "additive", "f-additive", "scaled"),
):
    dim = 2 if mode.startswith("multi") else 1
    options = {"attention_mechanism": mechanism, "attention_mode": mode, "mod": mod, "dim": dim, "edge_dim": 2}
    CASES.append(("RGATConv", (4, 3, 3), {"heads": 2, **options}))
for name in ("GATConv", "GATv2Conv"):
    for fill_value in ("add", "max", 0.5):
        CASES.append((name, (4, 3), {"edge_dim": 2, "fill_value": fill_value, "negative_slope": 0.0}))
for name in ("GATConv", "GATv2Conv", "TransformerConv"):
    CASES += [(name, (4, 3), {"aggr": "max", "heads": 2}), (name, (4, 3), {"flow": "target_to_source"})]
for options in ({"mod": "f-scaled"}, {"num_bases": 2}, {"num_blocks": 2}, {"negative_slope": 0.0}, {"aggr": "max"},
                {"flow": "target_to_source"}):  # fmt: skip
    CASES.append(("RGATConv", (4, 3, 3), {"heads": 2, **options}))


def run(layer: Any, inputs: list[Tensor]) -> tuple[list[str], list[Tensor]]:
    """The backends used, and the result with every gradient."""
    with attnops.trace() as plans:
        out = layer(*inputs)
    grads = torch.autograd.grad(out.square().sum(), [inputs[0], *layer.parameters()], allow_unused=True)
    return [plan.backend for plan in plans], [out, *(grad for grad in grads if grad is not None)]


@pytest.mark.parametrize(("name", "arguments", "options"), CASES, ids=lambda value: str(value).replace(" ", ""))
def test_native(name: str, arguments: Any, options: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    if options.get("aggr") == "max":
        pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
    torch.manual_seed(0)
    layer = getattr(graph, name)(*arguments, **options).double()
    inputs = [torch.randn(NODES, 4).double().requires_grad_(), torch.randint(0, NODES, (2, EDGES))]
    if name == "RGATConv":
        inputs.append(torch.randint(0, 3, (EDGES,)))
    if options.get("edge_dim"):
        inputs.append(torch.randn(EDGES, 2).double())
    used, found = run(layer, inputs)
    assert set(used) == {"native"}
    for module in (graph.layer, graph.rgat_conv):
        right = module.attend
        monkeypatch.setattr(module, "attend", lambda *a, right=right, **kw: right(*a, **kw, backend="scatter"))
    used, expected = run(layer, inputs)
    assert set(used) == {"scatter"}
    for ours, other in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, other, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("options", [{}, {"keys": "relation", "relation_prior": "scale"}, {"softmax": "relation"},
                                     {"score": "gatv2", "type_prior": True, "edge_dim": 2}])  # fmt: skip
def test_relations_on_native(options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    writes, cites = ("author", "writes", "paper"), ("paper", "cites", "paper")
    metadata = (["author", "paper"], [writes, cites])
    x = {kind: torch.randn(NODES, 4) for kind in metadata[0]}
    edges = {relation: torch.randint(0, NODES, (2, EDGES)) for relation in metadata[1]}
    attr = {relation: torch.randn(EDGES, 2) for relation in edges} if "edge_dim" in options else None
    with attnops.trace() as plans:
        graph.HeteroAttention(metadata, 4, 3, 2, **options)(x, edges, attr)
        graph.HGTConv(4, 4, metadata, heads=2)(x, edges)
    assert [plan.backend for plan in plans] == ["native", "native"]


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv", "TransformerConv", "RGATConv"])
def test_dropout_and_weights_on_native(name: str) -> None:
    """In training with dropout, and where the weights come back."""
    torch.manual_seed(0)
    layer = getattr(graph, name)(4, 3, *([3] if name == "RGATConv" else []), heads=2, dropout=0.5)
    inputs = [torch.randn(NODES, 4), torch.randint(0, NODES, (2, EDGES))]
    if name == "RGATConv":
        inputs.append(torch.randint(0, 3, (EDGES,)))
    used, found = run(layer, [inputs[0].requires_grad_(), *inputs[1:]])
    assert set(used) == {"native"} and all(torch.isfinite(each).all() for each in found)
    with attnops.trace() as plans:
        _, (index, weights) = layer.eval()(*inputs, return_attention_weights=True)
    assert {plan.backend for plan in plans} == {"native"} and weights.shape == (index.shape[1], 2)
