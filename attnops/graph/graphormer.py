"""Graphormer: every node attends every node of its graph, and the graph speaks through the bias alone."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnops.biases import Bias, Distance, EdgeBias
from attnops.biases.base import BiasSum
from attnops.checks import require_positive
from attnops.graph.adjacency import check_edge_attr, read_index
from attnops.graph.distances import Paths, shortest_paths
from attnops.graph.packed import graph_of_edges, read_batch
from attnops.patterns import Edges


def all_pairs(
    edge_index: Tensor,
    num_nodes: int,
    batch: Tensor | None = None,
    edge_attr: Tensor | None = None,
    max_path: int = 5,
    batch_size: int | None = None,
) -> Edges:
    """Every ordered pair of nodes of one graph, each graph apart, with what lies between the two as edge data.

    The pairs are those that `SameSegment()` allows over `segment=batch`; they are listed since they carry data:

    - `distance` int32 `[P]`: the hops from key j to query i along the edges, -1 where no path leads;
    - `attr` `[P, max_path · F]`, where `edge_attr` is given: the features of the last `max_path` edges of the shortest
      path, the one that ends in i first, divided by how many they are; 0 where a path has no such edge. Where several
      shortest paths tie (the paper takes any), the mean over all of them, so that the order of nodes changes nothing.

    Distances and paths are computed once a graph and kept (see `shortest_paths`). Values are read: build the pairs
    outside of a traced function, once a batch, and give them to all layers.

    Args:
        edge_index: integer `[2, E]`, sources above targets. num_nodes: N.
        batch: integer `[N]`, ascending, the graph of each node; None is one graph. batch_size: G, where it is declared.
        edge_attr: real `[E, F]`; gradients flow into it.
        max_path: how many edges of a path are read.

    Raises:
        ValueError, TypeError: a bad argument, by name; an edge between two graphs. ImportError: no scipy.

    Source: Ying et al. 2021, arXiv:2106.05234.

    Example:
        >>> import torch
        >>> from attnops.graph import all_pairs
        >>> pairs = all_pairs(torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, batch=torch.tensor([0, 0, 0, 1, 1]))
        >>> pairs.num_edges, pairs.data["distance"][:3]                           # from node 0 to 0, 1 and 2
        (13, tensor([0, 1, 2], dtype=torch.int32))
    """
    edges = read_index(edge_index)
    packed = read_batch(batch, num_nodes, batch_size, edges.device)
    Edges(edges, num_nodes, num_nodes)  # checks the ends
    graph = graph_of_edges(edges, packed)
    if edge_attr is not None:
        check_edge_attr(edge_attr, edges.shape[1], None)
        require_positive(max_path=max_path)
        edge_attr = edge_attr.unsqueeze(-1) if edge_attr.ndim == 1 else edge_attr

    # each graph with nodes and edges numbered within it, as its paths are kept
    order = torch.sort(graph, stable=True).indices.cpu()
    within = (edges.long() - packed.first[graph]).cpu()[:, order]
    counts = torch.bincount(graph, minlength=packed.sizes.shape[0]).tolist()
    sizes, firsts = packed.sizes.tolist(), packed.first.tolist()
    depth = max_path if edge_attr is not None else 0
    found = [
        shortest_paths(own, size, depth) for own, size in zip(torch.split(within, counts, dim=1), sizes, strict=True)
    ]

    keys, queries = [], []
    for first, size in zip(firsts, sizes, strict=True):
        nodes = torch.arange(first, first + size)
        keys.append(nodes.repeat_interleave(size))
        queries.append(nodes.repeat(size))
    none = torch.zeros(0, dtype=torch.int64)
    index = torch.stack([torch.cat([none, *keys]), torch.cat([none, *queries])])
    distance = torch.cat([none.int(), *(paths.distance.flatten() for paths in found)])
    data = {"distance": distance.to(edges.device)}
    if edge_attr is not None:
        data["attr"] = _along_paths(found, distance, order, counts, edge_attr, max_path)
    return Edges(index.to(edges.device), num_nodes, num_nodes, **data)


def _along_paths(
    found: list[Paths], distance: Tensor, order: Tensor, counts: list[int], edge_attr: Tensor, max_path: int
) -> Tensor:
    """`[P, max_path · F]`: the features of the edges along the paths of all graphs, divided by how many there are."""
    places, edges, shares = [], [], []
    first_pair = first_edge = 0
    for paths, count in zip(found, counts, strict=True):
        places.append((paths.pair + first_pair) * max_path + paths.place)
        edges.append(order[paths.edge + first_edge])
        shares.append(paths.share)
        first_pair, first_edge = first_pair + paths.distance.numel(), first_edge + count
    if not places:
        return edge_attr.new_zeros(0, max_path * edge_attr.shape[1])
    place, edge = torch.cat(places), torch.cat(edges)
    share = torch.cat(shares) / distance.clamp(1, max_path)[place // max_path]
    device = edge_attr.device
    weighted = edge_attr[edge.to(device)] * share.to(device, edge_attr.dtype).unsqueeze(1)
    table = weighted.new_zeros(first_pair * max_path, edge_attr.shape[1]).index_add(0, place.to(device), weighted)
    return table.view(first_pair, max_path * edge_attr.shape[1])


class GraphormerBias(BiasSum):
    """What Graphormer prefers: a learned number a distance, and the edges along the shortest path.

        b_ij = weight[d_ij, h] + 1/n Σ_n w_{n,h} · e_n          e_n the n-th edge of the path from j, counted from i

    It is `Distance(heads, max_distance)`, whose last row is that of pairs without a path, plus
    `EdgeBias(max_path · edge_dim, heads)`; both start at 0. Reads what `all_pairs` lists.

    Args:
        heads: H. max_distance: larger distances share its row.
        edge_dim: F, the features of an edge; None leaves the second term out. max_path: how many edges of a path.

    Raises:
        ValueError: a bad argument; a distance below -1.

    Source: Ying et al. 2021, arXiv:2106.05234.

    Example:
        >>> import torch, attnops
        >>> from attnops.graph import GraphormerBias, all_pairs
        >>> pairs = all_pairs(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3, edge_attr=torch.randn(3, 4), max_path=2)
        >>> x = torch.randn(2, 3, 8)                                              # [H, N, D]
        >>> bias = GraphormerBias(2, max_distance=4, edge_dim=4, max_path=2)
        >>> attnops.attend(x, x, x, pattern=pairs, bias=bias).shape
        torch.Size([2, 3, 8])
    """

    def __init__(self, heads: int, max_distance: int, edge_dim: int | None = None, max_path: int = 5) -> None:
        terms: list[Bias] = [Distance(heads, max_distance)]
        if edge_dim is not None:
            require_positive(edge_dim=edge_dim, max_path=max_path)
            terms.append(EdgeBias(max_path * edge_dim, heads))
        super().__init__(tuple(terms), None)
        self.heads = heads


class CentralityEncoding(nn.Module):
    """x_i + z⁻[edges that enter i] + z⁺[edges that leave i]: a learned vector a degree, added to a node's features.

    Args:
        dim: of a node. max_degree: larger degrees share its row.

    Parameters: `entering` and `leaving`, `[max_degree + 1, dim]`, drawn from a normal distribution of width 0.02.

    Raises:
        ValueError, TypeError: a bad argument, by name; an edge end that is not a node.

    Source: Ying et al. 2021, arXiv:2106.05234.

    Example:
        >>> import torch
        >>> from attnops.graph import CentralityEncoding
        >>> CentralityEncoding(8, max_degree=16)(torch.randn(3, 8), torch.tensor([[0, 1], [2, 2]])).shape
        torch.Size([3, 8])
    """

    def __init__(self, dim: int, max_degree: int) -> None:
        super().__init__()
        require_positive(dim=dim, max_degree=max_degree)
        self.max_degree = max_degree
        self.entering = nn.Embedding(max_degree + 1, dim)
        self.leaving = nn.Embedding(max_degree + 1, dim)
        for table in (self.entering, self.leaving):
            nn.init.normal_(table.weight, std=0.02)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        """`x [N, dim]` with the encoding of each node's degrees added."""
        edges = Edges(read_index(edge_index), x.shape[0], x.shape[0])  # checks the ends
        leaving, entering = (
            torch.bincount(end.long(), minlength=x.shape[0]).clamp(max=self.max_degree)
            for end in (edges.source, edges.target)
        )
        encoded: Tensor = x + self.entering(entering) + self.leaving(leaving)
        return encoded
