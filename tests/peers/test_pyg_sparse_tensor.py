"""`torch_sparse.SparseTensor`, where that compiled package is installed: the layers of torch-geometric and ours."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attnops.graph

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
torch_sparse = pytest.importorskip("torch_sparse", reason="torch-sparse is not installed")

NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
CITES = ("paper", "cites", "paper")


def graph(nodes: int = 30, edges: int = 200) -> tuple[Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(nodes, 4), torch.unique(torch.randint(0, nodes, (2, edges)), dim=1)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("loops", [False, True])
@pytest.mark.parametrize("features", [False, True])
def test_sparse_tensor(name: str, loops: bool, features: bool) -> None:
    """The real class: the same output, the same matrix of weights. (Loops on one with features: neither has them.)"""
    options = {} if name == "TransformerConv" else {"add_self_loops": loops}
    edge_dim = 2 if features else None
    theirs, ours = (
        getattr(library, name)(4, 3, heads=2, edge_dim=edge_dim, **options) for library in (pyg, attnops.graph)
    )
    ours.load_state_dict(theirs.state_dict())
    x, edges = graph()
    attr = torch.randn(edges.shape[1], 2) if features else None
    matrix = torch_sparse.SparseTensor(row=edges[1], col=edges[0], value=attr, sparse_sizes=(30, 30))
    if loops and features and name != "TransformerConv":
        for layer in (theirs, ours):
            with pytest.raises(NotImplementedError):
                layer(x, matrix)
        return
    torch.testing.assert_close(ours(x, matrix), theirs(x, matrix))
    found, expected = (layer(x, matrix, return_attention_weights=True) for layer in (ours, theirs))
    torch.testing.assert_close(found[0], expected[0])
    assert isinstance(found[1], torch_sparse.SparseTensor)
    torch.testing.assert_close(found[1].coo(), expected[1].coo())


@pytest.mark.parametrize("name", NAMES)
def test_sparse_tensor_between_two_sets(name: str) -> None:
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    theirs, ours = (getattr(library, name)((4, 5), 3, heads=2, **options) for library in (pyg, attnops.graph))
    ours.load_state_dict(theirs.state_dict())
    x = (torch.randn(6, 4), torch.randn(8, 5))
    matrix = torch_sparse.SparseTensor(row=torch.tensor([7, 0, 3]), col=torch.tensor([1, 5, 1]), sparse_sizes=(8, 6))
    torch.testing.assert_close(ours(x, matrix), theirs(x, matrix))
    if name == "GATConv":
        torch.testing.assert_close(ours((x[0], None), matrix), theirs((x[0], None), matrix))


def test_relations_as_a_sparse_tensor() -> None:
    """`HGTConv` and `RGATConv` over one."""
    x, edges = graph()
    types = torch.randint(0, 3, (edges.shape[1],))
    matrix = torch_sparse.SparseTensor(row=edges[1], col=edges[0], value=types, sparse_sizes=(30, 30))
    rgat, own = (library.RGATConv(4, 3, 3, heads=2) for library in (pyg, attnops.graph))
    own.load_state_dict(rgat.state_dict())
    torch.testing.assert_close(own(x, matrix), rgat(x, edges, types))
    hgt, own = (library.HGTConv(4, 6, (["paper"], [CITES]), heads=2) for library in (pyg, attnops.graph))
    own.load_state_dict(hgt.state_dict())
    matrix = matrix.set_value(None)
    torch.testing.assert_close(own({"paper": x}, {CITES: matrix}), hgt({"paper": x}, {CITES: matrix}))
