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


class Schema(NamedTuple):
    """What of a layer decides the rows."""

    node_types: Sequence[str]
    edge_types: Sequence[Relation]  # sorted, so that those of one source type lie together
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
    queries: RelationRows | None  # where each relation has a softmax of its own
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
        keys, source = _key_rows(schema, joined, of_sources, sizes)
        nodes = [node_of_key[of_sources[kind] + rows.node] for kind, rows in keys.items()]
        node_of_key = torch.cat([node_of_key[:0], *nodes])
    if schema.softmax_by_relation:
        queries = relation_rows(relation, target, len(schema.edge_types), len(node_of_query))
        target, node_of_query = queries.row, node_of_query[queries.node]
    edges = edges_over(torch.stack([source, target]), len(node_of_query), len(node_of_key))
    return HeteroGraph(edges, relation, joined.counts, keys, queries, node_of_key, node_of_query)


def _key_rows(
    schema: Schema, joined: RelationEdges, starts: Mapping[str, int], sizes: Mapping[str, int]
) -> tuple[dict[str, RelationRows], Tensor]:
    """For each type that sends, its rows by relation; and the row of each edge."""
    keys, sources, edge, place, row = {}, [joined.edge_index[0, :0]], 0, 0, 0
    for kind in schema.sending:
        relations = [relation for relation in schema.edge_types if relation[0] == kind]
        count = sum(joined.counts[relation] for relation in relations)
        these = slice(edge, edge + count)
        keys[kind] = relation_rows(
            joined.relation[these] - place, joined.edge_index[0, these] - starts[kind], len(relations), sizes[kind]
        )
        sources.append(keys[kind].row + row)
        edge, place, row = edge + count, place + len(relations), row + len(keys[kind].node)
    return keys, torch.cat(sources)


def _places(kinds: Sequence[str], node_types: Sequence[str], sizes: Mapping[str, int]) -> Tensor:
    """Where the nodes of some types are among all nodes."""
    starts = first_rows(node_types, sizes)
    return torch.cat([torch.zeros(0, dtype=torch.long), *(starts[k] + torch.arange(sizes[k]) for k in kinds)])
