"""Distances and the edges on shortest paths: by hand, beside networkx, kept once computed."""

from __future__ import annotations

import itertools
from typing import Any

import networkx
import pytest
import torch
from torch import Tensor

import attnops
from attnops.graph import CentralityEncoding, GraphormerBias, all_pairs
from attnops.graph import distances as module
from attnops.graph.distances import shortest_paths


def some_graph(seed: int, nodes: int = 7, edges: int = 14) -> Tensor:
    """Directed, with parallel edges and self-loops, seldom connected."""
    return torch.randint(0, nodes, (2, edges), generator=torch.Generator().manual_seed(seed))


def all_shortest(edge_index: Tensor, j: int, i: int, nodes: int) -> list[list[int]]:
    """Every shortest path from j to i as a list of columns of edge_index, parallel edges apart."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(nodes))
    graph.add_edges_from(edge_index.t().tolist())
    if j == i or not networkx.has_path(graph, j, i):
        return []
    paths = []
    for path in networkx.all_shortest_paths(graph, j, i):
        steps = [
            ((edge_index[0] == u) & (edge_index[1] == v)).nonzero().flatten().tolist()
            for u, v in itertools.pairwise(path)
        ]
        paths += [list(choice) for choice in itertools.product(*steps)]
    return paths


@pytest.mark.parametrize("seed", range(4))
def test_distances_and_features_along_paths_are_those_of_networkx(seed: int) -> None:
    edge_index, nodes, most = some_graph(seed), 7, 2
    attr = torch.randn(edge_index.shape[1], 3, dtype=torch.float64)
    pairs = all_pairs(edge_index, nodes, edge_attr=attr, max_path=most)
    unreachable = 0
    for pair, (j, i) in enumerate(pairs.edge_index.t().tolist()):
        paths = all_shortest(edge_index, j, i, nodes)
        hops = 0 if j == i else (len(paths[0]) if paths else -1)
        unreachable += hops == -1
        assert int(pairs.data["distance"][pair]) == hops
        expected = torch.zeros(most, 3, dtype=torch.float64)
        for path in paths:
            for place, edge in enumerate(reversed(path[-most:])):
                expected[place] += attr[edge] / len(paths) / min(hops, most)
        torch.testing.assert_close(pairs.data["attr"][pair], expected.flatten(), atol=1e-6, rtol=1e-6)
    assert unreachable


def test_the_pairs_are_those_that_same_segment_allows() -> None:
    batch = torch.tensor([0, 0, 0, 2, 2])  # graph 1 has no node
    pairs = all_pairs(torch.tensor([[0, 4], [1, 3]]), 5, batch, batch_size=4)
    listed = torch.zeros(5, 5, dtype=torch.bool)
    listed[pairs.target, pairs.source] = True
    x = torch.zeros(1, 5, 1)
    allowed = attnops.attend(
        x, x, x, pattern=attnops.SameSegment(), coords=attnops.Coords(segment=batch), return_weights=True
    ).weights[0]
    assert torch.equal(listed, allowed > 0) and pairs.unique
    assert pairs.data["distance"].tolist() == [0, 1, -1, -1, 0, -1, -1, -1, 0, 0, -1, 1, 0]


def test_the_bias_is_a_plain_formula() -> None:
    """b_ij = table[d_ij] + the mean of w_n · e_n along the path; unreachable pairs have a row of their own."""
    path = torch.tensor([[0, 1, 2], [1, 2, 3]])  # 0 → 1 → 2 → 3
    attr = torch.randn(3, 2, dtype=torch.float64)
    bias = GraphormerBias(heads=2, max_distance=2, edge_dim=2, max_path=2).double()
    assert all(bool((parameter == 0).all()) for parameter in bias.parameters())
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    q, k, v = torch.randn(3, 2, 4, 5, dtype=torch.float64).unbind(0)
    out = attnops.attend(q, k, v, pattern=all_pairs(path, 4, edge_attr=attr, max_path=2), bias=bias)

    table, weight = (parameter.detach() for parameter in bias.parameters())
    last, before = weight[:, :2] @ attr.t(), weight[:, 2:] @ attr.t()  # [H, E] of the two places
    b = torch.zeros(2, 4, 4, dtype=torch.float64)
    for i, j in itertools.product(range(4), repeat=2):
        hops = i - j
        b[:, i, j] = table[3] if hops < 0 else table[min(hops, 2)]
        if hops == 1:
            b[:, i, j] += last[:, i - 1]
        if hops >= 2:
            b[:, i, j] += (last[:, i - 1] + before[:, i - 2]) / 2
    expected = (q @ k.mT / 5**0.5 + b).softmax(-1) @ v
    torch.testing.assert_close(out, expected)
    for backend in ("reference", "blockwise", "scatter"):
        pairs = all_pairs(path, 4, edge_attr=attr, max_path=2)
        torch.testing.assert_close(attnops.attend(q, k, v, pattern=pairs, bias=bias, backend=backend), expected)


def test_gradients_reach_the_features_of_edges() -> None:
    edge_index = some_graph(1)
    attr = torch.randn(14, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda a: all_pairs(edge_index, 7, edge_attr=a).data["attr"].square(), (attr,))


def test_paths_are_kept_by_what_the_graph_is(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[int] = []
    compute = module._compute

    def counted(*arguments: Any) -> Any:
        calls.append(1)
        return compute(*arguments)

    monkeypatch.setattr(module, "_compute", counted)
    monkeypatch.setattr(module, "_kept", module._Kept())
    ring = torch.tensor([[0, 1, 2], [1, 2, 0]])
    for order in ([0, 1], [1, 0], [0, 0]):  # batches of the same two graphs in other orders
        graphs = [(ring, 3), (ring.flip(0), 3)]
        shifted = [graphs[which][0] + 3 * place for place, which in enumerate(order)]
        all_pairs(torch.cat(shifted, dim=1), 6, torch.tensor([0, 0, 0, 1, 1, 1]))
    assert len(calls) == 2
    ring[1, 2] = 1  # edited in place: another graph
    assert shortest_paths(ring, 3).distance[2].tolist() == [-1, 1, 0] and len(calls) == 3
    monkeypatch.setattr(module, "KEPT_BYTES", 1)
    shortest_paths(ring, 4)
    assert not module._kept.paths and module._kept.bytes == 0


def test_degrees_are_counted_from_both_ends() -> None:
    encode = CentralityEncoding(2, max_degree=2)
    with torch.no_grad():
        encode.entering.weight.copy_(torch.tensor([[0.0, 0], [1, 0], [2, 0]]))
        encode.leaving.weight.copy_(torch.tensor([[0.0, 0], [0, 1], [0, 2]]))
    edge_index = torch.tensor([[0, 0, 0, 1], [1, 1, 2, 0]])
    assert encode(torch.zeros(4, 2), edge_index).tolist() == [[1, 2], [2, 1], [1, 0], [0, 0]]


@pytest.mark.parametrize(
    ("build", "error", "words"),
    [
        (lambda: all_pairs(torch.tensor([[0], [3]]), 3), ValueError, "edge_index[1] holds"),
        (lambda: all_pairs(torch.tensor([[0.0], [1.0]]), 3), TypeError, "edge_index is torch.float32"),
        (
            lambda: all_pairs(torch.tensor([[0], [1]]), 2, torch.tensor([0, 1])),
            ValueError,
            "node 0 and node 1, which batch puts into two graphs",
        ),
        (lambda: all_pairs(torch.zeros(2, 0).long(), 2, torch.tensor([1, 0])), ValueError, "batch is not ascending"),
        (lambda: all_pairs(torch.zeros(2, 0).long(), 2, torch.tensor([0])), ValueError, "batch has shape [1]"),
        (
            lambda: all_pairs(torch.zeros(2, 0).long(), 2, torch.tensor([0, 2]), batch_size=2),
            ValueError,
            "batch holds 2",
        ),
        (
            lambda: all_pairs(torch.tensor([[0], [1]]), 2, edge_attr=torch.zeros(2, 3)),
            ValueError,
            "edge_attr has shape [2, 3]",
        ),
        (lambda: GraphormerBias(2, -1), ValueError, "max_distance is -1"),
        (lambda: GraphormerBias(2, 3, edge_dim=0), ValueError, "edge_dim is 0"),
    ],
)
def test_errors(build: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        build()
    assert words in str(raised.value)


def test_a_negative_distance_is_refused() -> None:
    pairs = attnops.Edges(torch.tensor([[0], [1]]), 2, 2, distance=torch.tensor([-2]))
    x = torch.randn(2, 2, 4)
    with pytest.raises(ValueError, match=r"edge.distance holds -2; Distance reads numbers of hops"):
        attnops.attend(x, x, x, pattern=pairs, bias=GraphormerBias(2, 4))
