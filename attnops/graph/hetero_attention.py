"""Attention over all relations of a heterogeneous graph at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from torch import Tensor, nn

from attnops.biases import Bias, EdgeTypePrior, LogPrior, TypePrior
from attnops.biases.base import TensorBias
from attnops.checks import require_number, require_positive
from attnops.coords import Coords
from attnops.graph.edge_cache import keep_together
from attnops.graph.hetero_edges import (
    join_edge_data,
    read_edge_attr,
    read_node_data,
    tensors_of,
)
from attnops.graph.hetero_graph import HeteroGraph, Schema, hetero_graph
from attnops.graph.hetero_metadata import Metadata, Relation, channels_of, edge_dims, name_of, one_of, read_metadata
from attnops.graph.layer import require_dtype
from attnops.graph.linear import Linear, glorot
from attnops.graph.relation_rows import map_rows, spread_to_rows, sum_of_rows
from attnops.graph.scores import GATv2EdgeScore, GATv2Score
from attnops.operator import attend
from attnops.patterns import Edges
from attnops.states import AttentionOutput


class HeteroAttention(nn.Module):
    """Each node attends over its in-edges of every relation, in one softmax over all of them.

        logits_ij = score(W_q x_i, W_k x_j) + prior_r + further priors        j → i an edge of relation r
        out_i     = Σ_j softmax_j(logits_ij) W_v x_j  (+ W_s x_i)

    W_q is one a node type that receives; W_k and W_v are one a node type that sends, or one a relation. All node types
    are one set of queries and one of keys, all relations one edge list with the relation as `edge.type`: one call of
    `attend`, whatever the number of relations.

    A node that no edge enters gets zeros (and its residual). Every node type of the metadata is in the output, with as
    many rows as it has nodes: types that only send, types with no node, relations with no edge. The order of types in
    the metadata and in the dicts changes nothing. No self-loop is added.

    Args:
        metadata: (node types, relations), as `HeteroData.metadata()` gives them; a relation is (source type, name,
            target type).
        in_channels: features of a node, or a dict by type; -1 reads them off the first input.
        out_channels: C, of a head. heads: H.
        concat: heads beside each other (H·C), or their mean (C).
        score: "dot" is q·k/√C, "gatv2" is aᵀ LeakyReLU(q + k) with the parameter `att [H, C]`.
        softmax: "joint" over all in-edges of a node, or "relation": one a relation, the results added.
        keys: whose W_k and W_v are: "type" (of the source) or "relation".
        relation_prior: True adds a learned logit a relation and head, `relation_prior.weight [R, H]`, sorted by name;
            "scale" multiplies the logits by a learned μ_r instead, `relation_scale [R, H]`, as HGT does (with "dot" and
            keys by "relation").
        type_prior: add one a pair of node types, `type_prior.weight [T, T, H]`, types sorted by name.
        edge_dim: features of an edge, one number or a dict by relation (those left out have none). With "gatv2" they
            enter inside the LeakyReLU; with "dot" as a linear bias that starts at 0.
        bias: any further `Bias`; it reads edge data and node data by name, and has `heads` = H if any.
        linear_bias: whether the maps of nodes have an offset. residual: add a linear map of the target's features.
        dropout: rate on the weights, in training. negative_slope: LeakyReLU's.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: one softmax over relations and relation priors: HGT, Hu et al. 2020, arXiv:2003.01332; the additive score:
    Brody et al. 2022, arXiv:2105.14491.

    Example:
        >>> import torch
        >>> from attnops.graph import HeteroAttention
        >>> sees, follows = ("camera", "sees", "person"), ("person", "follows", "person")
        >>> layer = HeteroAttention((["camera", "person"], [sees, follows]), {"camera": 5, "person": 8}, 16, heads=2)
        >>> x_dict = {"camera": torch.randn(2, 5), "person": torch.randn(3, 8)}
        >>> edge_index_dict = {sees: torch.tensor([[0, 1, 1], [0, 1, 2]]), follows: torch.tensor([[0, 0], [1, 2]])}
        >>> prior = {follows: torch.tensor([0.9, 0.1])}                # by edge; 1 where a relation has none
        >>> out = layer(x_dict, edge_index_dict, edge_data={"prior": prior})
        >>> {node_type: tuple(features.shape) for node_type, features in out.items()}
        {'camera': (2, 32), 'person': (3, 32)}
    """

    def __init__(
        self,
        metadata: Metadata,
        in_channels: int | Mapping[str, int],
        out_channels: int,
        heads: int = 1,
        *,
        concat: bool = True,
        score: Literal["dot", "gatv2"] = "dot",
        softmax: Literal["joint", "relation"] = "joint",
        keys: Literal["type", "relation"] = "type",
        relation_prior: bool | Literal["scale"] = True,
        type_prior: bool = False,
        edge_dim: int | Mapping[Relation, int] | None = None,
        bias: Bias | None = None,
        linear_bias: bool = True,
        residual: bool = False,
        dropout: float = 0.0,
        negative_slope: float = 0.2,
    ) -> None:
        super().__init__()
        require_positive(out_channels=out_channels, heads=heads)
        require_number(dropout=dropout, negative_slope=negative_slope)
        one_of("score", score, ("dot", "gatv2"))
        one_of("softmax", softmax, ("joint", "relation"))
        one_of("keys", keys, ("type", "relation"))
        if relation_prior == "scale" and (score != "dot" or keys != "relation"):
            raise ValueError("relation_prior is 'scale', which needs score='dot' and keys='relation'")
        self.node_types, self.edge_types = read_metadata(metadata)
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.score, self.softmax, self.keys = score, softmax, keys
        self.dropout, self.negative_slope, self.linear_bias = dropout, negative_slope, linear_bias
        self.given_order = list(metadata[0])
        self.receiving = [kind for kind in self.node_types if any(kind == relation[2] for relation in self.edge_types)]
        self.sending = [kind for kind in self.node_types if any(kind == relation[0] for relation in self.edge_types)]
        self.channels = channels_of(in_channels, self.node_types)
        width = heads * out_channels
        of_keys = {name_of(kind): kind for kind in self.sending}
        if keys == "relation":
            of_keys = {name_of(relation): relation[0] for relation in self.edge_types}

        def maps(names: Mapping[str, str], size: int) -> nn.ModuleDict:
            return nn.ModuleDict({n: Linear(self.channels[kind], size, linear_bias) for n, kind in names.items()})

        self.query = maps({name_of(kind): kind for kind in self.receiving}, width)
        self.key, self.value = maps(of_keys, width), maps(of_keys, width)
        total = width if concat else out_channels
        self.skip = maps({name_of(kind): kind for kind in self.node_types}, total) if residual else None
        self.att = nn.Parameter(torch.empty(heads, out_channels)) if score == "gatv2" else None
        num_relations, scaled = len(self.edge_types), relation_prior == "scale"
        self.relation_prior = EdgeTypePrior(max(1, num_relations), heads) if relation_prior and not scaled else None
        self.relation_scale = nn.Parameter(torch.ones(num_relations, heads)) if scaled else None
        self.type_prior = TypePrior(len(self.node_types), len(self.node_types), heads) if type_prior else None
        self.bias = bias
        self.edge_dims = edge_dims(edge_dim, self.edge_types)
        self.edge = nn.ModuleDict(
            {
                name_of(relation): Linear(size, width if score == "gatv2" else heads, False, "glorot")
                for relation, size in self.edge_dims.items()
            }
        )
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew; priors, and edge features as a bias, start at 0."""
        for module in self.modules():
            if isinstance(module, Linear):
                module.reset_parameters()
        if self.att is not None:
            glorot(self.att)
        else:
            for linear in self.edge.values():
                nn.init.zeros_(linear.weight)  # type: ignore[arg-type]
        for prior in (self.relation_prior, self.type_prior):
            if prior is not None:
                nn.init.zeros_(prior.weight)
        if self.relation_scale is not None:
            nn.init.ones_(self.relation_scale)

    def forward(
        self,
        x_dict: Mapping[str, Tensor],
        edge_index_dict: Mapping[Relation, Any],
        edge_attr_dict: Mapping[Relation, Tensor] | None = None,
        *,
        edge_data: Mapping[str, Mapping[Relation, Tensor]] | None = None,
        node_data: Mapping[str, Mapping[str, Tensor]] | None = None,
        return_attention_weights: bool | None = None,
    ) -> Any:
        """Node features by type to node features by type.

        Args:
            x_dict: `[N_t, F_t]` by type; a type left out has no nodes.
            edge_index_dict: by relation, `[2, E_r]` (sources above targets, numbered within their types), `EdgeIndex`
                or sparse, as `GATConv` takes them; a relation left out has no edges.
            edge_attr_dict: `[E_r, edge_dim]` by relation.
            edge_data: by name, then by relation, `[E_r]` or `[E_r, F]`: what `bias` reads as `edge.NAME`. `prior`, 0
                or more, adds its logarithm; a relation without it has 1. Other names must be given for every relation
                with edges.
            node_data: by name, then by type, `[N_t]`: what `bias` reads as a coord, for example `time`; `position` is
                the node's place among all nodes where it is not given.
            return_attention_weights: True also returns the weights, `[E_r, H]` by relation.

        Returns:
            `[N_t, H·C]` (or `[N_t, C]`) for every node type of the metadata; with weights, a pair (outputs, weights).

        Raises:
            ValueError, TypeError: a type or relation that the metadata lack, an index out of range, edge data of
                another length.
        """
        x = self._read_nodes(x_dict)
        sizes = {kind: x[kind].shape[0] if kind in x else 0 for kind in self.node_types}
        like = next(iter(x.values()), next(self.parameters(), torch.zeros(0)))  # for the dtype and device of nothing
        graph = self._read_edges(edge_index_dict, sizes)
        attr = read_edge_attr(edge_attr_dict, edge_index_dict, self.edge_types, graph.counts)
        data = {"type": graph.relation, **join_edge_data(edge_data, self.edge_types, graph.counts)}
        nodes = read_node_data(node_data, self.node_types, sizes, like.device)
        query = self._by_type(self.query, self.receiving, x, like)
        key, value = (self._keys(maps, x, like, graph) for maps in (self.key, self.value))
        if graph.queries is not None:
            of_kinds = torch.split(query, [sizes[kind] for kind in self.receiving])
            spread = [spread_to_rows(q, rows) for q, rows in zip(of_kinds, graph.queries.values(), strict=True)]
            query = torch.cat([query[:0], *spread])
        of_queries, of_keys = (
            Coords(**{"position": rows, **{name: values[rows] for name, values in nodes.items()}})
            for rows in (graph.node_of_query, graph.node_of_key)
        )
        edge = self._project_edges(attr, graph, query)
        out, weights = self._attend(
            query, key, value, edge, graph.edges, data, (of_queries, of_keys), bool(return_attention_weights)
        )
        if graph.queries is not None:
            of_kinds = torch.split(out, [rows.node.shape[0] for rows in graph.queries.values()])
            sums = [
                sum_of_rows(part, rows, sizes[kind])
                for part, (kind, rows) in zip(of_kinds, graph.queries.items(), strict=True)
            ]
            out = torch.cat([out[:0], *sums])
        outputs = self._split(out, sizes, x)
        if weights is None:
            return outputs
        parts = torch.split(weights, [graph.counts[relation] for relation in self.edge_types])
        return outputs, dict(zip(self.edge_types, parts, strict=True))

    # ---------------------------------------------------------------------------------------------- the steps
    def _read_nodes(self, x_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for kind, features in x_dict.items():
            if kind not in self.node_types:
                raise ValueError(f"x_dict holds the node type {kind!r}; the metadata have {', '.join(self.node_types)}")
            if not isinstance(features, Tensor) or features.ndim != 2:
                shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
                raise ValueError(f"x_dict[{kind!r}] is {shape}; it must be a tensor [N, F]")
            wanted = self.channels[kind]
            if wanted > 0 and features.shape[1] != wanted:
                raise ValueError(f"x_dict[{kind!r}] has {features.shape[1]} features; in_channels has {wanted}")
            require_dtype(self, **{f"x_dict[{kind!r}]": features})
        return dict(x_dict)

    def _read_edges(self, edge_index_dict: Mapping[Relation, Any], sizes: dict[str, int]) -> HeteroGraph:
        """All relations as one edge list, kept for the next call on them."""
        schema = Schema(
            self.node_types, self.edge_types, self.sending, self.receiving, self.keys == "relation",
            self.softmax == "relation",
        )  # fmt: skip
        name = ("hetero", repr(schema), tuple(edge_index_dict), tuple(sizes.items()))
        return keep_together(tensors_of(edge_index_dict), name, lambda: hetero_graph(schema, edge_index_dict, sizes))

    def _by_type(self, maps: nn.ModuleDict, kinds: Sequence[str], x: dict[str, Tensor], like: Tensor) -> Tensor:
        """The nodes of each type through its map, types one after the other: `[N, H, C]`."""
        mapped = [maps[name_of(kind)](x[kind]) for kind in kinds if kind in x]
        rows = torch.cat(mapped) if mapped else like.detach().new_zeros(0, self.heads * self.out_channels)
        return rows.view(-1, self.heads, self.out_channels)

    def _keys(self, maps: nn.ModuleDict, x: dict[str, Tensor], like: Tensor, graph: HeteroGraph) -> Tensor:
        """The nodes that send through the map of their type, or of each relation that they send by."""
        if graph.keys is None:
            return self._by_type(maps, self.sending, x, like)
        mapped = []
        for kind, rows in graph.keys.items():
            if kind not in x:
                continue
            linears = [maps[name_of(relation)] for relation in self.edge_types if relation[0] == kind]
            for linear in linears:
                linear.materialize(x[kind].shape[1])  # type: ignore[operator]
            weight = torch.stack([linear.weight.t() for linear in linears])  # type: ignore[operator]
            bias = torch.stack([linear.bias for linear in linears]) if self.linear_bias else None  # type: ignore[misc]
            if maps is self.key and self.relation_scale is not None:
                places = [place for place, relation in enumerate(self.edge_types) if relation[0] == kind]
                scale = self.relation_scale[places[0] : places[-1] + 1].repeat_interleave(self.out_channels, dim=1)
                weight, bias = weight * scale.unsqueeze(1), None if bias is None else bias * scale
            mapped.append(map_rows(x[kind], weight.unsqueeze(1), rows, bias).squeeze(0))
        rows_of_all = torch.cat(mapped) if mapped else like.detach().new_zeros(0, self.heads * self.out_channels)
        return rows_of_all.view(-1, self.heads, self.out_channels)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        edge: Tensor | None,
        edges: Edges,
        data: dict[str, Tensor],
        coords: tuple[Coords, Coords],
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        terms: list[Bias] = [term for term in (self.relation_prior, self.type_prior, self.bias) if term is not None]
        if "prior" in data:
            terms.append(LogPrior())
        score = None if self.att is None else GATv2Score(self.att, self.negative_slope)
        if edge is not None and self.att is None:
            terms.append(TensorBias(edge.t(), per_edge=True))
        elif edge is not None and self.att is not None:
            score, data = GATv2EdgeScore(self.att, self.negative_slope), {**data, "projected": edge}
        bias: Bias | None = None
        for term in terms:
            bias = term if bias is None else bias + term
        result = attend(
            query.transpose(0, 1),
            key.transpose(0, 1),
            value.transpose(0, 1),
            pattern=edges.with_data(**data),
            bias=bias,
            score=score,
            coords=coords,
            dropout=self.dropout if self.training else 0.0,
            return_weights=return_weights,
        )
        if isinstance(result, AttentionOutput):
            assert result.weights is not None
            return result.out.transpose(0, 1), result.weights.t()
        return result.transpose(0, 1), None

    def _project_edges(self, given: dict[Relation, Tensor], graph: HeteroGraph, like: Tensor) -> Tensor | None:
        """Edge features of every relation through its map, 0 where it has none: `[E, H·C]` or `[E, H]`."""
        if not self.edge_dims:
            if given:
                relation = next(iter(given))
                raise ValueError(f"edge_attr_dict holds {relation}, but the layer has no edge_dim for it")
            return None
        width = self.heads * self.out_channels if self.att is not None else self.heads
        blocks = []
        for relation in self.edge_types:
            attr, count = given.get(relation), graph.counts[relation]
            if relation not in self.edge_dims:
                if attr is not None:
                    raise ValueError(f"edge_attr_dict holds {relation}, but the layer has no edge_dim for it")
                blocks.append(like.new_zeros(count, width))
                continue
            wanted = self.edge_dims[relation]
            if attr is None:
                if count:
                    raise ValueError(f"edge_attr_dict lacks {relation}; it must be [E = {count}, edge_dim = {wanted}]")
                attr = self.edge[name_of(relation)].weight.new_zeros(0, wanted)  # type: ignore[operator]
            if attr.shape[1:] != (wanted,):
                raise ValueError(f"edge_attr_dict[{relation}] has shape {list(attr.shape)}; it must be [E, {wanted}]")
            require_dtype(self, **{f"edge_attr_dict[{relation}]": attr})
            blocks.append(self.edge[name_of(relation)](attr))
        return torch.cat(blocks)

    def _split(self, out: Tensor, sizes: dict[str, int], x: dict[str, Tensor]) -> dict[str, Tensor]:
        """Rows back to node types."""
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        parts = torch.split(out, [sizes[kind] for kind in self.receiving]) if self.receiving else ()
        outputs: dict[str, Tensor] = dict(zip(self.receiving, parts, strict=True))
        for kind in self.node_types:
            if kind not in outputs:
                outputs[kind] = out.new_zeros(sizes[kind], out.shape[1])
            if self.skip is not None and kind in x:
                outputs[kind] = outputs[kind] + self.skip[name_of(kind)](x[kind])
        return {kind: outputs[kind] for kind in self.given_order}

    def extra_repr(self) -> str:
        counts = f"{len(self.node_types)} node types, {len(self.edge_types)} relations"
        return f"{counts}, {self.out_channels}, heads={self.heads}"
