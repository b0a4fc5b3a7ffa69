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
from attnops.graph.hetero_edges import RelationEdges, first_rows, join_relations, read_node_data
from attnops.graph.hetero_metadata import Metadata, Relation, channels_of, edge_dims, name_of, one_of, read_metadata
from attnops.graph.linear import Linear, glorot
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
        relation_prior: add a learned logit a relation and head, `relation_prior.weight [R, H]`, sorted by name.
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
        relation_prior: bool = True,
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
        self.node_types, self.edge_types = read_metadata(metadata)
        self.out_channels, self.heads, self.concat = out_channels, heads, concat
        self.score, self.softmax, self.keys = score, softmax, keys
        self.dropout, self.negative_slope = dropout, negative_slope
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
        self.relation_prior = EdgeTypePrior(max(1, len(self.edge_types)), heads) if relation_prior else None
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
            node_data: by name, then by type, `[N_t]`: what `bias` reads as a coord, for example `time`.
            return_attention_weights: True also returns the weights, `[E_r, H]` by relation.

        Returns:
            `[N_t, H·C]` (or `[N_t, C]`) for every node type of the metadata; with weights, a pair (outputs, weights).

        Raises:
            ValueError, TypeError: a type or relation that the metadata lack, an index out of range, edge data of
                another length.
        """
        x = self._read_nodes(x_dict)
        sizes = {kind: x[kind].shape[0] if kind in x else 0 for kind in self.node_types}
        key_blocks = self.sending if self.keys == "type" else [relation[0] for relation in self.edge_types]
        query_blocks = self.receiving if self.softmax == "joint" else [relation[2] for relation in self.edge_types]
        joined = join_relations(
            self.edge_types, edge_index_dict, edge_attr_dict, edge_data, sizes,
            first_rows(self.edge_types, 2, query_blocks, sizes, self.softmax == "joint"),
            first_rows(self.edge_types, 0, key_blocks, sizes, self.keys == "type"),
        )  # fmt: skip
        like = next(iter(x.values()), next(self.parameters(), torch.zeros(0)))  # for the dtype and device of nothing
        names = [name_of(kind) for kind in key_blocks] if self.keys == "type" else [name_of(r) for r in self.edge_types]
        query = self._project(self.query, [name_of(kind) for kind in query_blocks], query_blocks, x, like)
        key, value = (self._project(maps, names, key_blocks, x, like) for maps in (self.key, self.value))
        of_queries, of_keys = (
            Coords(**read_node_data(node_data, self.node_types, blocks, sizes, like.device))
            for blocks in (query_blocks, key_blocks)
        )
        out, weights = self._attend(query, key, value, joined, (of_queries, of_keys), bool(return_attention_weights))
        outputs = self._split(out, query_blocks, sizes, x)
        if weights is None:
            return outputs
        parts = torch.split(weights, [joined.counts[relation] for relation in self.edge_types])
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
        return dict(x_dict)

    def _project(
        self, maps: nn.ModuleDict, names: Sequence[str], kinds: Sequence[str], x: dict[str, Tensor], like: Tensor
    ) -> Tensor:
        """The nodes of each block through its map, one below the other: `[N, H, C]`."""
        kind_of = dict(zip(names, kinds, strict=True))  # a type that fills several blocks is mapped once
        mapped = {name: maps[name](x[kind]) for name, kind in kind_of.items() if kind in x}
        blocks = [mapped[name] for name in names if name in mapped]
        rows = torch.cat(blocks) if blocks else like.detach().new_zeros(0, self.heads * self.out_channels)
        return rows.view(-1, self.heads, self.out_channels)

    def _attend(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        joined: RelationEdges,
        coords: tuple[Coords, Coords],
        return_weights: bool,
    ) -> tuple[Tensor, Tensor | None]:
        data = {"type": joined.relation, **joined.data}
        terms: list[Bias] = [term for term in (self.relation_prior, self.type_prior, self.bias) if term is not None]
        if "prior" in data:
            terms.append(LogPrior())
        score = None if self.att is None else GATv2Score(self.att, self.negative_slope)
        edge = self._project_edges(joined, query)
        if edge is not None and self.att is None:
            terms.append(TensorBias(edge.t(), per_edge=True))
        elif edge is not None and self.att is not None:
            score, data["projected"] = GATv2EdgeScore(self.att, self.negative_slope), edge
        bias: Bias | None = None
        for term in terms:
            bias = term if bias is None else bias + term
        result = attend(
            query.transpose(0, 1),
            key.transpose(0, 1),
            value.transpose(0, 1),
            pattern=Edges(joined.edge_index, query.shape[0], key.shape[0], **data),
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

    def _project_edges(self, joined: RelationEdges, like: Tensor) -> Tensor | None:
        """Edge features of every relation through its map, 0 where it has none: `[E, H·C]` or `[E, H]`."""
        if not self.edge_dims:
            if joined.attr:
                relation = next(iter(joined.attr))
                raise ValueError(f"edge_attr_dict holds {relation}, but the layer has no edge_dim for it")
            return None
        width = self.heads * self.out_channels if self.att is not None else self.heads
        blocks = []
        for relation in self.edge_types:
            attr, count = joined.attr.get(relation), joined.counts[relation]
            if relation not in self.edge_dims:
                if attr is not None:
                    raise ValueError(f"edge_attr_dict holds {relation}, but the layer has no edge_dim for it")
                blocks.append(like.new_zeros(count, width))
                continue
            wanted = self.edge_dims[relation]
            if attr is None:
                if count:
                    raise ValueError(f"edge_attr_dict lacks {relation}; it must be [E = {count}, edge_dim = {wanted}]")
                attr = like.new_zeros(0, wanted)
            if attr.shape[1:] != (wanted,):
                raise ValueError(f"edge_attr_dict[{relation}] has shape {list(attr.shape)}; it must be [E, {wanted}]")
            blocks.append(self.edge[name_of(relation)](attr))
        return torch.cat(blocks)

    def _split(
        self, out: Tensor, blocks: Sequence[str], sizes: dict[str, int], x: dict[str, Tensor]
    ) -> dict[str, Tensor]:
        """Rows back to node types; blocks of one type (one a relation) are added."""
        out = out.flatten(1) if self.concat else out.mean(dim=1)
        parts = torch.split(out, [sizes[kind] for kind in blocks]) if blocks else ()
        outputs: dict[str, Tensor] = {}
        for kind, rows in zip(blocks, parts, strict=True):
            outputs[kind] = outputs[kind] + rows if kind in outputs else rows
        for kind in self.node_types:
            if kind not in outputs:
                outputs[kind] = out.new_zeros(sizes[kind], out.shape[1])
            if self.skip is not None and kind in x:
                outputs[kind] = outputs[kind] + self.skip[name_of(kind)](x[kind])
        return {kind: outputs[kind] for kind in self.given_order}

    def extra_repr(self) -> str:
        counts = f"{len(self.node_types)} node types, {len(self.edge_types)} relations"
        return f"{counts}, {self.out_channels}, heads={self.heads}"
