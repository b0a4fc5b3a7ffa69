"""The rows that the relations of a heterogeneous graph join: which node is behind each query and each key."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnops.graph.edge_cache import edges_over
from attnops.graph.hetero_edges import RelationEdges, first_rows, join_relations
from attnops.graph.hetero_metadata import Relation
from attnops.graph.relation_rows import RelationRows, relation_rows
from attnops.patterns import Edges

SOURCE, TARGET = 0, 2  # of a relation


class Schema(NamedTuple):
    """What of a layer decides the rows."""

    node_types: Sequence[str]
    edge_types: Sequence[Relation]
    sending: Sequence[str]
    receiving: Sequence[str]
    keys_by_relation: bool
    softmax_by_relation: bool


class HeteroGraph(NamedTuple):
    """What is read off the edges of all relations."""

    edges: Edges  # rows of keys to rows of queries
    relation: Tensor  # [E]
    counts: dict[Relation, int]
    keys: dict[str, RelationRows] | None  # by type that sends, where each relation has keys of its own
    queries: dict[str, RelationRows] | None  # by type that receives, where each relation has a softmax of its own
    node_of_key: Tensor  # the row of each, among all nodes
    node_of_query: Tensor


def hetero_graph(schema: Schema, edge_index_dict: Mapping[Relation, Any], sizes: Mapping[str, int]) -> HeteroGraph:
    """Check the edges of every relation and join them into one list.

    Raises:
        ValueError, TypeError: an unknown relation, an index out of range within its own type.
    """
    of_sources, of_targets = first_rows(schema.sending, sizes), first_rows(schema.receiving, sizes)
    joined = join_relations(schema.edge_types, edge_index_dict, sizes, of_sources, of_targets)
    (source, target), relation = joined.edge_index, joined.relation
    node_of_key = _places(schema.sending, schema.node_types, sizes).to(source.device)
    node_of_query = _places(schema.receiving, schema.node_types, sizes).to(source.device)
    keys = queries = None
    if schema.keys_by_relation:
        keys, source = rows_by_kind(SOURCE, schema.edge_types, joined, of_sources, sizes)
        node_of_key = _behind_rows(node_of_key, keys, of_sources)
    if schema.softmax_by_relation:
        queries, target = rows_by_kind(TARGET, schema.edge_types, joined, of_targets, sizes)
        node_of_query = _behind_rows(node_of_query, queries, of_targets)
    edges = edges_over(torch.stack([source, target]), node_of_query.shape[0], node_of_key.shape[0])
    return HeteroGraph(edges, relation, joined.counts, keys, queries, node_of_key, node_of_query)


def rows_by_kind(
    end: int,
    edge_types: Sequence[Relation],
    joined: RelationEdges,
    starts: Mapping[str, int],
    sizes: Mapping[str, int],
) -> tuple[dict[str, RelationRows], Tensor]:
    """For each type at one end of the edges, its rows by relation, types one after the other; and each edge's row.

    Args:
        end: SOURCE or TARGET. starts: the row where the nodes of each type begin, in the order of the result.
    """
    counts, none = joined.counts, joined.edge_index[0, :0]
    nodes = joined.edge_index[0 if end == SOURCE else 1]
    nodes_of = dict(zip(edge_types, torch.split(nodes, [counts[r] for r in edge_types]), strict=True))
    by_kind, row_of, first = {}, {}, 0
    for kind in starts:
        relations = [relation for relation in edge_types if relation[end] == kind]
        of_kind = torch.cat([none, *(nodes_of[relation] for relation in relations)]) - starts[kind]
        places = [torch.full_like(nodes_of[relation], place) for place, relation in enumerate(relations)]
        rows = by_kind[kind] = relation_rows(torch.cat([none, *places]), of_kind, len(relations), sizes[kind])
        parts = torch.split(rows.row, [counts[relation] for relation in relations])
        row_of.update({relation: part + first for relation, part in zip(relations, parts, strict=True)})
        first += rows.node.shape[0]
    return by_kind, torch.cat([none, *(row_of[relation] for relation in edge_types if relation in row_of)])


def _behind_rows(nodes: Tensor, by_kind: Mapping[str, RelationRows], starts: Mapping[str, int]) -> Tensor:
    """What `nodes` says of the node behind each row."""
    return torch.cat([nodes[:0], *(nodes[starts[kind] + rows.node] for kind, rows in by_kind.items())])


def _places(kinds: Sequence[str], node_types: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    """Where the nodes of some types are among all nodes."""
    starts = first_rows(node_types, sizes)
    return torch.cat([torch.zeros(0, dtype=torch.long), *(starts[k] + torch.arange(sizes[k]) for k in kinds)])
