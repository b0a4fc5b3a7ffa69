"""The graph transformer layer: dot-product attention over neighbours, with edge features in keys and values."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from attnops.checks import require_number, require_positive
from attnops.graph.adjacency import Adjacency, with_values
from attnops.graph.edge_cache import edges_over, keep
from attnops.graph.layer import AttentionLayer, Pair, require_channels
from attnops.graph.linear import Linear
from attnops.patterns import Edges


class TransformerConv(AttentionLayer):
    """torch-geometric's `TransformerConv` on `attend`: the same arguments, results, parameters and first values.

        logits_ij = (W_q x_i)·(W_k x_j + W_e e_ij) / √C          j → i an edge
        m_i       = Σ_j softmax_j(logits_ij) (W_v x_j + W_e e_ij)
        out_i     = W_s x_i + m_i,   or with β:  β_i W_s x_i + (1 − β_i) m_i,   β_i = σ(wᵀ[m_i, W_s x_i, m_i − W_s x_i])

    With edge features every edge is a key and a value of its own, `[E, H, C]`. A node that no edge enters gets W_s x_i
    alone. No self-loop is added.

    Args:
        in_channels: of a node, or (of sources, of targets); -1 reads it off the first input.
        out_channels: C of a head. heads: H.
        concat: heads beside each other (H·C), or their mean (C).
        beta: gate between the node and its message; needs `root_weight`. dropout: rate on the weights, in training.
        edge_dim: features of an edge, which must then be given. bias: whether the maps of nodes have an offset.
        root_weight: add W_s x_i.
        **kwargs: `flow`, `aggr` and `aggr_kwargs` of `MessagePassing`.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Shi et al. 2021, arXiv:2009.03509; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import TransformerConv
        >>> x, edge_index = torch.randn(4, 8), torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> TransformerConv(8, 16, heads=2, beta=True)(x, edge_index).shape
        torch.Size([4, 32])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        beta: bool = False,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        root_weight: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_positive(out_channels=out_channels, heads=heads)
        require_number(dropout=dropout)
        require_channels(in_channels)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.beta, self.root_weight = beta and root_weight, root_weight
        self.dropout, self.edge_dim = dropout, edge_dim
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin_key = Linear(sources, width, bias)
        self.lin_query = Linear(targets, width, bias)
        self.lin_value = Linear(sources, width, bias)
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, False)
        self.lin_skip = Linear(targets, total, bias)
        self.lin_beta = Linear(3 * total, 1, False) if self.beta else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        super().reset_parameters()
        maps = (self.lin_key, self.lin_query, self.lin_value, self.lin_edge, self.lin_skip, self.lin_beta)
        for linear in maps:
            if linear is not None:
                linear.reset_parameters()

    def forward(
        self,
        x: Tensor | Pair,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Node features `[N, F]` or a pair of them to `[N, H·C]`; see the class.

        Args:
            x: `[N, F]`, or (sources, targets).
            edge_index: `[2, E]`, an `EdgeIndex`, or the transposed adjacency as a sparse matrix.
            edge_attr: `[E, edge_dim]`.
            return_attention_weights: True or False also returns (edge_index, weights `[E, H]` before dropout).
        """
        x_src, x_dst, _ = self.read_pair(x)
        if x_dst is None:
            raise ValueError("x[1] is None; TransformerConv needs features of both sides")
        query, key, value = (
            linear(features).view(-1, self.heads, self.out_channels)
            for linear, features in ((self.lin_query, x_dst), (self.lin_key, x_src), (self.lin_value, x_src))
        )
        adjacency = self.read_edges(edge_index, edge_attr)
        adjacency.sizes(key.shape[0], query.shape[0])
        message, weights = self._attend(adjacency, query, key, value, isinstance(return_attention_weights, bool))
        out = self.join_heads(message)
        if self.root_weight:
            root = self.lin_skip(x_dst)
            if self.lin_beta is None:
                out = out + root
            else:
                beta = self.lin_beta(torch.cat([out, root, out - root], dim=-1)).sigmoid()
                out = beta * root + (1 - beta) * out
        return out if weights is None else self._with_weights(out, adjacency, weights)

    def _attend(
        self, adjacency: Adjacency, query: Tensor, key: Tensor, value: Tensor, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        edge_index, attr = adjacency.edge_index, adjacency.attr
        if self.lin_edge is not None and attr is None:
            raise ValueError(f"edge_attr is None; the layer has edge_dim={self.edge_dim}, so it must be [E, edge_dim]")
        if self.lin_edge is None and attr is not None:
            raise ValueError("edge_attr was given, but the layer has edge_dim=None")
        if self.lin_edge is not None and attr is not None:
            edges = edges_over(edge_index, query.shape[0], key.shape[0])  # checks the ends before they are read
            vectors = self.lin_edge(attr).view(-1, self.heads, self.out_channels)
            key, value = (rows.index_select(0, edges.source) + vectors for rows in (key, value))
            edge_index = keep(edges.edge_index, "incidence", lambda: _incidence(edges))
        dropping = self.training and self.dropout > 0
        out, weights = self.attend_over(edge_index, query, key, value, return_weights and not dropping)
        if return_weights and dropping:
            _, weights = self.attend_over(edge_index, query, key, value, True, dropout=0.0)
        return out, weights

    @staticmethod
    def _with_weights(out: Tensor, adjacency: Adjacency, weights: Tensor) -> Any:
        given = adjacency.given
        return (out, (given, weights)) if isinstance(given, Tensor) else (out, with_values(given, weights))


def _incidence(edges: Edges) -> Tensor:
    """Every edge as a source of its own."""
    return torch.stack([torch.arange(edges.num_edges, device=edges.target.device), edges.target.long()])
