"""All relations of a heterogeneous graph as one edge list over concatenated node types."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnops.graph.adjacency import Flow, check_edge_attr, is_sparse, plain, read_adjacency, read_matrix
from attnops.graph.hetero_metadata import Relation
from attnops.patterns import Edges


class RelationEdges(NamedTuple):
    """The edges of all relations, one relation after the other."""

    edge_index: Tensor  # [2, E], rows of concatenated source types above rows of concatenated target types
    relation: Tensor  # [E], the relation's place in the list
    counts: dict[Relation, int]  # edges of each relation


def join_relations(
    edge_types: Sequence[Relation],
    edge_index_dict: Mapping[Relation, Any],
    sizes: Mapping[str, int],
    source_starts: Mapping[str, int],
    target_starts: Mapping[str, int],
    flow: Flow = "source_to_target",
) -> RelationEdges:
    """Check the edges of every relation, shift them to the rows of their types, and join them.

    Args:
        sizes: nodes of each type. source_starts, target_starts: the rows where the nodes of each type begin.
        flow: "target_to_source" swaps the two rows of every `edge_index`.

    Raises:
        ValueError, TypeError: an unknown relation, an index out of range within its own type.
    """
    check_relations("edge_index_dict", edge_index_dict, edge_types)
    blocks, types = [], []
    counts = dict.fromkeys(edge_types, 0)
    device = next((_device(edge_index) for edge_index in edge_index_dict.values()), None)
    for place, relation in enumerate(edge_types):
        if relation not in edge_index_dict:
            continue
        kind, _, target_kind = relation
        try:
            adjacency = read_adjacency(edge_index_dict[relation], None, None, flow)
            adjacency.sizes(sizes[kind], sizes[target_kind])
            edges = Edges(adjacency.edge_index, sizes[target_kind], sizes[kind])
        except (ValueError, TypeError) as error:
            raise type(error)(f"of the relation {relation}: {error}") from error
        counts[relation] = edges.num_edges
        source, target = edges.source.long() + source_starts[kind], edges.target.long() + target_starts[target_kind]
        blocks.append(torch.stack([source, target]))
        types.append(torch.full((edges.num_edges,), place, dtype=torch.long, device=edges.edge_index.device))
    edge_index = torch.cat(blocks, dim=1) if blocks else torch.zeros(2, 0, dtype=torch.long, device=device)
    return RelationEdges(edge_index, torch.cat(types) if types else edge_index[0], counts)


def first_rows(kinds: Sequence[str], sizes: Mapping[str, int]) -> dict[str, int]:
    """The row where the nodes of each type begin, types one after the other."""
    starts, row = {}, 0
    for kind in kinds:
        starts[kind], row = row, row + sizes[kind]
    return starts


def tensors_of(edge_index_dict: Mapping[Relation, Any]) -> list[Any]:
    """The tensors that hold the edges, which is what a joined list is kept with."""
    return [plain(edge_index) for edge_index in edge_index_dict.values()]


def read_edge_attr(
    edge_attr_dict: Mapping[Relation, Tensor] | None,
    edge_index_dict: Mapping[Relation, Any],
    edge_types: Sequence[Relation],
    counts: Mapping[Relation, int],
) -> dict[Relation, Tensor]:
    """Edge features `[E_r, F_r]` of those relations that have any: given, or the values of a sparse matrix."""
    check_relations("edge_attr_dict", edge_attr_dict or {}, edge_types)
    attr = {}
    for relation in edge_types:
        features = (edge_attr_dict or {}).get(relation)
        if features is None and is_sparse(edge_index_dict.get(relation)):
            values = read_matrix(edge_index_dict[relation])[2]
            features = values if values is not None and values.ndim > 1 else None
        if features is None:
            continue
        try:
            check_edge_attr(features, counts[relation], None)
        except (ValueError, TypeError) as error:
            raise type(error)(f"of the relation {relation}: {error}") from error
        attr[relation] = features.unsqueeze(-1) if features.ndim == 1 else features
    return attr


def join_edge_data(
    edge_data: Mapping[str, Mapping[Relation, Tensor]] | None,
    edge_types: Sequence[Relation],
    counts: Mapping[Relation, int],
) -> dict[str, Tensor]:
    """Data of all relations' edges by name, `[E]` or `[E, F]`."""
    return {name: _join_data(name, values, edge_types, counts) for name, values in (edge_data or {}).items()}


def _join_data(
    name: str, values: Mapping[Relation, Tensor], edge_types: Sequence[Relation], counts: Mapping[Relation, int]
) -> Tensor:
    """One datum of all relations' edges; a `prior` that is not given is 1."""
    if name in ("type", "projected"):
        raise ValueError(f"edge_data holds {name!r}, which the layer itself sets; name yours otherwise")
    check_relations(f"edge_data[{name!r}]", values, edge_types)
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
    sizes: Mapping[str, int],
    device: torch.device,
) -> dict[str, Tensor]:
    """Coords of all nodes, types one after the other: `type`, its place in the list, and every datum given."""
    coords = {"type": torch.cat([torch.full((sizes[kind],), t, device=device) for t, kind in enumerate(node_types)])}
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
        for kind in node_types:
            if kind not in values:
                if sizes[kind]:
                    raise ValueError(f"node_data[{name!r}] lacks {kind!r}, which has {sizes[kind]} nodes")
                continue
            parts.append(values[kind])
        coords[name] = torch.cat(parts) if parts else torch.zeros(0, device=device)
    return coords


def check_relations(argument: str, given: Mapping[Relation, Any], edge_types: Sequence[Relation]) -> None:
    """Raise `ValueError` where a dict by relation holds one that the metadata lack."""
    for relation in given:
        if relation not in edge_types:
            known = ", ".join(map(str, edge_types)) or "none"
            raise ValueError(f"{argument} holds the relation {relation}; the metadata have {known}")


def _device(edge_index: Any) -> torch.device | None:
    return edge_index.device if isinstance(edge_index, Tensor) else None
