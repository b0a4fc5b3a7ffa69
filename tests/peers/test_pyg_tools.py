"""The layers under torch-geometric's own tools: containers, loaders, compile, autocast."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops.graph

pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
from torch_geometric.data import Data, HeteroData
from torch_geometric.loader import DataLoader

from tests.peers.two_layers import MADE, METADATA, NAMES, USES, both, graph, pyg


# ------------------------------------------------------------------------------------------------ what they are
@pytest.mark.parametrize("name", [*NAMES, "HGTConv", "RGATConv"])
def test_found_as_layers_that_pass_messages(name: str) -> None:
    """Their tools ask `isinstance(layer, MessagePassing)`; ours answer yes, and stay what they are."""
    made = {"HGTConv": (4, 4, METADATA), "RGATConv": (4, 4, 3)}.get(name, (4, 4))
    layer = getattr(attnops.graph, name)(*made)
    assert isinstance(layer, pyg.MessagePassing) and isinstance(layer, getattr(attnops.graph, name))
    assert not isinstance(layer, pyg.GCNConv) and type(layer).__mro__.count(pyg.MessagePassing) == 0
    for copied in (copy.deepcopy(layer), pickle.loads(pickle.dumps(layer))):
        assert type(copied) is type(layer)
        for name_, value in layer.state_dict().items():
            assert torch.equal(copied.state_dict()[name_], value)
    file = io.BytesIO()
    torch.save(layer, file)
    file.seek(0)
    assert repr(torch.load(file, weights_only=False)) == repr(layer)


def test_hops_and_embeddings() -> None:
    from torch_geometric.utils import get_embeddings, get_num_hops

    theirs, ours = both("GATConv")
    assert get_num_hops(ours) == 2
    x, edges = graph()
    torch.testing.assert_close(get_embeddings(ours, x, edges), get_embeddings(theirs, x, edges))
    assert "GATConv" in pyg.summary(ours, x, edges)


# ------------------------------------------------------------------------------------------------ containers
@pytest.mark.parametrize("name", NAMES)
def test_to_hetero(name: str) -> None:
    options = {} if name == "TransformerConv" else {"add_self_loops": False}

    class Model(nn.Module):
        def __init__(self, library: Any) -> None:
            super().__init__()
            self.first = getattr(library, name)((-1, -1), 3, **options)
            self.second = getattr(library, name)((-1, -1), 2, **options)

        def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
            out: Tensor = self.second(self.first(x, edge_index).relu(), edge_index)
            return out

    torch.manual_seed(0)
    x = {"user": torch.randn(5, 4), "item": torch.randn(6, 3)}
    edges = {USES: torch.randint(0, 5, (2, 9)), MADE: torch.randint(0, 5, (2, 8))}
    theirs, ours = (pyg.to_hetero(Model(library), METADATA) for library in (pyg, attnops.graph))
    theirs(x, edges)
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, edges), theirs(x, edges))


@pytest.mark.parametrize("name", NAMES)
def test_sequential_with_edge_features(name: str) -> None:
    x, edges = graph()
    attr = torch.randn(edges.shape[1], 2)
    theirs, ours = (
        pyg.Sequential("x, edge_index, attr", [
            (getattr(library, name)(4, 4, edge_dim=2), "x, edge_index, attr -> h"),
            nn.ReLU(),
            (lambda h, x: h + x, "h, x -> h"),
        ])
        for library in (pyg, attnops.graph)
    )  # fmt: skip
    ours.load_state_dict(theirs.state_dict())
    torch.testing.assert_close(ours(x, edges, attr), theirs(x, edges, attr))


# ------------------------------------------------------------------------------------------------ loaders
@pytest.mark.parametrize("name", NAMES)
def test_batches_of_a_data_loader(name: str) -> None:
    """Each graph alone, or batched with others, with edge features: the same rows; and training runs."""
    graphs = []
    for seed in range(6):
        x, edges = graph(3 + seed, 12, seed)
        graphs.append(Data(x=x, edge_index=edges, edge_attr=torch.randn(edges.shape[1], 2), y=torch.tensor([seed % 2])))
    layer = getattr(attnops.graph, name)(4, 3, heads=2, edge_dim=2)
    alone = torch.cat([layer(g.x, g.edge_index, g.edge_attr) for g in graphs])
    batched = [layer(b.x, b.edge_index, b.edge_attr) for b in DataLoader(graphs, batch_size=4)]
    torch.testing.assert_close(torch.cat(batched), alone)
    for batch in DataLoader(graphs, batch_size=3, shuffle=True):
        pooled = pyg.global_mean_pool(layer(batch.x, batch.edge_index, batch.edge_attr), batch.batch)
        nn.functional.cross_entropy(pooled[:, :2], batch.y).backward()


def test_hetero_batches() -> None:
    """`HGTConv` over batches of `HeteroData`, in which types and relations may be missing."""
    from torch_geometric.loader import DataLoader

    graphs = []
    for seed in range(4):
        torch.manual_seed(seed)
        data = HeteroData()
        data["user"].x, data["item"].x = torch.randn(4, 3), torch.randn(5, 2)
        data[USES].edge_index = torch.randint(0, 4, (2, 6))
        data[MADE].edge_index = torch.randint(0, 4, (2, 0 if seed == 1 else 5))
        graphs.append(data)
    layer = attnops.graph.HGTConv({"user": 3, "item": 2}, 4, METADATA, heads=2)
    alone = [layer(data.x_dict, data.edge_index_dict)["item"] for data in graphs]
    batched = [layer(b.x_dict, b.edge_index_dict)["item"] for b in DataLoader(graphs, batch_size=2)]
    torch.testing.assert_close(torch.cat(batched), torch.cat(alone))


# ------------------------------------------------------------------------------------------------ compile, autocast
@pytest.mark.filterwarnings("ignore:'torch_geometric.compile' is deprecated")
def test_torch_geometric_compile() -> None:
    """A deprecated name for `torch.compile`, under which each layer is tested elsewhere."""
    import torch_geometric

    x, edges = graph()
    theirs, ours = both("GATv2Conv", add_self_loops=False)
    compiled = torch_geometric.compile(ours, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, edges), theirs(x, edges))


@pytest.mark.parametrize("name", [*NAMES, "RGATConv"])
def test_autocast(name: str) -> None:
    """Half-precision maps and a result in bfloat16, sums in float32, gradients in float32."""
    x, edges = graph(40, 400)
    more = [torch.randint(0, 2, edges[0].shape)] if name == "RGATConv" else []
    theirs, ours = (getattr(library, name)(4, 8, *([2] if more else []), heads=2) for library in (pyg, attnops.graph))
    ours.load_state_dict(theirs.state_dict())
    exact = ours(x, edges, *more)
    with torch.autocast("cpu", torch.bfloat16):
        out, expected = ours(x, edges, *more), theirs(x, edges, *more)
        out.float().square().sum().backward()
    assert (out.float() - exact).abs().max() <= 2 * (expected.float() - exact).abs().max() + 2e-2
    assert all(p.grad is None or (p.grad.dtype == torch.float32 and p.grad.isfinite().all()) for p in ours.parameters())
