"""HGT: attention over every relation of a heterogeneous graph, with keys and values mapped by their relation."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.checks import require_positive
from attnops.graph.edge_cache import edges_over, keep_together
from attnops.graph.hetero_edges import check_relations, first_rows, join_relations, tensors_of
from attnops.graph.hetero_graph import SOURCE, TARGET, rows_by_kind
from attnops.graph.hetero_metadata import Metadata, Relation, channels_of, parameter_name
from attnops.graph.layer import AttentionLayer, require_channels, require_dtype
from attnops.graph.linear import TypedLinear, kaiming_uniform
from attnops.graph.relation_rows import RelationRows, map_rows
from attnops.patterns import Edges


class HGTConv(AttentionLayer):
    """torch-geometric's `HGTConv` on `attend`: the same arguments, results, parameters and first values.

        logits_ij = μ_r (W_q x_i)·(W_k x_j) A_r / √D          j → i an edge of relation r
        m_i       = Σ_j softmax_j(logits_ij) (W_v x_j) M_r          one softmax over all relations
        out_i     = σ(s) (W_o gelu(m_i) + b_o) + (1 − σ(s)) x_i     (without the skip where widths differ)

    W and s are one a node type, A, M and μ one a relation and head. A node that no edge enters has m_i = 0. Every node
    type of `x_dict` is in the output; theirs leaves out those that only send, whose skip and W_o it holds all the same.

    Args:
        in_channels: features of a node, or a dict by type; -1 reads them off the first input.
        out_channels: of a node, H·D. metadata: (node types, relations), as `HeteroData.metadata()`. heads: H.
        **kwargs: `flow`; "target_to_source" sends by every relation from its targets to its sources.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Hu et al. 2020, arXiv:2003.01332; interface: torch-geometric 2.8.

    Example:
        >>> import torch
        >>> from attnops.graph import HGTConv
        >>> writes = ("author", "writes", "paper")
        >>> layer = HGTConv({"author": 5, "paper": 8}, 16, (["author", "paper"], [writes]), heads=2)
        >>> x_dict = {"author": torch.randn(3, 5), "paper": torch.randn(2, 8)}
        >>> out = layer(x_dict, {writes: torch.tensor([[0, 1, 2], [0, 0, 1]])})
        >>> {node_type: tuple(features.shape) for node_type, features in out.items()}
        {'author': (3, 16), 'paper': (2, 16)}
    """

    def __init__(
        self,
        in_channels: int | dict[str, int],
        out_channels: int,
        metadata: Metadata,
        heads: int = 1,
        **kwargs: Any,
    ) -> None:
        if "aggr" in kwargs:
            raise TypeError("HGTConv has no argument 'aggr'")
        super().__init__(kwargs)
        for channels in in_channels.values() if isinstance(in_channels, dict) else (in_channels,):
            require_channels(channels)
        require_positive(out_channels=out_channels, heads=heads)
        if out_channels % heads:
            raise ValueError(f"out_channels is {out_channels}; it must be a multiple of heads = {heads}")
        self.node_types, self.edge_types = list(metadata[0]), [_triple(relation) for relation in metadata[1]]
        for relation in self.edge_types:
            if self.edge_types.count(relation) > 1:
                raise ValueError(f"metadata hold the relation {relation} twice; they must hold each once")
        by_type = channels_of(in_channels, self.node_types)
        self.in_channels: dict[str, int] = dict(in_channels) if isinstance(in_channels, dict) else by_type  # type: ignore[assignment]
        self.out_channels, self.heads, self.concat, self.dropout = out_channels, heads, True, 0.0
        self.edge_types_map = {relation: place for place, relation in enumerate(self.edge_types)}
        self.dst_node_types = {relation[-1] for relation in self.edge_types}
        self.dim, num_maps = out_channels // heads, heads * len(self.edge_types)
        self.kqv_lin = TypedLinear(self.in_channels, 3 * out_channels)
        self.out_lin = TypedLinear(dict.fromkeys(self.node_types, out_channels), out_channels)
        self.k_rel, self.v_rel = RelationWeight(num_maps, self.dim), RelationWeight(num_maps, self.dim)
        self.skip = nn.ParameterDict({parameter_name(kind): torch.empty(1) for kind in self.node_types})
        self.p_rel = nn.ParameterDict()
        for relation in self.edge_types:  # in their order, where a dict of them would be sorted
            self.p_rel[_name(relation)] = nn.Parameter(torch.empty(1, heads))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew."""
        super().reset_parameters()
        for module in (self.kqv_lin, self.out_lin, self.k_rel, self.v_rel):
            module.reset_parameters()
        for parameter in (*self.skip.values(), *self.p_rel.values()):
            nn.init.ones_(parameter)

    def forward(self, x_dict: Mapping[str, Tensor], edge_index_dict: Mapping[Relation, Any]) -> dict[str, Tensor]:
        """Node features by type to `[N_t, out_channels]` by type; see the class.

        Args:
            x_dict: `[N_t, F_t]` by type; a type left out has no nodes.
            edge_index_dict: by relation, `[2, E_r]` (sources above targets, numbered within their types), `EdgeIndex`
                or sparse, targets by sources; a relation left out has no edges.

        Raises:
            ValueError, TypeError: a type or relation that the metadata lack, an index out of range.
        """
        x = self._read_nodes(x_dict)
        kinds = [kind for kind in self.kqv_lin.kinds if kind in self.node_types]  # in_channels may name others
        sizes = {kind: x[kind].shape[0] if kind in x else 0 for kind in kinds}
        graph = self._read_edges(edge_index_dict, sizes)
        vectors = {kind: rows.split(self.out_channels, dim=1) for kind, rows in self.kqv_lin(x).items()}
        query = torch.cat([query for _, query, _ in vectors.values()]).view(-1, self.heads, self.dim)
        key = self._map({kind: key for kind, (key, _, _) in vectors.items()}, self._key_maps(), graph.rows)
        value = self._map({kind: value for kind, (_, _, value) in vectors.items()}, self._maps(self.v_rel), graph.rows)
        message = F.gelu(self.attend_over(graph.edges, query, key, value, False)[0].flatten(1))
        parts = torch.split(message, [sizes[kind] for kind in vectors])
        out: dict[str, Tensor] = self.out_lin(dict(zip(vectors, parts, strict=True)))
        for kind in out:
            if x[kind].shape[1] == self.out_channels:
                share = self.skip[parameter_name(kind)].sigmoid()
                out[kind] = share * out[kind] + (1 - share) * x[kind]
        return out

    def _map(self, vectors: Mapping[str, Tensor], maps: Tensor, rows: Mapping[str, RelationRows]) -> Tensor:
        """The vectors of the types that send, by each relation's map: `[rows, H, D]`, types one after the other."""
        mapped = [maps.new_zeros(self.heads, 0, self.dim)]
        sender = SOURCE if self.flow == "source_to_target" else TARGET
        for kind, of_kind in rows.items():
            if kind in vectors:
                places = [place for place, relation in enumerate(self.edge_types) if relation[sender] == kind]
                mapped.append(map_rows(vectors[kind], maps[places], of_kind))
        return torch.cat(mapped, dim=1).transpose(0, 1)

    def _maps(self, maps: RelationWeight) -> Tensor:
        """`[R, H, D, D]`."""
        return maps.weight.view(self.heads, len(self.edge_types), self.dim, self.dim).transpose(0, 1)

    def _key_maps(self) -> Tensor:
        """`[R, H, D, D]`, times μ_r."""
        maps = self._maps(self.k_rel)
        if not self.edge_types:
            return maps
        scale = torch.cat([self.p_rel[_name(relation)] for relation in self.edge_types])
        return maps * scale.view(len(self.edge_types), self.heads, 1, 1)

    def _read_nodes(self, x_dict: Mapping[str, Tensor]) -> dict[str, Tensor]:
        for kind, features in x_dict.items():
            if kind not in self.node_types:
                raise ValueError(f"x_dict holds the node type {kind!r}; the metadata have {', '.join(self.node_types)}")
            wanted = self.kqv_lin.channels(kind)
            if not isinstance(features, Tensor) or features.ndim != 2 or (wanted > 0 and features.shape[1] != wanted):
                shape = list(features.shape) if isinstance(features, Tensor) else type(features).__name__
                raise ValueError(f"x_dict[{kind!r}] is {shape}; it must be a tensor [N, in_channels = {wanted}]")
            require_dtype(self, **{f"x_dict[{kind!r}]": features})
        if not x_dict:
            raise ValueError("x_dict is empty; it must hold the features of at least one node type")
        return dict(x_dict)

    def _read_edges(self, edge_index_dict: Mapping[Relation, Any], sizes: dict[str, int]) -> _Graph:
        """All relations as one edge list over node types in the order of `sizes`, kept for the next call on them."""
        check_relations("edge_index_dict", edge_index_dict, self.edge_types)
        name = ("hgt", self.flow, tuple(self.edge_types), tuple(edge_index_dict), tuple(sizes.items()))
        return keep_together(tensors_of(edge_index_dict), name, lambda: self._join(edge_index_dict, sizes))

    def _join(self, edge_index_dict: Mapping[Relation, Any], sizes: dict[str, int]) -> _Graph:
        starts, total = first_rows(list(sizes), sizes), sum(sizes.values())
        edge_types, given = self.edge_types, edge_index_dict
        if self.flow == "target_to_source":  # relations as the messages go
            edge_types = [_turned(relation) for relation in edge_types]
            given = {_turned(relation): edge_index for relation, edge_index in edge_index_dict.items()}
        joined = join_relations(edge_types, given, sizes, starts, starts, self.flow)
        rows, row = rows_by_kind(SOURCE, edge_types, joined, starts, sizes)
        num_rows = sum(of_kind.node.shape[0] for of_kind in rows.values())
        return _Graph(rows, edges_over(torch.stack([row, joined.edge_index[1]]), total, num_rows))

    def __repr__(self) -> str:
        return f"{type(self).__name__}(-1, {self.out_channels}, heads={self.heads})"


class _Graph(NamedTuple):
    rows: dict[str, RelationRows]  # by type that sends
    edges: Edges


class RelationWeight(nn.Module):
    """The square maps of relations and heads, `weight [H·R, D, D]`, head by head."""

    def __init__(self, num_maps: int, dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(num_maps, dim, dim))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the weight anew."""
        kaiming_uniform(self.weight, self.weight.shape[-1])


def _triple(relation: Sequence[str]) -> Relation:
    source, name, target = relation
    return source, name, target


def _turned(relation: Relation) -> Relation:
    source, name, target = relation
    return target, name, source


def _name(relation: Relation) -> str:
    return parameter_name("__".join(relation))
