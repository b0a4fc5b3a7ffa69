"""Edges that carry a relation as a number: reading it, and the rows of (relation, node) pairs that they join."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnops.coords import is_concrete
from attnops.graph.adjacency import Adjacency, is_sparse, is_sparse_tensor_class, plain, read_matrix
from attnops.graph.edge_cache import edges_over, keep_together
from attnops.graph.relation_rows import RelationRows, relation_rows
from attnops.patterns import Edges


class TypedEdges(NamedTuple):
    """A typed edge list and its rows."""

    edges: Edges  # rows of sources to targets
    within: Edges | None  # rows of sources to rows of targets, where each relation has a softmax of its own
    sources: RelationRows
    targets: RelationRows


def read_edge_type(edge_index: Any, edge_type: Tensor | None, num_edges: int, num_relations: int) -> Tensor:
    """The relation of every edge, `[E]`: given, or the values of a sparse matrix.

    Raises:
        ValueError, TypeError: none, not integer, of another length, or out of range.
    """
    if edge_type is None and is_sparse(edge_index):
        edge_type = read_matrix(edge_index)[2]
    if not isinstance(edge_type, Tensor):
        raise TypeError(f"edge_type is {type(edge_type).__name__}; it must be an integer tensor [E]")
    edge_type = plain(edge_type)
    if edge_type.is_floating_point() or edge_type.is_complex() or edge_type.dtype == torch.bool:
        raise TypeError(f"edge_type is {edge_type.dtype}; it must be an integer tensor [E]")
    if edge_type.shape != (num_edges,):
        raise ValueError(f"edge_type has shape {list(edge_type.shape)}; it must be [E = {num_edges}]")
    if not is_concrete(edge_type):
        return edge_type.clamp(0, num_relations - 1)
    if num_edges:
        low, high = (int(end) for end in torch.aminmax(edge_type))
        if low < 0 or high >= num_relations:
            wrong = low if low < 0 else high
            raise ValueError(f"edge_type holds {wrong}; it must be from 0 to num_relations - 1 = {num_relations - 1}")
    return edge_type


def typed_edges(
    adjacency: Adjacency,
    edge_type: Tensor | None,
    num_relations: int,
    num_targets: int,
    num_sources: int,
    by_relation: bool,
) -> TypedEdges:
    """Check and join them once for each pair of tensors that holds them, see `edge_cache`.

    Raises:
        ValueError, TypeError: an edge end or a relation out of range, `edge_type` of another form.
    """
    given = adjacency.given

    def make() -> TypedEdges:
        over_nodes = edges_over(adjacency.edge_index, num_targets, num_sources)  # checks the ends
        relation = read_edge_type(given, edge_type, over_nodes.num_edges, num_relations)
        sources = relation_rows(relation, over_nodes.source, num_relations, num_sources)
        targets = relation_rows(relation, over_nodes.target, num_relations, num_targets)
        num_rows = sources.node.shape[0]
        edges = edges_over(torch.stack([sources.row, over_nodes.target.long()]), num_targets, num_rows)
        within = None
        if by_relation:
            within = edges_over(torch.stack([sources.row, targets.row]), targets.node.shape[0], num_rows)
        return TypedEdges(edges, within, sources, targets)

    key = [adjacency.edge_index if not is_sparse(given) else plain(given)]
    if edge_type is not None:
        key.append(edge_type)
    elif is_sparse_tensor_class(given):
        return make()
    return keep_together(key, ("typed", num_relations, num_targets, num_sources, by_relation), make)
