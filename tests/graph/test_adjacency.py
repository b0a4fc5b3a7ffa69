"""Reading the forms of a graph that need no torch-geometric, and one whose package is rarely installed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from attnops import UnsupportedError
from attnops.graph import GATConv, GATv2Conv, TransformerConv
from attnops.graph.adjacency import read_adjacency, read_matrix

EDGES = torch.tensor([[0, 2, 1, 0], [1, 0, 1, 2]])


class SparseTensor:
    """What the layers use of `torch_sparse.SparseTensor`: targets by sources, entries ordered by row."""

    def __init__(self, row: Tensor, column: Tensor, value: Tensor | None, sizes: tuple[int, int]) -> None:
        self.entries, self.sizes = (row, column, value), sizes

    def coo(self) -> tuple[Tensor, Tensor, Tensor | None]:
        return self.entries

    def size(self, axis: int) -> int:
        return self.sizes[axis]

    def set_value(self, value: Tensor, layout: str) -> SparseTensor:
        assert layout == "coo"
        return SparseTensor(self.entries[0], self.entries[1], value, self.sizes)


def sparse_tensor(value: Tensor | None = None) -> tuple[SparseTensor, Tensor]:
    """A matrix of `EDGES`, and the order of its entries."""
    order = torch.argsort(EDGES[1], stable=True)
    source, target = EDGES[:, order]
    return SparseTensor(target, source, None if value is None else value[order], (3, 3)), order


@pytest.mark.parametrize("layer", [GATConv, GATv2Conv, TransformerConv])
@pytest.mark.parametrize("features", [False, True])
def test_sparse_tensor(layer: type, features: bool) -> None:
    """The same numbers as from the list; with weights, a matrix that carries them."""
    options = {} if layer is TransformerConv else {"add_self_loops": False}
    conv = layer(4, 3, heads=2, edge_dim=2 if features else None, **options).double()
    x, attr = torch.randn(3, 4).double(), torch.randn(4, 2).double() if features else None
    matrix, order = sparse_tensor(attr)
    expected, (_, weights) = conv(x, EDGES, attr, return_attention_weights=True)
    out, weighted = conv(x, matrix, return_attention_weights=True)
    torch.testing.assert_close(out, expected)
    assert isinstance(weighted, SparseTensor)
    torch.testing.assert_close(weighted.coo()[2], weights[order])


def test_loops_of_a_sparse_tensor_carry_no_features() -> None:
    matrix, _ = sparse_tensor(torch.randn(4, 2))
    with pytest.raises(UnsupportedError, match="add_self_loops with edge_dim takes no SparseTensor"):
        GATConv(4, 3, edge_dim=2)(torch.randn(3, 4), matrix)


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|invariant)")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr, torch.sparse_csc])
def test_rows_are_targets(layout: torch.layout) -> None:
    dense = torch.zeros(2, 3)  # 2 targets, 3 sources
    dense[0, 2], dense[1, 0] = 5.0, 7.0
    matrix = dense.to_sparse(layout=layout)
    adjacency = read_adjacency(matrix, None)
    assert sorted(adjacency.edge_index.t().tolist()) == [[0, 1], [2, 0]]
    assert (adjacency.num_sources, adjacency.num_targets, adjacency.attr) == (3, 2, None)
    row, column, value = read_matrix(matrix)
    assert value is not None and torch.equal(dense[row, column], value)


def test_a_matrix_has_one_flow() -> None:
    matrix = torch.eye(3).to_sparse()
    with pytest.raises(ValueError, match="edge_index is sparse, and flow is 'target_to_source'"):
        read_adjacency(matrix, None, flow="target_to_source")
    with pytest.raises(ValueError, match="edge_index is declared over 3 targets; x has 2"):
        TransformerConv(4, 3)((torch.randn(3, 4), torch.randn(2, 4)), matrix)
