"""Exphormer: local edges, a random expander and virtual nodes, sparse and yet a few hops from anyone to anyone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

import torch
from torch import Tensor

from attnops.biases import EdgeBias, EdgeTypePrior
from attnops.checks import require_count, require_positive
from attnops.coords import Coords
from attnops.graph.node_attention import NodeAttention
from attnops.graph.packed import Packed, read_batch
from attnops.operator import attend
from attnops.patterns import Edges, SameSegment
from attnops.states import AttentionOutput, merge

LOCAL, EXPANDER, VIRTUAL = 0, 1, 2  # the type of an edge


def expander_edges(sizes: Sequence[int], degree: int = 4, seed: int = 0) -> Tensor:
    """The edges of a random graph on each of some node sets: `[2, E]`, both ways, no loop.

    The union of `degree / 2` random Hamiltonian cycles a set: sparse, and with high probability an expander, so that
    any node is O(log n) hops from any other. An edge of two cycles is listed once, so a few nodes have fewer than
    `degree`. The graph on a set depends on its size and the seed alone.

    Args:
        sizes: the nodes of each set, numbered one set below the other. degree: even.
        seed: of the cycles.

    Raises:
        ValueError: an odd degree.

    Source: Shirzad et al. 2023, arXiv:2303.06147; Friedman, "A proof of Alon's second eigenvalue conjecture", 2003.

    Example:
        >>> from attnops.graph import expander_edges
        >>> edges = expander_edges([100, 50], degree=4)                           # nodes 0 … 99 and 100 … 149
        >>> edges.max(), edges[1].bincount().max()
        (tensor(149), tensor(4))
    """
    require_positive(degree=degree)
    if degree % 2:
        raise ValueError(f"degree is {degree}; it must be even, two for each cycle")
    parts = [torch.zeros(2, 0, dtype=torch.int64)]
    first = 0
    for size in sizes:
        generator = torch.Generator().manual_seed(seed)
        cycles = [torch.randperm(size, generator=generator) for _ in range(degree // 2)]
        ways = [torch.stack([cycle, cycle.roll(1)]) for cycle in cycles]
        both = torch.cat([way for cycle in ways for way in (cycle, cycle.flip(0))], dim=1)
        parts.append(torch.unique(both[:, both[0] != both[1]], dim=1) + first)
        first += size
    return torch.cat(parts, dim=1)


class ExphormerGraph:
    """Who may attend whom in Exphormer: N nodes of some graphs, then V virtual nodes a graph, graph by graph.

    The edges carry `type`: 0 local, 1 expander, 2 to and from virtual nodes. An edge in two parts is two pairs.

    Args:
        local: edges over the N nodes; their data are 0 on the edges of the other parts.
        packed: which graph a node is in (`read_batch`); None is one graph.
        virtual_nodes: V, 0 or more; each is joined with every node of its graph, both ways.
        degree: of the expander, even, 0 for none. seed: of the expander.

    Raises:
        ValueError: local edges that carry a `type`; a bad number.

    Example:
        >>> import torch, attnops
        >>> from attnops.graph import ExphormerGraph
        >>> ring = torch.stack([torch.arange(6), (torch.arange(6) + 1) % 6])
        >>> graph = ExphormerGraph(attnops.Edges(ring, 6, 6), virtual_nodes=1, degree=2)
        >>> graph.edges                                                           # 6 local, 12 expander, 12 virtual
        Edges(30 edges, 7 queries, 7 keys, type=[30])
    """

    def __init__(
        self, local: Edges, packed: Packed | None = None, virtual_nodes: int = 1, degree: int = 4, seed: int = 0
    ) -> None:
        if "type" in local.data:
            raise ValueError("local carries type, which says the part of an edge; give it another name")
        require_count(virtual_nodes=virtual_nodes)
        device, self.num_nodes = local.edge_index.device, local.num_queries
        packed = read_batch(None, self.num_nodes, None, device) if packed is None else packed
        sizes = packed.sizes.tolist()
        expander = expander_edges(sizes, degree, seed) if degree else torch.zeros(2, 0, dtype=torch.int64)
        self.nearby = Edges.cat(
            [
                _part(local.edge_index, self.num_nodes, LOCAL, **local.data),
                _part(expander.to(local.edge_index), self.num_nodes, EXPANDER),
            ],
            **dict.fromkeys(local.data, 0.0),
        )
        hubs = torch.arange(len(sizes), device=device).repeat_interleave(virtual_nodes)
        self.virtual_nodes, self.segment = virtual_nodes, torch.cat([packed.batch, hubs])  # [N], [N + V·G]

    @cached_property
    def edges(self) -> Edges:
        """All parts as one list, over N + V·G nodes."""
        total, like, count = self.segment.shape[0], self.nearby.edge_index, self.virtual_nodes
        nodes = torch.arange(self.num_nodes, device=like.device).repeat_interleave(count)
        which = torch.arange(count, device=like.device).repeat(self.num_nodes)
        hubs = self.num_nodes + count * self.segment[nodes] + which
        ways = torch.cat([torch.stack([nodes, hubs]), torch.stack([hubs, nodes])], dim=1)
        nearby = Edges(like, total, total, **self.nearby.data)
        fill = dict.fromkeys((name for name in nearby.data if name != "type"), 0.0)
        return Edges.cat([nearby, _part(ways.to(like), total, VIRTUAL)], **fill)


def _part(edge_index: Tensor, num_nodes: int, kind: int, **data: Tensor) -> Edges:
    kinds = torch.full((edge_index.shape[1],), kind, device=edge_index.device)
    return Edges(edge_index, num_nodes, num_nodes, type=kinds, **data)


class ExphormerAttention(NodeAttention):
    """Attention over Exphormer's edges, with a learned logit a part of the graph.

        b_ij = prior[type_ij, h] (+ w_h · e_ij on local edges)

    Where `merged` is True, virtual nodes are no edges: local and expander edges are one call over an edge list, the
    virtual nodes two narrow dense ones, each on the backend that suits it, and `merge` joins what a node hears into one
    softmax. The numbers are the same.

    Args:
        dim: of a node, a multiple of heads. heads: H. edge_dim: features of a local edge (`attr`); None without.
        merged: see above. dropout: rate on the weights, in training.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Shirzad et al. 2023, arXiv:2303.06147.

    Example:
        >>> import torch, attnops
        >>> from attnops.graph import ExphormerAttention, ExphormerGraph
        >>> graph = ExphormerGraph(attnops.Edges(torch.tensor([[0, 1, 2], [1, 2, 3]]), 4, 4), virtual_nodes=2)
        >>> ExphormerAttention(8, heads=2)(torch.randn(4 + 2, 8), graph).shape
        torch.Size([6, 8])
    """

    def __init__(
        self, dim: int, heads: int, edge_dim: int | None = None, merged: bool = False, dropout: float = 0.0
    ) -> None:
        super().__init__(dim, heads, None, dropout)
        self.prior = EdgeTypePrior(3, heads)
        self.edge = None if edge_dim is None else EdgeBias(edge_dim, heads)
        self.merged = merged

    def forward(self, x: Tensor, graph: ExphormerGraph) -> Tensor:  # type: ignore[override]
        """`[N + V·G, dim]` to the same: the nodes, then the virtual ones."""
        query, key, value = self.project(x)
        bias = self.prior if self.edge is None else self.prior + self.edge
        dropout = self.dropout if self.training else 0.0
        if not self.merged:
            out = attend(query, key, value, pattern=graph.edges, bias=bias, dropout=dropout)
            assert not isinstance(out, AttentionOutput)
            return self.join(out)

        counts = [graph.num_nodes, x.shape[0] - graph.num_nodes]
        (q_node, q_hub), (k_node, k_hub), (v_node, v_hub) = (
            torch.split(rows, counts, dim=1) for rows in (query, key, value)
        )
        of_nodes, of_hubs = (Coords(segment=segment) for segment in torch.split(graph.segment, counts))
        nearby = attend(q_node, k_node, v_node, pattern=graph.nearby, bias=bias, dropout=dropout, return_lse=True)
        from_hubs = attend(
            q_node, k_hub, v_hub, pattern=SameSegment(), bias=self.prior.weight[VIRTUAL].view(-1, 1, 1),
            coords=(of_nodes, of_hubs), dropout=dropout, return_lse=True,
        )  # fmt: skip
        to_hubs = attend(q_hub, k_node, v_node, pattern=SameSegment(), coords=(of_hubs, of_nodes), dropout=dropout)
        assert isinstance(nearby, AttentionOutput) and isinstance(from_hubs, AttentionOutput)
        assert not isinstance(to_hubs, AttentionOutput)
        return self.join(torch.cat([merge([nearby, from_hubs]).out, to_hubs], dim=1))
