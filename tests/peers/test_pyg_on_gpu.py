"""Every layer beside torch-geometric's own on a GPU: results, weights and every gradient in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops.graph

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no GPU here")

NODES, COUNT, WRITES, CITES = 30, 140, ("author", "writes", "paper"), ("paper", "cites", "paper")
MULTIPLICATIVE = "multiplicative-self-attention"
LAYERS: list[tuple[str, dict[str, Any]]] = [
    *((name, {"heads": 2, **options}) for name in ("GATConv", "GATv2Conv") for options in (
        {}, {"edge_dim": 2}, {"add_self_loops": False, "residual": True}, {"aggr": "mean", "concat": False},
        {"edge_dim": 2, "fill_value": "max", "bias": False})),
    *(("TransformerConv", {"heads": 2, **options}) for options in ({}, {"edge_dim": 2, "beta": True})),
    *(("RGATConv", {"heads": 2, "attention_mechanism": mechanism, **options})
      for mechanism in ("within-relation", "across-relation") for options in (
        {}, {"mod": "additive"}, {"mod": "f-additive"}, {"num_bases": 2}, {"num_blocks": 2}, {"edge_dim": 2},
        {"attention_mode": MULTIPLICATIVE, "dim": 2})),
]  # fmt: skip


def same_gradients(pairs: list[tuple[Any, Tensor]], x: list[Tensor]) -> None:
    """Of (ours, its result) and (theirs, its result), for the inputs and every parameter."""
    cotangent = torch.randn_like(pairs[0][1])
    grads = [
        torch.autograd.grad((out * cotangent).sum(), [*x, *layer.parameters()], materialize_grads=True)
        for layer, out in pairs
    ]
    for mine, right in zip(*grads, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize(("name", "options"), LAYERS, ids=lambda value: str(value).replace(" ", ""))
def test_equal(name: str, options: dict[str, Any]) -> None:
    torch.manual_seed(0)
    arguments = (4, 3, 3) if name == "RGATConv" else (4, 3)
    theirs, ours = (getattr(lib, name)(*arguments, **options).double().cuda() for lib in (pyg, attnops.graph))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = torch.randn(NODES, 4).double().cuda().requires_grad_()
    given = [torch.randint(0, NODES, (2, COUNT)).cuda()]
    if name == "RGATConv":
        given.append(torch.randint(0, 3, (COUNT,)).cuda())
    if options.get("edge_dim"):
        given.append(torch.randn(COUNT, 2).double().cuda())
    out, (index, weights) = ours(x, *given, return_attention_weights=True)
    expected, (right_index, right_weights) = theirs(x, *given, return_attention_weights=True)
    assert out.is_cuda and torch.equal(index, right_index)
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(weights, right_weights, rtol=1e-9, atol=1e-10)
    same_gradients([(ours, ours(x, *given)), (theirs, theirs(x, *given))], [x])


@pytest.mark.parametrize("count", [8, 140], ids=["blocks", "all"])
def test_hgt(count: int) -> None:
    torch.manual_seed(0)
    metadata = (["author", "paper"], [WRITES, CITES])
    theirs, ours = (lib.HGTConv(4, 4, metadata, heads=2).double().cuda() for lib in (pyg, attnops.graph))
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    ours.load_state_dict(theirs.state_dict())
    x = {kind: torch.randn(NODES, 4).double().cuda().requires_grad_() for kind in metadata[0]}
    edges = {relation: torch.randint(0, NODES, (2, count)).cuda() for relation in metadata[1]}
    out, expected = ours(x, edges)["paper"], theirs(x, edges)["paper"]
    torch.testing.assert_close(out, expected, rtol=1e-9, atol=1e-10)
    same_gradients([(ours, out), (theirs, expected)], list(x.values()))
