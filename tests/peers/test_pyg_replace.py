"""`attnops.graph.pyg.replace`: torch-geometric's layers inside of any model swapped, weights and numbers kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import prune  # noqa: F401  # torch does not import it by itself

import attnops.graph
from attnops.graph.pyg import replace

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")

EDGES = torch.tensor([[0, 0, 1, 1, 2, 3, 3, 4], [1, 2, 0, 4, 2, 0, 1, 3]])
TYPES = torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
USES, MADE = ("user", "uses", "item"), ("item", "made", "user")
METADATA = (["user", "item"], [USES, MADE])
LAYERS = [
    ("GATConv", (4, 3), {"heads": 2, "concat": False, "residual": True, "edge_dim": 2, "fill_value": "max"}),
    ("GATConv", ((4, 4), 3), {"bias": False, "negative_slope": 0.1, "add_self_loops": False, "aggr": "mean"}),
    ("GATv2Conv", (4, 3), {"heads": 2, "share_weights": True, "edge_dim": 2, "flow": "target_to_source"}),
    ("GATv2Conv", (4, 3), {"bias": False, "residual": True, "aggr": "softmax", "aggr_kwargs": {"learn": True}}),
    ("TransformerConv", (4, 3), {"heads": 2, "beta": True, "edge_dim": 2}),
    ("TransformerConv", (4, 3), {"bias": False, "root_weight": False, "concat": False, "aggr": "max"}),
    ("RGATConv", (4, 3, 3), {"heads": 2, "mod": "additive", "num_bases": 2, "edge_dim": 2}),
    ("RGATConv", (4, 4, 3), {"num_blocks": 2, "dim": 2, "attention_mode": "multiplicative-self-attention"}),
]  # fmt: skip


def inputs(name: str, options: dict[str, Any]) -> list[Any]:
    torch.manual_seed(1)
    attr = [torch.randn(8, 2).double()] if options.get("edge_dim") else []
    return [torch.randn(5, 4).double(), EDGES, *([TYPES] if name == "RGATConv" else []), *attr]


def same(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(("name", "arguments", "options"), LAYERS)
def test_a_layer(name: str, arguments: Any, options: dict[str, Any]) -> None:
    theirs = getattr(pyg, name)(*arguments, **options).double().eval()
    with torch.no_grad():
        for parameter in theirs.parameters():
            parameter.normal_()
    state, parameters = torch.get_rng_state(), dict(theirs.named_parameters())
    ours = replace(theirs)
    assert torch.equal(torch.get_rng_state(), state)
    assert type(ours) is getattr(attnops.graph, name) and not ours.training and repr(ours) == repr(theirs)
    found = dict(ours.named_parameters())
    assert list(found) == list(parameters) and all(found[key] is value for key, value in parameters.items())
    given = inputs(name, options)
    same(ours(*given), theirs(*given))


def test_hgt() -> None:
    theirs = pyg.HGTConv({"user": 4, "item": -1}, 6, METADATA, heads=2)
    x = {"user": torch.randn(5, 4), "item": torch.randn(5, 3)}
    edges = {USES: EDGES, MADE: EDGES}
    expected = theirs(x, edges)
    torch.testing.assert_close(replace(theirs)(x, edges), expected)
    fresh = replace(pyg.HGTConv(-1, 6, METADATA))  # before its sizes are known
    assert fresh(x, edges)["user"].shape == (5, 6)


@pytest.mark.parametrize("v2", [False, True])
def test_their_gat(v2: bool) -> None:
    """In a model of theirs, an optimizer made before goes on with the parameters."""
    theirs = pyg.GAT(4, 8, num_layers=3, out_channels=2, heads=2, v2=v2, norm="batch", jk="cat").double()
    x = torch.randn(5, 4).double()
    optimizer = torch.optim.SGD(theirs.parameters(), lr=0.1)
    expected = theirs(x, EDGES)
    model = replace(theirs)
    assert model is theirs and all(type(conv).__module__.startswith("attnops") for conv in model.convs)
    same(model(x, EDGES), expected)
    model(x, EDGES).sum().backward()
    before = [parameter.clone() for parameter in model.parameters()]
    optimizer.step()
    assert any(not torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))


def test_in_containers() -> None:
    """Sequential of both kinds, lists, dicts, layers inside of layers; one layer twice stays one."""
    x, shared = torch.randn(5, 4).double(), pyg.GATConv(4, 4).double()

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = pyg.Sequential(
                "x, edge_index",
                [(pyg.GATv2Conv(4, 4), "x, edge_index -> x"), nn.ReLU(), (shared, "x, edge_index -> x")],
            )
            self.rest = nn.ModuleList([nn.ModuleDict({"a": shared, "b": pyg.TransformerConv(4, 2)}), nn.Linear(2, 2)])

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            x = self.first(x, edge_index)
            x = self.rest[0]["b"](self.rest[0]["a"](x, edge_index), edge_index)
            out: Tensor = self.rest[1](x)
            return out

    model = Model().double()
    expected, count = model(x, EDGES), len(list(model.parameters()))
    replace(model)
    same(model(x, EDGES), expected)
    assert model.first.module_2 is model.rest[0]["a"] and len(list(model.parameters())) == count
    assert not any(type(module).__module__.startswith("torch_geometric.nn.conv") for module in model.modules())


def test_hetero_conv_and_to_hetero() -> None:
    x = {"user": torch.randn(5, 4).double(), "item": torch.randn(5, 4).double()}
    edges = {USES: EDGES, MADE: EDGES}
    hetero = pyg.HeteroConv({r: pyg.GATConv((4, 4), 3, add_self_loops=False) for r in edges}).double()
    expected = hetero(x, edges)
    same(replace(hetero)(x, edges), expected)

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first = pyg.GATv2Conv((-1, -1), 3, add_self_loops=False)
            self.second = pyg.TransformerConv((-1, -1), 2)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
            return out

    model = pyg.to_hetero(Model(), METADATA).double()
    expected = model(x, edges)
    same(replace(model)(x, edges), expected)
    assert sum(type(module).__module__.startswith("attnops") for module in model.modules()) >= 4


def test_a_subclass_of_the_users_is_left_alone() -> None:
    class Mine(pyg.GATConv):  # type: ignore[misc, name-defined]
        pass

    model = nn.Sequential(Mine(4, 3))
    assert type(replace(model)[0]) is Mine
    with pytest.raises(TypeError, match="model is int; it must be a"):
        replace(3)  # type: ignore[type-var]


def test_hooks_stay() -> None:
    calls = []
    layer = pyg.GATConv(4, 3)
    layer.register_forward_hook(lambda *a: calls.append(1))
    replace(nn.Sequential(layer))[0](torch.randn(5, 4), EDGES)
    assert calls == [1]


def hooked(linear: nn.Module) -> list[int]:
    calls: list[int] = []
    linear.register_forward_hook(lambda *a: calls.append(1))
    return calls


CHANGES = {
    "hook": hooked,
    "parametrized": lambda linear: nn.utils.parametrizations.weight_norm(linear, "weight"),
    "spectral": lambda linear: nn.utils.spectral_norm(linear),
    "pruned": lambda linear: nn.utils.prune.l1_unstructured(linear, "weight", 0.5),
}


@pytest.mark.parametrize("change", list(CHANGES))
@pytest.mark.parametrize(
    ("name", "path"), [("GATConv", "lin"), ("GATv2Conv", "lin_l"), ("TransformerConv", "lin_edge")]
)
def test_what_was_done_to_a_linear_map_stays(name: str, path: str, change: str) -> None:
    """Hooks are called, and what a weight is made of is what learns."""
    torch.manual_seed(0)
    theirs = getattr(pyg, name)(4, 3, **({"edge_dim": 2} if path == "lin_edge" else {})).double()
    calls = CHANGES[change](theirs.get_submodule(path))
    given = [torch.randn(5, 4).double(), EDGES, *([torch.randn(8, 2).double()] if path == "lin_edge" else [])]
    theirs.eval()
    expected = theirs(*given)
    ours = replace(nn.Sequential(theirs))[0]
    same(ours(*given), expected)
    if change == "hook":
        assert len(calls) == 2
    assert all(mine is right for mine, right in zip(ours.parameters(), theirs.parameters(), strict=True))
    grads = [torch.autograd.grad(out.square().sum(), list(theirs.parameters())) for out in (ours(*given), expected)]
    same(*grads)


@pytest.mark.parametrize(
    ("layer", "path"),
    [
        (lambda: pyg.GATConv(4, 3, edge_dim=2), "lin_edge"),
        (lambda: pyg.GATConv(-1, 3), "lin"),
        (lambda: pyg.GATConv(4, 3), "aggr_module"),
        (lambda: pyg.HGTConv(4, 6, METADATA), "k_rel"),
        (lambda: pyg.HGTConv(4, 6, METADATA), "kqv_lin"),
    ],
)
def test_what_would_be_lost_is_named(layer: Any, path: str) -> None:
    first, second = pyg.GATConv(4, 4), layer()
    hooked(second.get_submodule(path))
    model = nn.Sequential(first, nn.ModuleList([second]))
    with pytest.raises(ValueError, match=f"the layer '1.0' has hooks.* at '{path}', which would be lost"):
        replace(model)
    assert model[0] is first and model[1][0] is second
    model[1][0] = pyg.GATConv(4, 3)
    model[1][0].register_buffer("mine", torch.zeros(2))
    with pytest.raises(ValueError, match="has other parameters or buffers than its class makes: mine"):
        replace(model)
    third = pyg.GATConv(4, 3)
    third.register_propagate_forward_hook(lambda *a: None)
    with pytest.raises(
        ValueError, match="the layer 'GATConv' has propagate_forward_hooks, which the layers here do not"
    ):
        replace(third)


def test_a_map_of_one_type_of_nodes() -> None:
    theirs = pyg.HGTConv(4, 6, METADATA)
    calls = hooked(theirs.kqv_lin.lins["user"])
    x, edges = {"user": torch.randn(5, 4), "item": torch.randn(5, 4)}, {USES: EDGES, MADE: EDGES}
    expected = theirs(x, edges)
    torch.testing.assert_close(replace(theirs)(x, edges), expected)
    assert len(calls) == 2


def test_explanations_and_layers_without_numbers() -> None:
    layer = pyg.GATConv(4, 3)
    layer.explain = False
    assert replace(layer).explain is False
    on_meta = pyg.TransformerConv(4, 3, edge_dim=2).to("meta")
    ours = replace(on_meta)
    assert all(mine is right for mine, right in zip(ours.parameters(), on_meta.parameters(), strict=True))
