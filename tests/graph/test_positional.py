"""Laplacian and random-walk encodings: torch-geometric's numbers, small graphs, and what becomes of signs."""

from __future__ import annotations

from typing import Any

import networkx
import pytest
import torch

pytest.importorskip("torch_geometric", reason="the extra graph is not installed")

from torch_geometric.data import Batch, Data
from torch_geometric.transforms import AddRandomWalkPE
from torch_geometric.utils import from_networkx

from attnops.graph import LaplacianEncoding, add_encodings

NONE = torch.zeros(2, 0, dtype=torch.int64)


def undirected(graph: Any) -> Data:
    made = from_networkx(graph)
    made.num_nodes = len(graph)
    return made


@pytest.mark.parametrize("nodes", [12, 130])  # dense and sparse in torch-geometric
def test_columns_are_eigenvectors_of_the_laplacian(nodes: int) -> None:
    graph = networkx.connected_watts_strogatz_graph(nodes, 4, 0.3, seed=0)
    data = undirected(graph)
    encoded = add_encodings(data, laplacian=3, random_walk=2)
    assert "laplacian" not in data and encoded.laplacian.shape == (nodes, 3)
    laplacian = torch.tensor(networkx.normalized_laplacian_matrix(graph, range(nodes)).toarray(), dtype=torch.float32)
    values = torch.linalg.eigvalsh(laplacian)[1:4]
    torch.testing.assert_close(laplacian @ encoded.laplacian, encoded.laplacian * values, atol=1e-4, rtol=1e-4)
    assert torch.equal(encoded.random_walk, AddRandomWalkPE(2)(data.clone()).random_walk_pe)


def test_graphs_with_few_nodes_have_zeros_and_batch() -> None:
    paths = [add_encodings(undirected(networkx.path_graph(nodes)), laplacian=3) for nodes in (1, 2, 5)]
    batch = Batch.from_data_list(paths)
    assert batch.laplacian.shape == (8, 3)
    assert not batch.laplacian[0].any() and not batch.laplacian[1:3, 1:].any() and batch.laplacian[3:].any(0).all()


@pytest.mark.parametrize("training", [False, True])
def test_an_invariant_encoding_does_not_see_signs(training: bool) -> None:
    encode = LaplacianEncoding(3, 5).train(training)
    vectors, signs = torch.randn(6, 3), torch.tensor([1.0, -1.0, -1.0])
    ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
    assert torch.equal(encode(vectors, ring), encode(vectors * signs, ring))
    assert not torch.allclose(
        encode(vectors, ring), encode(vectors.abs(), ring)
    )  # it sees which entries differ in sign
    assert not torch.allclose(encode(vectors, ring), encode(vectors[:, [1, 0, 2]], ring))
    new_name = torch.randperm(6)
    renamed = torch.empty_like(vectors).index_copy(0, new_name, vectors)
    torch.testing.assert_close(encode(renamed, new_name[ring])[new_name], encode(vectors, ring))


def test_flips_are_one_a_graph_and_eigenvector_in_training_alone() -> None:
    encode = LaplacianEncoding(2, 2, signs="flip")
    with torch.no_grad():
        encode.rho[0].weight.copy_(torch.eye(2))
        encode.rho[0].bias.zero_()
    vectors, batch = torch.rand(8, 2) + 1, torch.tensor([0] * 5 + [1] * 3)
    seen = set()
    for _ in range(200):
        signs = encode(vectors, NONE, batch) / vectors
        torch.testing.assert_close(signs.abs(), torch.ones(8, 2))
        assert (signs[:5] == signs[0]).all() and (signs[5:] == signs[5]).all()
        seen.add(tuple(signs[[0, 5]].flatten().round().tolist()))
    assert len(seen) == 16  # all ways
    assert torch.equal(encode.eval()(vectors, NONE, batch), vectors)


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: add_encodings(torch.zeros(2)), TypeError, "data is Tensor"),
        (
            lambda: add_encodings(Data(edge_index=torch.zeros(2, 0).long(), num_nodes=1), -1),
            ValueError,
            "laplacian is -1",
        ),
        (lambda: LaplacianEncoding(2, 4, signs="none"), ValueError, "signs is 'none'"),
        (lambda: LaplacianEncoding(2, 4)(torch.zeros(3, 1), NONE), ValueError, "vectors has shape [3, 1]"),
    ],
)
def test_errors(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert words in str(raised.value)
