"""Sampled neighbourhoods, for which torch-geometric needs a compiled package: its layers and ours on its batches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops.graph

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
from torch_geometric.data import Data, HeteroData  # noqa: E402
from torch_geometric.loader import NeighborLoader  # noqa: E402
from torch_geometric.typing import WITH_PYG_LIB, WITH_TORCH_SPARSE  # noqa: E402

NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
WRITES, CITES = ("author", "writes", "paper"), ("paper", "cites", "paper")
SAMPLES = WITH_PYG_LIB or WITH_TORCH_SPARSE
pytestmark = pytest.mark.filterwarnings("ignore:Using '.*' without a 'pyg-lib' installation")


def graph(nodes: int = 30, edges: int = 200) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(nodes, 4), torch.randint(0, nodes, (2, edges))


def both(name: str, **options: Any) -> tuple[nn.Module, nn.Module]:
    """Two layers, theirs and ours, with the same parameters."""
    models = []
    for library in (pyg, attnops.graph):
        first, second = (getattr(library, name)(width, 3, heads=2, **options) for width in (4, 6))
        models.append(pyg.Sequential("x, edges", [(first, "x, edges -> x"), nn.ReLU(), (second, "x, edges -> x")]))
    models[1].load_state_dict(models[0].state_dict())
    return models[0], models[1]


@pytest.mark.parametrize("name", NAMES)
def test_neighbours_of_the_seeds(name: str) -> None:
    """Batches of all neighbours two steps away: the seeds' rows are those of the whole graph, in theirs and in ours."""
    x, edges = graph()
    theirs, ours = both(name)
    whole = ours(x, edges)
    loader = NeighborLoader(Data(x=x, edge_index=edges), num_neighbors=[-1, -1], batch_size=10)
    if not SAMPLES:
        with pytest.raises(ImportError, match="requires either 'pyg-lib' or 'torch-sparse'"):
            next(iter(loader))
        return
    for batch in loader:
        out = ours(batch.x, batch.edge_index)
        torch.testing.assert_close(out, theirs(batch.x, batch.edge_index))
        seeds = slice(0, batch.batch_size)
        torch.testing.assert_close(out[seeds], whole[batch.n_id[seeds]])


@pytest.mark.skipif(not SAMPLES, reason="torch-geometric samples with pyg-lib or torch-sparse; neither is installed")
@pytest.mark.parametrize("name", NAMES)
def test_a_few_neighbours(name: str) -> None:
    """Sampled batches in training: the same losses and the same gradients."""
    x, edges = graph()
    label, found = torch.randint(0, 6, (30,)), []
    for model in both(name):
        torch.manual_seed(1)
        loader = NeighborLoader(Data(x=x, edge_index=edges, y=label), [3, 3], batch_size=8, shuffle=True)
        losses = []
        for batch in loader:
            out = model(batch.x, batch.edge_index)[: batch.batch_size]
            losses.append(nn.functional.cross_entropy(out, batch.y[: batch.batch_size]))
            losses[-1].backward()
        found.append((torch.stack(losses), [parameter.grad for parameter in model.parameters()]))
    torch.testing.assert_close(found[1], found[0])


@pytest.mark.skipif(not SAMPLES, reason="torch-geometric samples with pyg-lib or torch-sparse; neither is installed")
def test_neighbours_of_many_types() -> None:
    """`HGTConv` on sampled `HeteroData`, whose batches miss nodes of a type and edges of a relation."""
    torch.manual_seed(0)
    data = HeteroData()
    data["author"].x, data["paper"].x = torch.randn(9, 4), torch.randn(20, 4)
    data[WRITES].edge_index = torch.stack([torch.randint(0, 9, (30,)), torch.randint(0, 4, (30,))])
    data[CITES].edge_index = torch.randint(0, 20, (2, 60))
    theirs, ours = (library.HGTConv(4, 6, data.metadata(), heads=2) for library in (pyg, attnops.graph))
    ours.load_state_dict(theirs.state_dict())
    alone, seeds = 0, 4
    for batch in NeighborLoader(data, [3], batch_size=seeds, input_nodes="paper"):
        alone += batch["author"].num_nodes == 0
        out, expected = (layer(batch.x_dict, batch.edge_index_dict) for layer in (ours, theirs))
        torch.testing.assert_close(out["paper"], expected["paper"])
    assert alone > 0
