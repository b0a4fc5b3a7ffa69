"""RGAT: attention over typed edges, each relation with a map of its own."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.checks import require_number, require_positive
from attnops.graph.hetero_metadata import one_of
from attnops.graph.layer import AttentionLayer
from attnops.graph.linear import Linear, glorot
from attnops.graph.relation_rows import map_rows, sum_of_rows
from attnops.graph.typed_edges import TypedEdges, typed_edges
from attnops.operator import attend
from attnops.patterns import Edges
from attnops.states import AttentionOutput

MODS = ("additive", "scaled", "f-additive", "f-scaled")


class RGATConv(AttentionLayer):
    """torch-geometric's `RGATConv` on `attend`: the same arguments, results, parameters and first values.

        q_i = W_r x_i Q,  k_j = W_r x_j K          j → i an edge of relation r
        logits_ij = LeakyReLU(q_i + k_j + W_e e_ij E)   or, multiplicative, one a dimension:   q_i k_j (W_e e_ij E)
        out_i     = Σ_j softmax_j(logits_ij) W_r x_j  (changed by `mod`) + bias

    Softmax and sum run on the operator, with the logits as a bias of the edges; in the multiplicative mode the `dim`
    softmaxes of a head share its values, as grouped heads do. What `mod` adds is no attention: with S = Σ_j W_r x_j,
    "additive" adds w ⊙ S, "f-additive" S (over edges whose weight is not 0); "scaled" multiplies by ψ of the in-degree,
    "f-scaled" by the in-degree.

    One difference: `l2` starts at 1/out_channels, as theirs means it to; theirs leaves it uninitialised.

    Args:
        in_channels: of a node. out_channels: C of a head. num_relations: R.
        num_bases: W_r as a combination of that many matrices. num_blocks: W_r of that many blocks on its diagonal.
        mod: None, "additive", "scaled", "f-additive" or "f-scaled", which preserve cardinality.
        attention_mechanism: "across-relation", one softmax over all relations, or "within-relation", one for each.
        attention_mode: "additive-self-attention" or "multiplicative-self-attention".
        dim: softmaxes a head of the latter. heads: H. concat: heads beside each other (H·dim·C), or their
            mean (dim·C).
        negative_slope: LeakyReLU's. dropout: rate on the weights, in training. edge_dim: features of an edge.
        bias: whether to add one. **kwargs: `flow`, `aggr` and `aggr_kwargs` of `MessagePassing`.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Busbridge et al. 2019, arXiv:1904.05811; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import RGATConv
        >>> x, edge_index, edge_type = torch.randn(4, 8), torch.tensor([[0, 1, 2], [1, 2, 3]]), torch.tensor([0, 1, 0])
        >>> RGATConv(8, 16, num_relations=2, heads=2)(x, edge_index, edge_type).shape
        torch.Size([4, 32])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        num_relations: int,
        num_bases: int | None = None,
        num_blocks: int | None = None,
        mod: str | None = None,
        attention_mechanism: str = "across-relation",
        attention_mode: str = "additive-self-attention",
        heads: int = 1,
        dim: int = 1,
        concat: bool = True,
        negative_slope: float = 0.2,
        dropout: float = 0.0,
        edge_dim: int | None = None,
        bias: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(kwargs)
        require_positive(in_channels=in_channels, out_channels=out_channels, num_relations=num_relations, heads=heads)
        require_positive(dim=dim, edge_dim=1 if edge_dim is None else edge_dim)
        require_number(dropout=dropout, negative_slope=negative_slope)
        one_of("attention_mechanism", attention_mechanism, ("within-relation", "across-relation"))
        one_of("attention_mode", attention_mode, ("additive-self-attention", "multiplicative-self-attention"))
        if attention_mode == "additive-self-attention" and dim > 1:
            raise ValueError(f"dim is {dim}; with attention_mode='additive-self-attention' it must be 1")
        if mod is not None:
            one_of("mod", mod, MODS)
        if dropout > 0 and mod is not None:
            raise ValueError(f"mod is {mod!r} beside dropout = {dropout}; with dropout it must be None")
        if num_bases is not None and num_blocks is not None:
            raise ValueError("num_bases and num_blocks were both given; at most one may be")
        self.in_channels, self.out_channels, self.num_relations = in_channels, out_channels, num_relations
        self.num_bases, self.num_blocks, self.mod, self.edge_dim = num_bases, num_blocks, mod, edge_dim
        self.attention_mechanism, self.attention_mode = attention_mechanism, attention_mode
        self.heads, self.dim, self.concat = heads, dim, concat
        self.negative_slope, self.dropout = negative_slope, dropout
        width, softmaxes = heads * out_channels, heads * dim
        self.q = nn.Parameter(torch.empty(width, softmaxes))
        self.k = nn.Parameter(torch.empty(width, softmaxes))
        self.bias = nn.Parameter(torch.empty(dim * out_channels * (heads if concat else 1))) if bias else None
        self.lin_edge = None if edge_dim is None else Linear(edge_dim, width, False, "glorot")
        self.e = None if edge_dim is None else nn.Parameter(torch.empty(width, softmaxes))
        if num_bases is not None:
            self.att = nn.Parameter(torch.empty(num_relations, num_bases))
            self.basis = nn.Parameter(torch.empty(num_bases, in_channels, width))
        elif num_blocks is not None:
            if num_blocks < 1 or in_channels % num_blocks or width % num_blocks:
                raise ValueError(
                    f"num_blocks is {num_blocks}; it must divide in_channels = {in_channels} and heads · out_channels "
                    f"= {width}"
                )
            self.weight = nn.Parameter(
                torch.empty(num_relations, num_blocks, in_channels // num_blocks, width // num_blocks)
            )
        else:
            self.weight = nn.Parameter(torch.empty(num_relations, in_channels, width))
        self.w = nn.Parameter(torch.ones(out_channels))
        self.l1 = nn.Parameter(torch.empty(1, out_channels))
        self.b1 = nn.Parameter(torch.empty(1, out_channels))
        self.l2 = nn.Parameter(torch.empty(out_channels, out_channels))
        self.b2 = nn.Parameter(torch.empty(1, out_channels))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        super().reset_parameters()
        for matrix in (self.weight,) if self.num_bases is None else (self.basis, self.att):
            glorot(matrix)
        glorot(self.q)
        glorot(self.k)
        for parameter, value in ((self.l1, 1.0), (self.b1, 0.0), (self.l2, 1 / self.out_channels), (self.b2, 0.0)):
            nn.init.constant_(parameter, value)
        if self.bias is not None:
            nn.init.zeros_(self.bias)
        if self.lin_edge is not None and self.e is not None:
            glorot(self.lin_edge.weight)
            glorot(self.e)

    def forward(
        self,
        x: Tensor | tuple[Tensor, Tensor],
        edge_index: Any,
        edge_type: Tensor | None = None,
        edge_attr: Tensor | None = None,
        size: tuple[int, int] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Node features `[N, F]` or a pair of them to `[N, H·dim·C]`; see the class.

        Args:
            x: `[N, F]`, or (sources, targets).
            edge_index: `[2, E]`, an `EdgeIndex`, or the transposed adjacency as a sparse matrix.
            edge_type: integer `[E]`, from 0 to R - 1; None where a sparse `edge_index` holds it as values.
            edge_attr: `[E, edge_dim]`.
            size: (sources, targets), how many there are.
            return_attention_weights: True or False also returns (edge_index, weights `[E, H·dim]` before dropout).
        """
        x_src, x_dst, _ = self.read_pair(x)
        if x_dst is None:
            raise ValueError("x[1] is None; RGATConv needs features of both sides")
        if size is not None and tuple(size) != (x_src.shape[0], x_dst.shape[0]):
            raise ValueError(f"size is {tuple(size)}; x has {x_src.shape[0]} sources and {x_dst.shape[0]} targets")
        adjacency = self.read_edges(edge_index, edge_attr)
        adjacency.sizes(x_src.shape[0], x_dst.shape[0])
        if adjacency.attr is not None and self.lin_edge is None:
            raise ValueError("edge_attr was given, but the layer has edge_dim=None")
        within = self.attention_mechanism == "within-relation"
        graph = typed_edges(adjacency, edge_type, self.num_relations, x_dst.shape[0], x_src.shape[0], within)
        value, logits = self._score(x_src, x_dst, graph, adjacency.attr)
        wants_weights = isinstance(return_attention_weights, bool)
        out, weights = self._attend(value, logits, graph, wants_weights)
        out = (
            out.flatten(1)
            if self.concat
            else out.view(-1, self.heads, self.dim, self.out_channels).mean(dim=1).flatten(1)
        )
        if self.bias is not None:
            out = out + self.bias
        return out if weights is None else self.with_weights(out, adjacency, weights, edge_index)

    def _weights(self) -> Tensor:
        """W of every relation in its blocks, `[R, blocks, in / blocks, H·C / blocks]`."""
        if self.num_bases is None:
            return self.weight if self.num_blocks is not None else self.weight.unsqueeze(1)
        weight = self.att @ self.basis.flatten(1)
        return weight.view(self.num_relations, 1, self.basis.shape[1], -1)

    def _score(self, x_src: Tensor, x_dst: Tensor, graph: TypedEdges, attr: Tensor | None) -> tuple[Tensor, Tensor]:
        """W_r x_j of every row of sources, `[rows, H, C]`, and the logits of the edges, `[E, H·dim]`."""
        weight = self._weights()
        mapped = map_rows(x_src, weight, graph.sources).transpose(0, 1).flatten(1)
        # W_r Q first: of targets nothing else is needed
        to_query = torch.matmul(weight, self.q.view(weight.shape[1], weight.shape[3], -1)).flatten(1, 2).unsqueeze(1)
        query = F.embedding(graph.targets.row, map_rows(x_dst, to_query, graph.targets).squeeze(0))
        key = F.embedding(graph.sources.row, mapped @ self.k)
        term = None
        if attr is not None and self.lin_edge is not None and self.e is not None:
            self.lin_edge.materialize(attr.shape[1])
            term = attr @ (self.lin_edge.weight.t() @ self.e)
        if self.attention_mode == "additive-self-attention":
            logits = F.leaky_relu(query + key if term is None else query + key + term, self.negative_slope)
        else:
            logits = query * key if term is None else query * key * term
        return mapped.view(-1, self.heads, self.out_channels), logits

    def _attend(
        self, value: Tensor, logits: Tensor, graph: TypedEdges, return_weights: bool
    ) -> tuple[Tensor, Tensor | None]:
        """The rows of targets `[N, H·dim, C]`, and the weights `[E, H·dim]` before dropout where asked for."""
        one_by_one = self.watched or self.aggr_module is not None
        dropout = self.dropout if self.training else 0.0
        edges = graph.edges if graph.within is None else graph.within
        sees_weights = return_weights or one_by_one or self.mod == "f-additive"
        out, weights = self._sum(edges, value, logits, sees_weights and dropout == 0, dropout)
        if sees_weights and dropout > 0:
            _, weights = self._sum(edges, value, logits, True, 0.0)
        if one_by_one:
            assert weights is not None
            kept_weights = F.dropout(weights, dropout) if dropout > 0 else weights
            return self._one_by_one(value, kept_weights, graph), weights if return_weights else None
        if graph.within is not None:
            out = sum_of_rows(out, graph.targets, graph.edges.num_queries)
        out = self._modified(out, value, weights, graph)
        return self.averaged(out, graph.edges), weights if return_weights else None

    def _sum(
        self, edges: Edges, value: Tensor, logits: Tensor, return_weights: bool, dropout: float
    ) -> tuple[Tensor, Tensor | None]:
        """Σ_j softmax_j(logits) v_j, `[Nq, H·dim, C]`: the logits are a bias, the vectors have nothing to say."""
        softmaxes = logits.shape[1]
        result = attend(
            value.new_zeros(softmaxes, edges.num_queries, 1),
            value.new_zeros(self.heads, edges.num_keys, 1),
            value.transpose(0, 1),
            pattern=edges,
            bias=logits.t(),
            dropout=dropout,
            return_weights=return_weights,
        )
        if isinstance(result, AttentionOutput):
            assert result.weights is not None
            return result.out.transpose(0, 1), result.weights.t().contiguous()
        return result.transpose(0, 1), None

    def _modified(self, out: Tensor, value: Tensor, weights: Tensor | None, graph: TypedEdges) -> Tensor:
        """What `mod` makes of the sums."""
        if self.mod in ("scaled", "f-scaled"):
            return out * self._degree(graph, out).unsqueeze(1)
        if self.mod == "additive":
            return out + self.w * self._plain_sum(value, graph, None)
        if self.mod == "f-additive":
            assert weights is not None
            return out + self._plain_sum(value, graph, weights.detach() > 0)
        return out

    def _degree(self, graph: TypedEdges, like: Tensor) -> Tensor:
        """The in-degree of every target, or ψ of it, `[N, C]` or `[N, 1]`."""
        target = graph.edges.target.long()
        degree = (
            like.new_zeros(graph.edges.num_queries).index_add(0, target, like.new_ones(target.shape[0])).unsqueeze(1)
        )
        return degree if self.mod == "f-scaled" else (degree @ self.l1 + self.b1).relu() @ self.l2 + self.b2

    def _plain_sum(self, value: Tensor, graph: TypedEdges, kept: Tensor | None) -> Tensor:
        """Σ_j W_r x_j over the edges that are kept: the mean under equal logits times their number."""
        target, count = graph.edges.target.long(), graph.edges.num_queries
        if kept is None:
            kept = torch.ones(target.shape[0], self.heads * self.dim, dtype=torch.bool, device=target.device)
        mean, _ = self._sum(graph.edges, value, torch.where(kept, 0.0, float("-inf")).to(value.dtype), False, 0.0)
        number = value.new_zeros(count, kept.shape[1]).index_add(0, target, kept.to(value.dtype))
        return mean * number.unsqueeze(-1)

    def _one_by_one(self, value: Tensor, weights: Tensor, graph: TypedEdges) -> Tensor:
        """The same with every message made, for explainers and for other aggregations."""
        edges, target = graph.edges, graph.edges.target.long()
        plain = value.repeat_interleave(self.dim, dim=1)
        if self.mod == "f-additive":
            weights = torch.where(weights > 0, weights + 1, weights)
        messages = self.make_messages(
            weights, plain.new_zeros(edges.num_queries, 1), plain, plain, edges.source, target
        )
        if self.mod in ("scaled", "f-scaled"):
            messages = messages * self._degree(graph, value)[target].unsqueeze(1)
        if self.mod == "additive":
            messages = messages + self.w * plain[edges.source]
        return self.aggregated(messages, edges)
