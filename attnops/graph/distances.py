"""Shortest paths between all nodes of a graph, and the edges that lie on them; kept once computed."""

from __future__ import annotations

import threading
from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from attnops.checks import require_count, require_positive
from attnops.graph.adjacency import read_index
from attnops.patterns import Edges

KEPT_BYTES = 256 << 20  # of the graphs asked for last


class Paths(NamedTuple):
    """Shortest paths of a graph of N nodes; a pair is the number j·N + i of a source j and a target i.

    Where several shortest paths tie, each has the same share, so that the numbering of nodes changes nothing.
    """

    distance: Tensor  # int32 [N, N], the hops from row j to column i; -1 where no path leads
    pair: Tensor  # [S], one entry for an edge at a place of a pair's paths
    place: Tensor  # [S], 0 for the edge that ends in i, 1 for the one before it, …
    edge: Tensor  # [S], the column of edge_index
    share: Tensor  # float32 [S], the share of the pair's shortest paths that have the edge at that place


def shortest_paths(edge_index: Tensor, num_nodes: int, max_path: int = 0) -> Paths:
    """Hops from every node to every other along the edges, and the last `max_path` edges of the paths.

    Computed by scipy on the CPU and kept, by what the graph is rather than by which tensor holds it: a data loader that
    draws its graphs in another order each epoch computes each once. What was used least recently is dropped where more
    than 256 MiB are kept.

    Args:
        edge_index: integer `[2, E]`, sources above targets. num_nodes: N.
        max_path: how many edges of a path are wanted, counted from its end; 0 is distances alone.

    Raises:
        ValueError, TypeError: a bad argument, by name; an edge end that is not a node. ImportError: no scipy.

    Example:
        >>> import torch
        >>> from attnops.graph.distances import shortest_paths
        >>> shortest_paths(torch.tensor([[0, 1], [1, 2]]), num_nodes=3).distance
        tensor([[ 0,  1,  2],
                [-1,  0,  1],
                [-1, -1,  0]], dtype=torch.int32)
    """
    edges = read_index(edge_index).detach().to("cpu", torch.int64).contiguous()
    require_count(num_nodes=num_nodes)
    if max_path:
        require_positive(max_path=max_path)
    Edges(edges, num_nodes, num_nodes)  # checks the ends
    key = (edges.numpy().tobytes(), num_nodes, max_path)
    paths = _kept.get(key)
    if paths is None:
        paths = _kept.put(key, _compute(edges, num_nodes, max_path))
    return paths


def _compute(edges: Tensor, num_nodes: int, max_path: int) -> Paths:
    try:
        from scipy.sparse import coo_array
        from scipy.sparse.csgraph import shortest_path
    except ImportError as error:
        raise ImportError("shortest paths need scipy: pip install scipy") from error
    none = torch.zeros(0, dtype=torch.int64)
    if num_nodes == 0:
        return Paths(torch.zeros(0, 0, dtype=torch.int32), none, none, none, none.float())
    source, target = edges.numpy()
    links = torch.ones(edges.shape[1], dtype=torch.float64).numpy()
    matrix = coo_array((links, (source, target)), shape=(num_nodes, num_nodes)).tocsr()
    hops = torch.from_numpy(shortest_path(matrix, unweighted=True, directed=True))
    distance = torch.where(torch.isinf(hops), -1, hops).to(torch.int32)
    if not max_path:
        return Paths(distance, none, none, none, none.float())
    counts = _count_paths(distance, torch.from_numpy(matrix.toarray()))
    return Paths(distance, *_edges_on_paths(distance, counts, edges, max_path))


def _count_paths(distance: Tensor, adjacency: Tensor) -> Tensor:
    """`[N, N]`, how many shortest paths lead from row to column, parallel edges apart."""
    counts = torch.eye(distance.shape[0], dtype=torch.float64)
    at = counts
    for hops in range(1, int(distance.max()) + 1):
        at = torch.where(distance == hops, at @ adjacency, 0)
        counts = counts + at
    return counts


def _edges_on_paths(
    distance: Tensor, counts: Tensor, edges: Tensor, max_path: int
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Which edges lie on the shortest paths from j to i, one source j at a time.

    Edge u → v is one of them if d(j, u) + 1 + d(v, i) = d(j, i), and paths(j, u) · paths(v, i) of paths(j, i) have it.
    """
    num_nodes, (tail, head) = distance.shape[0], edges
    after = distance[head]  # [E, N], the hops from an edge's end to each i
    reaches = (after >= 0) & (after < max_path)
    found: list[tuple[Tensor, ...]] = []
    for j in range(num_nodes):
        before = distance[j, tail].unsqueeze(1)
        on_path = reaches & (before >= 0) & (before + 1 + after == distance[j])
        edge, i = on_path.nonzero().unbind(1)
        share = counts[j, tail[edge]] * counts[head[edge], i] / counts[j, i]
        found.append((j * num_nodes + i, after[edge, i].long(), edge, share.float()))
    pair, place, edge, share = (torch.cat(parts) for parts in zip(*found, strict=True))
    return pair, place, edge, share


class _Kept:
    """The paths of the graphs that were asked for last."""

    def __init__(self) -> None:
        self.paths: OrderedDict[tuple[bytes, int, int], Paths] = OrderedDict()
        self.bytes = 0
        self.lock = threading.Lock()

    def get(self, key: tuple[bytes, int, int]) -> Paths | None:
        with self.lock:
            if key in self.paths:
                self.paths.move_to_end(key)
            return self.paths.get(key)

    def put(self, key: tuple[bytes, int, int], paths: Paths) -> Paths:
        with self.lock:
            if key not in self.paths:
                self.paths[key] = paths
                self.bytes += _bytes(key, paths)
                while self.bytes > KEPT_BYTES:
                    self.bytes -= _bytes(*self.paths.popitem(last=False))
        return paths


def _bytes(key: tuple[bytes, int, int], paths: Paths) -> int:
    return len(key[0]) + sum(tensor.nbytes for tensor in paths)


_kept = _Kept()
