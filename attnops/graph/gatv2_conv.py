"""GATv2: attention that ranks neighbours differently for different nodes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnops.checks import require_number, require_positive
from attnops.graph.adjacency import Adjacency
from attnops.graph.layer import AttentionLayer, Pair, require_channels
from attnops.graph.linear import Linear, glorot
from attnops.graph.scores import GATv2EdgeScore, GATv2Score
from attnops.graph.self_loops import DEFAULT, Fill, by_name, loops_wanted, replace_self_loops


class GATv2Conv(AttentionLayer):
    """torch-geometric's `GATv2Conv` on `attend`: the same arguments, results, parameters and first values.

        logits_ij = aᵀ LeakyReLU(W_r x_i + W_l x_j + W_e e_ij)          j → i an edge
        out_i     = Σ_j softmax_j(logits_ij) W_l x_j  (+ residual) + bias

    Self-loops differ in one case: a pair of two node sets has none. By default they are added within one set (a tensor,
    or the same tensor twice) and not between two, where `add_self_loops=True` is an error. A node that no edge enters
    gets the bias (and the residual) alone.

    Args:
        in_channels: of a node, or (of sources, of targets); -1 reads it off the first input.
        out_channels: C of a head. heads: H.
        concat: heads beside each other (H·C), or their mean (C).
        negative_slope: LeakyReLU's. dropout: rate on the weights, in training.
        add_self_loops: replace self-loops by one loop a node.
        edge_dim: features of an edge. fill_value: those of a loop: a number, a tensor or "mean", "add", "min", "max",
            "mul" over the edges that enter its node.
        bias: whether to add one. share_weights: W_r = W_l. residual: add a linear map of the target's features.
        **kwargs: `flow`, `aggr` and `aggr_kwargs` of `MessagePassing`.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Brody et al. 2022, arXiv:2105.14491; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import GATv2Conv
        >>> x, edge_index = torch.randn(4, 8), torch.tensor([[0, 1, 2], [1, 2, 3]])
        >>> GATv2Conv(8, 16, heads=2)(x, edge_index).shape
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
        share_weights: bool = False,
        residual: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_positive(out_channels=out_channels, heads=heads)
        require_number(dropout=dropout, negative_slope=negative_slope)
        require_channels(in_channels)
        self.in_channels, self.out_channels, self.heads, self.concat = in_channels, out_channels, heads, concat
        self.negative_slope, self.dropout, self.share_weights = negative_slope, dropout, share_weights
        self.add_self_loops, self.fill_value = bool(add_self_loops), fill_value
        self.loops_asked = by_name(add_self_loops)
        self.edge_dim, self.residual = edge_dim, residual
        sources, targets = (in_channels, in_channels) if isinstance(in_channels, int) else in_channels
        total = out_channels * (heads if concat else 1)
        self.lin_l = Linear(sources, heads * out_channels, bias, "glorot")
        self.lin_r = self.lin_l if share_weights else Linear(targets, heads * out_channels, bias, "glorot")
        self.att = nn.Parameter(torch.empty(1, heads, out_channels))
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, heads * out_channels, False, "glorot")
        self.res = Linear(targets, total, False, "glorot") if residual else None
        self.bias = nn.Parameter(torch.empty(total)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        super().reset_parameters()
        for linear in (self.lin_l, self.lin_r, self.lin_edge, self.res):
            if linear is not None:
                linear.reset_parameters()
        glorot(self.att)
        if self.bias is not None:
            nn.init.zeros_(self.bias)

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
            return_attention_weights: True also returns (edge_index, weights `[E, H]`), loops included.
        """
        x_l, x_r, one_set = self.read_pair(x)
        if x_r is None:
            raise ValueError("x[1] is None; GATv2Conv needs features of both sides")
        left = self.lin_l(x_l).view(-1, self.heads, self.out_channels)
        shared = self.share_weights and x_r is x_l
        right = left if shared else self.lin_r(x_r).view(-1, self.heads, self.out_channels)
        used, kept = edge_index, None
        if loops_wanted(self.add_self_loops, self.loops_asked, one_set):
            loops = replace_self_loops(edge_index, edge_attr, self.fill_value, left.shape[0], self.edge_dim)
            used, edge_attr, kept = loops
        adjacency = self.read_edges(used, edge_attr)
        adjacency.sizes(left.shape[0], right.shape[0])
        out, weights = self._attend(adjacency, right, left, kept, bool(return_attention_weights))
        out = self.join_heads(out)
        if self.res is not None:
            out = out + self.res(x_r)
        if self.bias is not None:
            out = out + self.bias
        return out if weights is None else self.with_weights(out, adjacency, weights, edge_index)

    def _attend(
        self, adjacency: Adjacency, query: Tensor, key: Tensor, kept: Tensor | None, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        score, projected = GATv2Score(self.att[0], self.negative_slope), None
        if adjacency.attr is not None:
            if self.lin_edge is None:
                raise ValueError("edge_attr was given, but the layer has edge_dim=None")
            score, projected = GATv2EdgeScore(self.att[0], self.negative_slope), self.lin_edge(adjacency.attr)
        return self.attend_over(
            adjacency.edge_index, query, key, key, return_weights, score=score, projected=projected, kept=kept
        )
