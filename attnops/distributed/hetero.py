"""Graphs of several node types, each type divided over ranks; layers see what a rank holds as a graph of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from attnops.checks import require_count, require_positive
from attnops.distributed.agreement import agree
from attnops.distributed.exchange import exchange_each, group_refusal, needs_gradient, refuse
from attnops.distributed.faults import lost_ranks
from attnops.distributed.halo import Halo, halo_of, require_parts
from attnops.distributed.partitions import Partition, digest, divide, require_seed
from attnops.patterns import Edges

Relation = tuple[str, str, str]


@dataclass(frozen=True, eq=False)
class HeteroHaloPlan:
    """A rank's share of a heterogeneous graph.

    Attributes:
        nodes: the `Halo` of each node type.
        edge_index: by relation, `[2, E_r]`: held rows of the source type to own rows of the target type, in the
            caller's order.
        edge: by relation, int64 `[E_r]`: the number of each edge in the whole list; edge data are `data[plan.edge[r]]`.
        name: what ranks compare before they exchange.
    """

    nodes: dict[str, Halo]
    edge_index: dict[Relation, Tensor]
    edge: dict[Relation, Tensor]
    name: str


def partition_types(
    edge_index_dict: Mapping[Relation, Tensor],
    num_nodes: Mapping[str, int],
    parts: int,
    method: Literal["metis", "range"] = "metis",
    *,
    seed: int = 0,
) -> dict[str, Partition]:
    """Divide the nodes of every type, as `partition` does: "metis" over all relations at once.

    Args:
        edge_index_dict: by relation, integer `[2, E]`, sources above targets, numbered within their types.
        num_nodes: by type; a type may have none.

    Raises:
        ImportError, ValueError: as `partition`; a relation of an unknown type, an index out of range.

    Example:
        >>> import torch
        >>> from attnops.distributed import partition_types
        >>> likes = {("user", "likes", "song"): torch.tensor([[0, 1, 2, 3], [0, 0, 1, 1]])}
        >>> divided = partition_types(likes, {"user": 4, "song": 2}, parts=2, method="range")
        >>> divided["user"].query_part, divided["song"].query_part
        (tensor([0, 0, 1, 1]), tensor([0, 1]))
    """
    require_positive(parts=parts)
    require_seed(seed)
    edges = _read(edge_index_dict, num_nodes)
    starts, total = {}, 0
    for kind, count in num_nodes.items():
        starts[kind], total = total, total + count
    nothing = [torch.zeros(0, dtype=torch.long)]
    source = torch.cat([each.source.long().cpu() + starts[relation[0]] for relation, each in edges.items()] + nothing)
    target = torch.cat([each.target.long().cpu() + starts[relation[2]] for relation, each in edges.items()] + nothing)
    divided = {}
    whole = divide(source, target, total, parts, method, seed) if method != "range" else None
    for kind, count in num_nodes.items():
        own = nothing[0]
        part = divide(own, own, count, parts, "range", seed) if whole is None else whole[starts[kind] :][:count].clone()
        divided[kind] = Partition(part, part, parts)
    return divided


def plan_hetero_halo(
    edge_index_dict: Mapping[Relation, Tensor],
    partitions: Mapping[str, Partition],
    *,
    rank: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> HeteroHaloPlan:
    """The share of one rank, as `plan_halo`: of every node type those that some relation needs.

    Args:
        edge_index_dict: the whole graph, by relation, the same on all ranks.
        partitions: by node type, from `partition_types` or your own; each as many parts as ranks.

    Raises:
        ValueError: a type without a partition, an index out of range, parts that are not as many as ranks.
        DisagreementError: another graph or partition on another rank.

    Example:
        >>> import torch
        >>> from attnops.distributed import partition_types, plan_hetero_halo
        >>> likes = ("user", "likes", "song")
        >>> edge_index_dict = {likes: torch.tensor([[0, 1, 2, 3], [0, 0, 1, 0]])}
        >>> divided = partition_types(edge_index_dict, {"user": 4, "song": 2}, parts=2, method="range")
        >>> plan = plan_hetero_halo(edge_index_dict, divided, rank=0)
        >>> plan.nodes["user"].held, plan.edge_index[likes]                # song 0 is liked by user 3, of rank 1
        (tensor([0, 1, 3]), tensor([[0, 1, 2],
            [0, 0, 0]]))
    """
    refusal: Exception | None = None
    edges: dict[Relation, Edges] = {}
    name, device = "", torch.device("cpu")
    try:
        if not isinstance(partitions, Mapping) or not partitions:
            raise TypeError(f"partitions is {_kind(partitions)}; it must be a Partition a node type, by its name")
        for kind, divided in partitions.items():
            if not isinstance(divided, Partition) or not torch.equal(divided.query_part, divided.key_part):
                raise TypeError(f"partitions[{kind!r}] must be a Partition of one set of nodes")
            require_parts(divided.num_parts, rank, group)
        edges = _read(edge_index_dict, {kind: len(divided.query_part) for kind, divided in partitions.items()})
        graph = [(relation, digest(each.edge_index)) for relation, each in sorted(edges.items())]
        name = f"{graph} in {[(kind, divided.fingerprint) for kind, divided in sorted(partitions.items())]}"
        device = next((each.edge_index.device for each in edges.values()), device)
    except (TypeError, ValueError) as error:
        if rank is not None:
            raise
        refusal = error
    if rank is None:
        with lost_ranks("plan_hetero_halo"):
            agree("plan_hetero_halo", {"graph": name}, group, refusal=refusal, device=device)
        rank = dist.get_rank(group) if dist.is_initialized() else 0
    needs: dict[str, list[tuple[Tensor, Tensor, Tensor]]] = {kind: [] for kind in partitions}
    for relation, each in edges.items():
        source, target = each.source.long().cpu(), each.target.long().cpu()
        of_source, of_target = partitions[relation[0]].key_part[source], partitions[relation[2]].query_part[target]
        needs[relation[0]].append((source, of_source, of_target))
    nodes, rows = {}, {}
    for kind in sorted(partitions):
        part, parts = partitions[kind].key_part, partitions[kind].num_parts
        halo, rows[kind] = halo_of(part, needs[kind], parts, rank, f"{kind} of {name}", group)
        nodes[kind] = halo.to(device)
    edge_index, edge = {}, {}
    for relation, each in edges.items():
        source, target = each.source.long().cpu(), each.target.long().cpu()
        own = (partitions[relation[2]].query_part[target] == rank).nonzero().flatten()
        edge_index[relation] = torch.stack([rows[relation[0]][source[own]], rows[relation[2]][target[own]]]).to(device)
        edge[relation] = own.to(device)
    return HeteroHaloPlan(nodes, edge_index, edge, name)


def hetero_attend(
    layer: nn.Module,
    x_dict: Mapping[str, Tensor],
    plan: HeteroHaloPlan,
    *,
    node_data: Mapping[str, Mapping[str, Tensor]] | None = None,
    **arguments: Any,
) -> Any:
    """A layer over a graph whose nodes are divided over ranks: `HeteroAttention`, `HGTConv` or the like.

    Features travel to the ranks whose edges need them, one exchange for all types, and the layer runs over what the
    rank then holds. Its parameters are the same on all ranks; their gradients are of this rank's nodes: sum them.

    Args:
        layer: called as `layer(x_dict, edge_index_dict, **arguments)`; gives node features by type.
        x_dict: `[n_t, F_t]` of this rank's own nodes, for every type of the plan, those without nodes here too.
        node_data: as of `HeteroAttention`, of this rank's own nodes, for the same types on all ranks.
        **arguments: passed on; edge data of this rank's edges, `data[plan.edge[relation]]`.

    Returns:
        What the layer gives, for this rank's own nodes.

    Raises:
        ValueError: a type that is missing or has another number of nodes.
        DisagreementError: other types, widths, dtypes or plans on other ranks.
        LostRankError: another rank ended or did not join in time.

    Example:
        >>> import torch
        >>> from attnops.distributed import hetero_attend, partition_types, plan_hetero_halo
        >>> from attnops.graph import HeteroAttention
        >>> likes = ("user", "likes", "song")
        >>> edge_index_dict = {likes: torch.tensor([[0, 1, 2, 3], [0, 0, 1, 0]])}
        >>> plan = plan_hetero_halo(edge_index_dict, partition_types(edge_index_dict, {"user": 4, "song": 2}, parts=1))
        >>> layer = HeteroAttention((["user", "song"], [likes]), {"user": 3, "song": 5}, 8)
        >>> hetero_attend(layer, {"user": torch.randn(4, 3), "song": torch.randn(2, 5)}, plan)["song"].shape
        torch.Size([2, 8])
    """
    if not isinstance(plan, HeteroHaloPlan):
        refuse("hetero_attend", TypeError(f"plan is {type(plan).__name__}; it must be from plan_hetero_halo"))
    kinds = sorted(plan.nodes)
    data: dict[str, tuple[str, str]] = {}
    refusal: Exception | None = None
    rows: list[Tensor] = []
    of: list[str] = []
    same: dict[str, object] = {"plan": plan.name, "layer": type(layer).__name__}
    try:
        refusal = next((error for halo in plan.nodes.values() if (error := group_refusal(halo))), None)
        for what, given in (("x_dict", x_dict), ("node_data", node_data or {})):
            if not isinstance(given, Mapping):
                raise TypeError(f"{what} is {_kind(given)}; it must be a dict")
        for name, by_kind in sorted((node_data or {}).items()):
            if not isinstance(by_kind, Mapping):
                raise TypeError(f"node_data[{name!r}] is {_kind(by_kind)}; it must be a dict of tensors by node type")
            data |= {f"{name} of {kind}": (name, kind) for kind in sorted(by_kind)}
        for kind in kinds:
            rows, of = [*rows, _own(x_dict.get(kind), f"x_dict[{kind!r}]", plan, kind, 2)], [*of, kind]
        for name, kind in data.values():
            datum = (node_data or {})[name][kind]
            rows, of = [*rows, _own(datum, f"node_data[{name!r}][{kind!r}]", plan, kind, 1)], [*of, kind]
        for kind in x_dict:
            if kind not in plan.nodes:
                raise ValueError(f"x_dict holds the node type {kind!r}; the plan has {', '.join(kinds)}")
        same["types"] = [(kind, each.dtype, list(each.shape[1:])) for kind, each in zip(of, rows, strict=True)]
        same["node data"], same["gradients"] = list(data), needs_gradient(*rows)
    except (TypeError, ValueError) as error:
        refusal = refusal or error
    halos = [plan.nodes[kind] for kind in of]
    with lost_ranks("hetero_attend"):
        device = rows[0].device if rows else "cpu"
        agree("hetero_attend", same, next(iter(plan.nodes.values())).group, refusal=refusal, device=device)
    held = exchange_each(halos, rows)
    if node_data:
        held_data: dict[str, dict[str, Tensor]] = {name: {} for name in node_data}
        for (name, kind), each in zip(data.values(), held[len(kinds) :], strict=True):
            held_data[name][kind] = each
        arguments["node_data"] = held_data
    result = layer(dict(zip(kinds, held[: len(kinds)], strict=True)), plan.edge_index, **arguments)
    out, weights = result if isinstance(result, tuple) else (result, None)
    own = {kind: features[: plan.nodes[kind].num_own] for kind, features in out.items() if features is not None}
    return own if weights is None else (own, weights)


def _own(rows: object, name: str, plan: HeteroHaloPlan, kind: str, ndim: int) -> Tensor:
    count = plan.nodes[kind].num_own if kind in plan.nodes else None
    if not isinstance(rows, Tensor) or rows.ndim != ndim or rows.shape[0] != count:
        given = list(rows.shape) if isinstance(rows, Tensor) else type(rows).__name__
        raise ValueError(f"{name} is {given}; it must be a tensor of the {count} nodes that this rank holds")
    return rows


def _kind(given: object) -> str:
    """What something is, by its type."""
    return f"an empty {type(given).__name__}" if isinstance(given, Mapping) and not given else type(given).__name__


def _read(edge_index_dict: Mapping[Relation, Tensor], num_nodes: Mapping[str, int]) -> dict[Relation, Edges]:
    """The edges of every relation, their ends checked."""
    for what, given in (("edge_index_dict", edge_index_dict), ("num_nodes", num_nodes)):
        if not isinstance(given, Mapping):
            raise TypeError(f"{what} is {_kind(given)}; it must be a dict")
    require_count(**{f"num_nodes[{name!r}]": count for name, count in num_nodes.items()})
    edges = {}
    for relation, edge_index in edge_index_dict.items():
        if not isinstance(relation, tuple) or len(relation) != 3:
            raise ValueError(f"edge_index_dict holds the relation {relation!r}; it must be (source, name, target)")
        source, _, target = relation
        if source not in num_nodes or target not in num_nodes:
            raise ValueError(f"the relation {relation} joins types that are not all of {', '.join(num_nodes)}")
        try:
            edges[relation] = Edges(edge_index, num_nodes[target], num_nodes[source])
        except (TypeError, ValueError) as error:
            raise type(error)(f"of the relation {relation}: {error}") from error
    return edges
