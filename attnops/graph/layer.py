"""What the layers that follow torch-geometric share: reading their arguments, attending over a graph, giving back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnops.graph.adjacency import Adjacency, Flow, is_sparse, read_adjacency, with_values
from attnops.graph.edge_cache import edges_over
from attnops.graph.messages import Messages
from attnops.operator import attend
from attnops.patterns import Edges
from attnops.scores import Score
from attnops.states import AttentionOutput

Pair = tuple[Tensor, Tensor | None]
NOT_HEARD = ("message", "edge_update", "edge_updater", "aggregate", "update", "propagate", "message_and_aggregate")


def require_channels(in_channels: object) -> None:
    """Raise for what is not a width, -1 (to be read off the first input) included, or a pair of widths."""
    pair = in_channels if isinstance(in_channels, tuple | list) else (in_channels, in_channels)
    if len(pair) != 2 or any(isinstance(width, bool) or not isinstance(width, int) or width < -1 for width in pair):
        raise TypeError(f"in_channels is {in_channels!r}; it must be an integer of -1 or more, or a pair of them")


def require_dtype(layer: nn.Module, **arguments: Tensor) -> None:
    """Raise `TypeError` for a tensor of another dtype than the layer's weights have, outside of autocast."""
    for name, tensor in arguments.items():
        dtype = next(layer.parameters(), tensor).dtype
        if tensor.dtype != dtype and not torch.is_autocast_enabled(tensor.device.type):
            raise TypeError(f"{name} is {tensor.dtype}; it must be {dtype}, as the weights of the layer are")


def read_aggregation(aggr: Any, options: dict[str, Any] | None) -> nn.Module:
    """Torch-geometric's aggregation of that name."""
    try:
        from torch_geometric.nn.resolver import aggregation_resolver
    except ImportError:
        raise ValueError(
            f"aggr is {aggr!r}; without torch-geometric installed it must be 'add', 'sum' or 'mean'"
        ) from None
    module: nn.Module = aggregation_resolver(aggr, **(options or {}))
    return module


