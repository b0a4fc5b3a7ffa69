"""The layers under torch-geometric's explainers: the masks that its own layers give, edge by edge."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops.graph
from attnops.graph import GATConv, GATv2Conv, RGATConv, TransformerConv

pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
from torch_geometric.explain import (
    AttentionExplainer,
    CaptumExplainer,
    Explainer,
    GNNExplainer,
    PGExplainer,
)

from tests.peers.two_layers import MADE, NAMES, USES, both, graph, pyg

CONFIG = {"mode": "multiclass_classification", "task_level": "node", "return_type": "raw"}


class Pooled(nn.Module):
    """One answer for the whole graph."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        out: Tensor = self.net(x, edge_index).mean(0, keepdim=True)
        return out


class Hetero(nn.Module):
    """Two layers of `HeteroConv`, the answer of one type of node."""

    def __init__(self, library: Any, name: str) -> None:
        super().__init__()
        options = {} if name == "TransformerConv" else {"add_self_loops": False}
        self.first, self.second = (
            pyg.HeteroConv({edge: getattr(library, name)((width, width), out, **options) for edge in (USES, MADE)})
            for width, out in ((4, 3), (3, 2))
        )

    def forward(self, x: dict[str, Tensor], edge_index: dict[Any, Tensor]) -> Tensor:
        hidden = {kind: rows.relu() for kind, rows in self.first(x, edge_index).items()}
        out: Tensor = self.second(hidden, edge_index)["user"]
        return out


def loops_of(name: str, loops: bool) -> dict[str, Any]:
    return {} if name == "TransformerConv" else {"add_self_loops": loops}


def explain(model: nn.Module, algorithm: Any, **options: Any) -> Any:
    x, edges = graph()
    explainer = Explainer(
        model, algorithm, explanation_type="model", edge_mask_type="object",
        model_config=CONFIG, **options,
    )  # fmt: skip
    torch.manual_seed(0)
    return explainer(x, edges, index=int(edges[1, 0]))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("reduce", ["max", "mean"])
def test_attention_explainer(name: str, reduce: str) -> None:
    theirs, ours = both(name)
    found, expected = explain(ours, AttentionExplainer(reduce)), explain(theirs, AttentionExplainer(reduce))
    torch.testing.assert_close(found.edge_mask, expected.edge_mask)
    assert not ours.first._message_forward_hooks


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loops", [False, True])
def test_gnn_explainer(name: str, loops: bool) -> None:
    """The same masks after the same steps; afterwards the layers run as before."""
    theirs, ours = both(name, **loops_of(name, loops))
    found, expected = (
        explain(model.double().float(), GNNExplainer(epochs=20), node_mask_type="attributes")
        for model in (ours, theirs)
    )
    torch.testing.assert_close(found.edge_mask, expected.edge_mask, rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(found.node_mask, expected.node_mask, rtol=1e-3, atol=1e-4)
    x, edges = graph()
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))
    assert not ours.first.watched and found.edge_mask.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("level", ["node", "graph"])
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
def test_pg_explainer(name: str, loops: bool, level: str) -> None:
    """A network that masks edges by what their ends hold, trained through the layers: the same losses and masks."""
    x, edges = graph()
    torch.manual_seed(1)
    found = [
        explained_by_a_network(net if level == "node" else Pooled(net).eval(), x, edges, level)
        for net in both(name, **loops_of(name, loops))
    ]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    assert len(set(found[0][1].tolist())) > 3 and not torch.equal(found[0][0][:3], found[0][0][3:6])


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:Converting a tensor with requires_grad=True to a scalar")
def test_pg_explainer_of_many_types(name: str) -> None:
    x, edges = nodes_of_two_types()
    torch.manual_seed(1)
    theirs, ours = (Hetero(library, name).eval() for library in (pyg, attnops.graph))
    ours.load_state_dict(theirs.state_dict())
    found = [explained_by_a_network(net, x, edges, "node") for net in (theirs, ours)]
    torch.testing.assert_close(found[1], found[0], rtol=1e-4, atol=1e-6)
    assert all(mask.abs().sum() > 0 for mask in found[0][1].values())


