"""GAT: attention over neighbours by a score that is a sum of one term a node."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.checks import require_number, require_positive
from attnops.graph.adjacency import Adjacency
from attnops.graph.layer import AttentionLayer, Pair, require_channels
from attnops.graph.linear import Linear, glorot
from attnops.graph.scores import GATEdgeScore, GATScore
from attnops.graph.self_loops import DEFAULT, Fill, by_name, loops_wanted, replace_self_loops


class GATConv(AttentionLayer):
    """torch-geometric's `GATConv` on `attend`: the same arguments, results, parameters and first values.

        logits_ij = LeakyReLU(a_dst·W x_i + a_src·W x_j + a_edge·W_e e_ij)          j → i an edge
        out_i     = Σ_j softmax_j(logits_ij) W x_j  (+ residual) + bias

    Self-loops differ in one case: a pair of two node sets has none. By default they are added within one set (a tensor,
    or the same tensor twice) and not between two, where `add_self_loops=True` is an error. A node that no edge enters
    gets the bias (and the residual) alone.

    Args:
        in_channels: of a node, or (of sources, of targets), each with a map then; -1 reads it off the first input.
        out_channels: C of a head. heads: H.
        concat: heads beside each other (H·C), or their mean (C).
        negative_slope: LeakyReLU's. dropout: rate on the weights, in training.
        add_self_loops: replace self-loops by one loop a node.
        edge_dim: features of an edge; without it they are not read. fill_value: those of a loop: a number, a tensor or
            "mean", "add", "min", "max", "mul" over the edges that enter its node.
        bias: whether to add one. residual: add a linear map of the target's features.
        **kwargs: `flow`, `aggr` and `aggr_kwargs` of `MessagePassing`.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Veličković et al. 2018, arXiv:1710.10903; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import GATConv
        >>> x, edge_index = torch.randn(4, 8), torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> GATConv(8, 16, heads=2)(x, edge_index).shape
        torch.Size([4, 32])
    """

    def __init__(
        self,
        in_channels: int | tuple[int, int],
        out_channels: int,
        heads: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        add_self_loops: bool = DEFAULT,
        edge_dim: int | None = None,
        fill_value: Fill = "mean",
        bias: bool = True,
        residual: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_positive(out_channels=out_channels, heads=heads)
        require_number(dropout=dropout, negative_slope=negative_slope)
        require_channels(in_channels)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        self.add_self_loops, self.fill_value = bool(add_self_loops), fill_value
        self.loops_asked = by_name(add_self_loops)
        self.edge_dim, self.residual = edge_dim, residual
        width, total = heads * out_channels, out_channels * (heads if concat else 1)
        self.lin = self.lin_src = self.lin_dst = None
        if isinstance(in_channels, int):
            self.lin = Linear(in_channels, width, False, "glorot")
        else:
            self.lin_src = Linear(in_channels[0], width, False, "glorot")
            self.lin_dst = Linear(in_channels[1], width, False, "glorot")
        self.att_src = nn.Parameter(torch.empty(1, heads, out_channels))
        self.att_dst = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, False, "glorot")
        self.att_edge = None if edge_dim is None else nn.Parameter(torch.empty(1, heads, out_channels))
        targets = in_channels if isinstance(in_channels, int) else in_channels[1]
        self.res = Linear(targets, total, False, "glorot") if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        super().reset_parameters()
        for linear in (self.lin, self.lin_src, self.lin_dst, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        for vector in (self.att_src, self.att_dst, self.att_edge):
            if vector is not None:
                glorot(vector)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def forward(
        self,
        x: Tensor | Pair,
        edge_index: Any,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Node features `[N, F]` or a pair of them to `[N, H·C]`; see the class.

        Args:
            x: `[N, F]`, or (sources, targets); targets may be None, who then add nothing to the score.
            edge_index: `[2, E]`, an `EdgeIndex`, or the transposed adjacency as a sparse matrix.
            edge_attr: `[E, edge_dim]`.
            size: (sources, targets), how many there are. Where it and the targets are None, as many as sources.
            return_attention_weights: True also returns (edge_index, weights `[E, H]`), with loops.
        """
        x_src, x_dst, one_set = self.read_pair(x)
        left = self._project(self.lin or self.lin_src, x_src)
        right: Tensor | None = None
        if x_dst is not None:
            right = left if self.lin is not None and x_dst is x_src else self._project(self.lin or self.lin_dst, x_dst)
        used, kept = edge_index, None
        if loops_wanted(self.add_self_loops, self.loops_asked, one_set):
            loops = replace_self_loops(edge_index, edge_attr, self.fill_value, left.shape[0], self.edge_dim)
            used, edge_attr, kept = loops
        adjacency = self.read_edges(used, edge_attr)
        if size is not None:
            check_size(size, left, right)
        if right is None:  # no features, so nothing of theirs in the score
            count = size[1] if size is not None else adjacency.num_targets
            right = left.new_zeros(1, *left.shape[1:]).expand(left.shape[0] if count is None else count, -1, -1)
        adjacency.sizes(left.shape[0], right.shape[0])
        out, weights = self._attend(adjacency, right, left, kept, bool(return_attention_weights))
        out = self.join_heads(out)
        if self.res is not None and x_dst is not None:
            out = out + self.res(x_dst)
        if self.bias is not None:
            out = out + self.bias
        return out if weights is None else self.with_weights(out, adjacency, weights, edge_index)

    def _project(self, linear: Linear | None, x: Tensor) -> Tensor:
        assert linear is not None
        rows: Tensor = linear(x)
        return rows.view(-1, self.heads, self.out_channels)

    def _attend(
        self, adjacency: Adjacency, query: Tensor, key: Tensor, kept: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        of_query, of_key = self.att_dst[0], self.att_src[0]
        if adjacency.attr is None or self.lin_edge is None:
            score, term = GATScore(of_query, of_key, self.negative_slope), None
        else:
            score, term = GATEdgeScore(of_query, of_key, self.negative_slope), self._edge_term(adjacency.attr)
        return self.attend_over(
            adjacency.edge_index, query, key, key, return_weights, score=score, projected=term, kept=kept
        )

    def _edge_term(self, edge_attr: Tensor) -> Tensor:
        """a_edge·W_e e_ij, `[E, H]`, with a_edgeᵀ W_e summed first, so that nothing is `[E, H, C]`."""
        assert self.lin_edge is not None and self.att_edge is not None
        self.lin_edge.materialize(edge_attr.shape[1])
        weight = self.lin_edge.weight.view(self.heads, self.out_channels, -1)
        return F.linear(edge_attr, (weight * self.att_edge.view(self.heads, -1, 1)).sum(1))


def check_size(size: tuple[int, int], left: Tensor, right: Tensor | None) -> None:
    """Raise `ValueError` where `size` is not what the features say."""
    have = (left.shape[0], size[1] if right is None else right.shape[0])
    if tuple(size) != have:
        raise ValueError(f"size is {tuple(size)}; x has {have[0]} sources and {have[1]} targets")