class AttentionLayer(Messages):
    """Attention of the targets of a graph over their sources, between torch-geometric's arguments and results.

    Args:
        options: of torch-geometric's `MessagePassing`: `flow`; `aggr`, "add" ("sum"), "mean", which divides by the
            number of edges that enter a node, or, with torch-geometric installed, any that it knows, which then sees
            the weighted values edge by edge; `aggr_kwargs` of that.

    Raises:
        TypeError: an option that is none of these; a subclass that defines a step of torch-geometric's message passing.
        ValueError: a value that is not supported.
    """

    in_channels: int | tuple[int, int]
    out_channels: int
    edge_dim: int | None
    heads: int
    concat: bool
    dropout: float

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__()
        for step in NOT_HEARD:
            if hasattr(type(self), step):
                raise TypeError(
                    f"{type(self).__name__} defines {step!r}, which is never called: the layers here run on `attend`; "
                    "subclass torch-geometric's layer instead, or give `attend` a score or a bias"
                )
        options = dict(options)
        aggr, aggr_kwargs = options.pop("aggr", "add"), options.pop("aggr_kwargs", None)
        self.flow: Flow = options.pop("flow", "source_to_target")
        options.pop("decomposed_layers", None)  # how torch-geometric saves memory; it changes no number
        if options:
            raise TypeError(f"{type(self).__name__} has no argument {next(iter(options))!r}")
        if self.flow not in ("source_to_target", "target_to_source"):
            raise ValueError(f"flow is {self.flow!r}; it must be 'source_to_target' or 'target_to_source'")
        self.aggr: str | list[str] = [str(each) for each in aggr] if isinstance(aggr, tuple | list) else str(aggr)
        self.aggr_module = None if aggr in ("add", "sum", "mean") else read_aggregation(aggr, aggr_kwargs)

    def reset_parameters(self) -> None:
        """Draw the parameters of the aggregation anew, where it has any."""
        if self.aggr_module is not None:
            self.aggr_module.reset_parameters()  # type: ignore[operator]

    # ---------------------------------------------------------------------------------------------- arguments
    def read_pair(self, x: Tensor | Pair) -> tuple[Tensor, Tensor | None, bool]:
        """The features of both sides of `edge_index`, and whether they are one set of nodes.

        Raises:
            TypeError: x is no tensor and no pair. ValueError: features that are not `[N, in_channels]`.
        """
        one_set = isinstance(x, Tensor)
        pair = (x, x) if isinstance(x, Tensor) else x
        if not isinstance(pair, tuple | list) or len(pair) != 2:
            raise TypeError(f"x is {type(x).__name__}; it must be a tensor [N, F] or a pair of them")
        channels = self.in_channels if isinstance(self.in_channels, tuple | list) else (self.in_channels,) * 2
        for side, features, wanted in zip(("x[0]", "x[1]"), pair, channels, strict=True):
            name = "x" if one_set else side
            if features is None and side == "x[1]":
                continue
            if not isinstance(features, Tensor):
                raise TypeError(f"{name} is {type(features).__name__}; it must be a tensor [N, F]")
            if features.ndim != 2 or (wanted > 0 and features.shape[1] != wanted):
                raise ValueError(f"{name} has shape {list(features.shape)}; it must be [N, in_channels = {wanted}]")
            require_dtype(self, **{name: features})
        return pair[0], pair[1], one_set or pair[0] is pair[1]

    def read_edges(self, edge_index: Any, edge_attr: Tensor | None) -> Adjacency:
        """`read_adjacency`, with the dtype of features that the layer reads checked."""
        adjacency = read_adjacency(edge_index, edge_attr, self.edge_dim, self.flow)
        if adjacency.attr is not None and self.edge_dim is not None:
            require_dtype(self, edge_attr=adjacency.attr)
        return adjacency

    # ---------------------------------------------------------------------------------------------- attention
    def attend_over(
        self,
        edge_index: Tensor | Edges,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        return_weights: bool,
        *,
        score: Score | None = None,
        projected: Tensor | None = None,
        bias: Tensor | None = None,
        kept: Tensor | None = None,
        dropout: float | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Attention with `[N, H, C]` on both sides: `[num_targets, H, C]`, and the weights `[E, H]` where asked for.

        `projected` are edge data of that name, which the scores of this package read; `bias` is `[H, E]`; an edge that
        is not `kept` is forbidden.
        """
        data = {} if projected is None else {"projected": projected}
        if isinstance(edge_index, Edges):
            edges = edge_index.with_data(**data) if data else edge_index
        else:
            edges = edges_over(edge_index, query.shape[0], key.shape[0], **data)
        if dropout is None:
            dropout = self.dropout if self.training else 0.0
        if kept is not None:
            forbidding = torch.where(kept, 0.0, float("-inf")).to(query.dtype)
            bias = forbidding if bias is None else bias + forbidding
        one_by_one = self.watched or self.aggr_module is not None
        result = attend(
            query.transpose(0, 1),
            key.transpose(0, 1),
            value.transpose(0, 1),
            pattern=edges,
            bias=bias,
            score=score,
            dropout=dropout,
            return_weights=return_weights or one_by_one,
        )
        if not isinstance(result, AttentionOutput):
            return self.averaged(result.transpose(0, 1), edges, kept), None
        assert result.weights is not None
        weights = result.weights.t().contiguous()
        if not one_by_one:
            return self.averaged(result.out.transpose(0, 1), edges, kept), weights
        messages = self.make_messages(weights, query, key, value, edges.source, edges.target)
        return self.aggregated(messages, edges, kept), weights if return_weights else None

    def aggregated(self, messages: Tensor, edges: Edges, kept: Tensor | None = None) -> Tensor:
        """Messages `[E, …]` to one row a target."""
        count, target = edges.num_queries, edges.target.long()
        if self.aggr_module is None:
            summed = messages.new_zeros(count, *messages.shape[1:]).index_add(0, target, messages)
            return self.averaged(summed, edges, kept)
        if kept is not None:  # at one more node, which is then left out
            target = torch.where(kept, target, count)
        rows: Tensor = self.aggr_module(messages, target, dim_size=count + (kept is not None), dim=0)
        return rows[:count]

    def averaged(self, out: Tensor, edges: Edges, kept: Tensor | None = None) -> Tensor:
        """The sum over the edges that enter a node, divided by their number where `aggr` is the mean."""
        if self.aggr != "mean":
            return out
        used = out.new_ones(edges.num_edges) if kept is None else kept.to(out.dtype)
        entering = out.new_zeros(out.shape[0]).index_add(0, edges.target, used)
        return out / entering.clamp(min=1).view(-1, *[1] * (out.ndim - 1))

    def join_heads(self, out: Tensor) -> Tensor:
        """`[N, H, C]` as `[N, H·C]`, or the mean over heads where they are not concatenated."""
        return out.reshape(-1, self.heads * self.out_channels) if self.concat else out.mean(dim=1)

    @staticmethod
    def with_weights(out: Tensor, adjacency: Adjacency, weights: Tensor, edge_index: Any) -> Any:
        """What is returned where weights are asked for, in the form that `edge_index` came in."""
        used = adjacency.given
        if used is not edge_index and isinstance(used, Tensor):
            used = used.clone()  # the caller's own to edit; the layer keeps the other for its next call
        if not is_sparse(used):
            return out, (used, weights)
        matrix = with_values(used, weights)
        return (out, (matrix, weights)) if isinstance(used, Tensor) else (out, matrix)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.in_channels}, {self.out_channels}, heads={self.heads})"