def explained_by_a_network(net: nn.Module, x: Any, edges: Any, level: str) -> tuple[Tensor, Any]:
    """`PGExplainer`'s losses and, after training, its mask."""
    torch.manual_seed(2)
    explainer = Explainer(
        net, PGExplainer(epochs=4, lr=0.01), explanation_type="phenomenon", edge_mask_type="object",
        model_config={**CONFIG, "task_level": level},
    )  # fmt: skip
    target = net(x, edges).argmax(1)
    losses = [
        explainer.algorithm.train(epoch, net, x, edges, target=target, index=index)
        for epoch in range(4)
        for index in ((0, 3, 4) if level == "node" else (None,))
    ]
    told = explainer(x, edges, target=target, **({"index": 3} if level == "node" else {}))
    return torch.tensor(losses), told.edge_mask_dict if isinstance(x, dict) else told.edge_mask


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("algorithm", ["attention", "gnn"])
def test_masks_of_many_types(name: str, algorithm: str) -> None:
    """`set_hetero_masks` and hooks, a mask for each relation."""
    x, edges = nodes_of_two_types()
    torch.manual_seed(1)
    theirs, ours = (Hetero(library, name).eval() for library in (pyg, attnops.graph))
    ours.load_state_dict(theirs.state_dict())
    found = []
    for net in (theirs, ours):
        torch.manual_seed(2)
        chosen = AttentionExplainer() if algorithm == "attention" else GNNExplainer(epochs=10)
        explainer = Explainer(
            net, chosen, explanation_type="model", edge_mask_type="object", model_config=CONFIG,
            node_mask_type=None if algorithm == "attention" else "attributes",
        )  # fmt: skip
        found.append(explainer(x, edges, index=2).edge_mask_dict)
    torch.testing.assert_close(found[1], found[0], rtol=1e-3, atol=1e-5)
    assert all(mask.abs().sum() > 0 for mask in found[1].values())


def nodes_of_two_types() -> tuple[dict[str, Tensor], dict[Any, Tensor]]:
    torch.manual_seed(0)
    ends = {kind: torch.randint(0, count, (30,)) for kind, count in (("user", 5), ("item", 6))}
    x = {"user": torch.randn(5, 4), "item": torch.randn(6, 4)}
    return x, {USES: torch.stack([ends["user"], ends["item"]]), MADE: torch.stack([ends["item"], ends["user"]])}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("method", ["IntegratedGradients", "Saliency"])
@pytest.mark.filterwarnings("ignore:Input Tensor . did not already require gradients")
def test_captum(name: str, method: str) -> None:
    pytest.importorskip("captum", reason="captum is not installed")
    theirs, ours = both(name)
    expected, found = (explain(net, CaptumExplainer(method), node_mask_type="attributes") for net in (theirs, ours))
    torch.testing.assert_close(
        (found.node_mask, found.edge_mask), (expected.node_mask, expected.edge_mask), rtol=1e-4, atol=1e-6
    )
    assert found.edge_mask.abs().sum() > 0


@pytest.mark.parametrize("name", NAMES)
def test_an_edge_mask(name: str) -> None:
    """Messages are scaled after the softmax, loops that the layer adds are not; the gradient reaches the mask."""
    from torch_geometric.explain.algorithm.utils import clear_masks, set_masks

    theirs, ours = both(name)
    x, edges = graph()
    results = []
    for model in (theirs, ours):
        mask = nn.Parameter(torch.linspace(-2, 2, edges.shape[1]))
        set_masks(model, mask, edges)
        out = model(x, edges)
        out.square().sum().backward()
        results.append((out, mask.grad))
        clear_masks(model)
    torch.testing.assert_close(*(tuple(pair) for pair in results), rtol=1e-4, atol=1e-5)
    set_masks(ours, torch.ones(3), edges)  # of another graph
    with pytest.raises(ValueError, match=r"the edge mask is of .* edges; the layer has .* messages"):
        ours(x, edges)
    clear_masks(ours)
    ours.first.explain = True
    with pytest.raises(ValueError, match="the layer has explain=True, but no edge mask was set"):
        ours(x, edges)


