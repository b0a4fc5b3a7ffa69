"""The schema of a heterogeneous graph: node types, relations, and what a layer keeps for each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import nn

Relation = tuple[str, str, str]
Metadata = tuple[Sequence[str], Sequence[Relation]]


def read_metadata(metadata: Metadata) -> tuple[list[str], list[Relation]]:
    """Node types and relations, sorted by name, checked."""
    if not isinstance(metadata, tuple | list) or len(metadata) != 2:
        raise TypeError(f"metadata is {metadata!r}; it must be (node types, relations), as of HeteroData.metadata()")
    node_types, edge_types = sorted(set(metadata[0])), sorted({tuple(relation) for relation in metadata[1]})
    if not node_types:
        raise ValueError("metadata hold no node type; they must hold at least one")
    for relation in edge_types:
        if len(relation) != 3:
            raise ValueError(f"metadata hold the relation {relation}; it must be (source type, name, target type)")
        for kind in (relation[0], relation[2]):
            if kind not in node_types:
                raise ValueError(f"metadata hold the relation {relation}, but no node type {kind!r}")
    names = [name_of(relation) for relation in edge_types]  # type: ignore[arg-type]
    for name in names:
        if names.count(name) > 1:
            raise ValueError(f"metadata hold two relations whose names join to {name!r}, by which maps are told apart")
    return node_types, edge_types  # type: ignore[return-value]


def edge_dims(edge_dim: int | Mapping[Relation, int] | None, edge_types: Sequence[Relation]) -> dict[Relation, int]:
    """How many features the edges of each relation have, for those that have any."""
    if edge_dim is None:
        return {}
    if isinstance(edge_dim, int):
        return dict.fromkeys(edge_types, edge_dim)
    for relation in edge_dim:
        if relation not in edge_types:
            raise ValueError(f"edge_dim holds {relation}, which is not a relation of the metadata")
    return {relation: edge_dim[relation] for relation in edge_types if relation in edge_dim}


def one_of(name: str, value: str, allowed: Sequence[str]) -> None:
    """Raise `ValueError` where a name is not among those allowed."""
    if value not in allowed:
        raise ValueError(f"{name} is {value!r}; it must be one of {', '.join(map(repr, allowed))}")


def channels_of(in_channels: int | Mapping[str, int], node_types: Sequence[str]) -> dict[str, int]:
    """The input size of every node type.

    Raises:
        ValueError: in_channels does not hold a type.
    """
    if isinstance(in_channels, int):
        return dict.fromkeys(node_types, in_channels)
    for kind in node_types:
        if kind not in in_channels:
            raise ValueError(f"in_channels lacks the node type {kind!r}; it must hold every node type of the metadata")
    return {kind: in_channels[kind] for kind in node_types}


def name_of(kind: str | Relation) -> str:
    """A name that a `ModuleDict` takes: without dots, and not that of one of its own attributes."""
    name = (kind if isinstance(kind, str) else "__".join(kind)).replace(".", "#")
    return f"<{name}>" if hasattr(nn.ModuleDict, name) else name


def parameter_name(kind: str) -> str:
    """The name that torch-geometric's `ParameterDict` holds a key under: without dots, not one of its attributes."""
    return (f"<{kind}>" if hasattr(nn.ParameterDict, kind) else kind).replace(".", "#")
