"""All relations of a heterogeneous graph as one edge list over concatenated node types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnops.graph.adjacency import read_adjacency
from attnops.graph.hetero_metadata import Relation
from attnops.patterns import Edges


class RelationEdges(NamedTuple):
    """The edges of all relations, one relation after the other."""

    edge_index: Tensor  # [2, E], rows of concatenated keys above rows of concatenated queries
    relation: Tensor  # [E], the relation's place in the list
    counts: dict[Relation, int]  # edges of each relation
    attr: dict[Relation, Tensor]  # [E_r, F_r], for those that have features
    data: dict[str, Tensor]  # [E] or [E, F], by name


def join_relations(
    edge_types: Sequence[Relation],
    edge_index_dict: Mapping[Relation, Any],
    edge_attr_dict: Mapping[Relation, Tensor] | None,
    edge_data: Mapping[str, Mapping[Relation, Tensor]] | None,
    sizes: Mapping[str, int],
    query_starts: Sequence[int],
    key_starts: Sequence[int],
) -> RelationEdges:
    """Check the edges of every relation, shift them to their block of rows, and join them.

    Raises:
        ValueError, TypeError: an unknown relation, an index out of range within its own type, data of another length.
    """
    edge_attr_dict, edge_data = edge_attr_dict or {}, edge_data or {}
    _check_relations("edge_index_dict", edge_index_dict, edge_types)
    _check_relations("edge_attr_dict", edge_attr_dict, edge_types)
    blocks, types, attr = [], [], {}
    counts = dict.fromkeys(edge_types, 0)
    device = next((_device(edge_index) for edge_index in edge_index_dict.values()), None)
    for place, relation in enumerate(edge_types):
        if relation not in edge_index_dict:
            continue
        num_sources, num_targets = sizes[relation[0]], sizes[relation[2]]
        try:
            adjacency = read_adjacency(edge_index_dict[relation], edge_attr_dict.get(relation))
            adjacency.sizes(num_sources, num_targets)
            edges = Edges(adjacency.edge_index, num_targets, num_sources)
        except (ValueError, TypeError) as error:
            raise type(error)(f"of the relation {relation}: {error}") from error
        counts[relation] = edges.num_edges
        blocks.append(torch.stack([edges.source.long() + key_starts[place], edges.target.long() + query_starts[place]]))
        types.append(torch.full((edges.num_edges,), place, dtype=torch.long, device=edges.edge_index.device))
        if adjacency.attr is not None:
            attr[relation] = adjacency.attr
    data = {name: _join_data(name, values, edge_types, counts) for name, values in edge_data.items()}
    edge_index = torch.cat(blocks, dim=1) if blocks else torch.zeros(2, 0, dtype=torch.long, device=device)
    types_of_edges = torch.cat(types) if types else edge_index[0]
    return RelationEdges(edge_index, types_of_edges, counts, attr, data)


def first_rows(
    edge_types: Sequence[Relation], end: int, blocks: Sequence[str], sizes: dict[str, int], by_type: bool
) -> list[int]:
    """For each relation, the row where the block of its source (end 0) or target (end 2) type begins."""
    starts, row = [], 0
    for kind in blocks:
        starts.append(row)
        row += sizes[kind]
    return [starts[blocks.index(relation[end])] for relation in edge_types] if by_type else starts


def _join_data(
    name: str, values: Mapping[Relation, Tensor], edge_types: Sequence[Relation], counts: Mapping[Relation, int]
) -> Tensor:
    """One datum of all relations' edges; a `prior` that is not given is 1."""
    if name in ("type", "projected"):
        raise ValueError(f"edge_data holds {name!r}, which the layer itself sets; name yours otherwise")
    _check_relations(f"edge_data[{name!r}]", values, edge_types)
    if not values:
        raise ValueError(f"edge_data[{name!r}] is empty; it must hold a tensor for some relation")
    like = next(iter(values.values()))
    blocks = []
    for relation in edge_types:
        count = counts[relation]
        if relation in values:
            if not isinstance(values[relation], Tensor) or values[relation].shape[:1] != (count,):
                shape = getattr(values[relation], "shape", type(values[relation]).__name__)
                raise ValueError(f"edge_data[{name!r}][{relation}] is {shape}; its first axis must be E = {count}")
            blocks.append(values[relation])
        elif name == "prior":
            blocks.append(like.new_ones(count, *like.shape[1:]))
        elif count:
            raise ValueError(f"edge_data[{name!r}] lacks {relation}, which has {count} edges")
    return torch.cat(blocks)


def read_node_data(
    node_data: Mapping[str, Mapping[str, Tensor]] | None,
    node_types: Sequence[str],
    blocks: Sequence[str],
    sizes: Mapping[str, int],
    device: torch.device,
) -> dict[str, Tensor]:
    """Coords of concatenated rows: `type`, the place of the node type in the list, and every datum given."""
    places = [torch.full((sizes[kind],), node_types.index(kind), device=device) for kind in blocks]
    coords = {"type": torch.cat(places) if places else torch.zeros(0, dtype=torch.long, device=device)}
    for name, values in (node_data or {}).items():
        if name == "type":
            raise ValueError("node_data holds 'type', which the layer itself sets; name yours otherwise")
        for kind, value in values.items():
            if kind not in node_types:
                have = ", ".join(node_types)
                raise ValueError(f"node_data[{name!r}] holds the node type {kind!r}; the metadata have {have}")
            if value.shape != (sizes[kind],):
                shape = list(value.shape)
                raise ValueError(f"node_data[{name!r}][{kind!r}] has shape {shape}; it must be [N = {sizes[kind]}]")
        parts = []
        for kind in blocks:
            if kind not in values:
                if sizes[kind]:
                    raise ValueError(f"node_data[{name!r}] lacks {kind!r}, which has {sizes[kind]} nodes")
                continue
            parts.append(values[kind])
        coords[name] = torch.cat(parts) if parts else torch.zeros(0, device=device)
    return coords


def _check_relations(argument: str, given: Mapping[Relation, Any], edge_types: Sequence[Relation]) -> None:
    for relation in given:
        if relation not in edge_types:
            known = ", ".join(map(str, edge_types)) or "none"
            raise ValueError(f"{argument} holds the relation {relation}; the metadata have {known}")


def _device(edge_index: Any) -> torch.device | None:
    return edge_index.device if isinstance(edge_index, Tensor) else None