def test_message_hooks() -> None:
    """A hook sees the messages and may give others; with none left, nothing is made one by one."""
    x, edges = graph()
    for layer, more in ((GATConv(4, 3), []), (GATv2Conv(4, 3), []), (TransformerConv(4, 3), []),
                        (RGATConv(4, 3, 2), [torch.zeros_like(edges[0])])):  # fmt: skip
        expected = layer(x, edges, *more)
        seen: list[Tensor] = []
        handle = layer.register_message_forward_hook(lambda m, kw, out, seen=seen: seen.append(out))
        torch.testing.assert_close(layer(x, edges, *more), expected)
        assert seen[0].shape[1:] == (1, 3)
        handle.remove()
        twice = layer.register_message_forward_hook(lambda m, kw, out: 0 * out)
        other = layer(x, edges, *more)
        assert not torch.allclose(other, expected)
        twice.remove()
        assert torch.equal(layer(x, edges, *more), expected) and not layer.watched


class Typed(nn.Module):
    """Two layers over typed edges, of their library or ours: RGAT with the relations it holds, HGT over two of them."""

    def __init__(self, library: Any, name: str) -> None:
        super().__init__()
        self.hgt = name == "HGTConv"
        kinds = (["a"], [("a", "x", "a"), ("a", "y", "a")])
        make = getattr(library, name)
        self.first, self.second = (
            make(4, 4, kinds, 2) if self.hgt else make(4, 4, 2, concat=False, heads=2) for _ in range(2)
        )

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        types = torch.arange(edge_index.shape[1]) % 2
        for layer in (self.first, self.second):
            if self.hgt:
                x = layer({"a": x}, {("a", name, "a"): edge_index[:, types == t] for t, name in enumerate("xy")})["a"]
            else:
                x = layer(x, edge_index, types)
        return x


def both_typed(name: str) -> tuple[Typed, Typed]:
    torch.manual_seed(1)
    theirs, ours = Typed(pyg, name).eval(), Typed(attnops.graph, name).eval()
    for parameter in theirs.parameters():
        nn.init.uniform_(parameter, -1, 1)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("algorithm", [AttentionExplainer, lambda: GNNExplainer(epochs=20)], ids=["attention", "gnn"])
@pytest.mark.parametrize("half", [False, True], ids=["", "autocast"])
def test_typed_edges(algorithm: Any, half: bool) -> None:
    """Explainers on `RGATConv`, whose edges are those of the mask."""
    found = []
    for net in both_typed("RGATConv"):
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            options = {} if algorithm is AttentionExplainer else {"node_mask_type": "attributes"}
            found.append(explain(net, algorithm(), **options).edge_mask.float())
    close = {"rtol": 0.1, "atol": 0.05} if half else {"rtol": 1e-3, "atol": 1e-4}
    torch.testing.assert_close(found[1], found[0], **close)
    assert found[1].abs().sum() > 0


def test_hgt_under_autocast() -> None:
    theirs, ours = both_typed("HGTConv")
    x, edges = graph()
    exact = ours(x, edges)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = ours(x, edges), theirs(x, edges)
        out.float().square().sum().backward()
    torch.testing.assert_close(out.float(), exact, rtol=0.1, atol=0.1)
    torch.testing.assert_close(out.float(), expected.float(), rtol=0.1, atol=0.1)
    assert all(parameter.grad is None or parameter.grad.isfinite().all() for parameter in ours.parameters())
