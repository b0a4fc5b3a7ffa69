"""What each rank sends to each other one so that all hold the keys that their edges need: planned once a graph."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
import torch.distributed as dist
from torch import Tensor

from attnops.checks import require_flag
from attnops.distributed.agreement import agree
from attnops.distributed.faults import lost_ranks
from attnops.distributed.partitions import Partition, digest
from attnops.patterns import Edges


@dataclass(frozen=True, eq=False)
class Halo:
    """The rows of one set of nodes on one rank: its own, and behind them those that others send it.

    Attributes:
        own: int64 `[n]`, the nodes that the rank holds, ascending, numbered in the whole graph.
        held: int64 `[n + h]`: `own`, then the nodes received, by the rank that sends them, ascending within each.
        send_rows: int64 `[s]`: which of its own rows the rank sends, by the rank that receives them.
        send_counts, receive_counts: how many rows to, and from, each rank.
        rank: the rank. name: what ranks compare before they exchange.
        group: the process group of the exchange; None for the default one.
    """

    own: Tensor
    held: Tensor
    send_rows: Tensor
    send_counts: tuple[int, ...]
    receive_counts: tuple[int, ...]
    rank: int
    name: str
    group: dist.ProcessGroup | None = None

    @property
    def num_own(self) -> int:
        """n."""
        return self.own.shape[0]

    @property
    def num_held(self) -> int:
        """n + h."""
        return self.held.shape[0]

    @property
    def num_sent(self) -> int:
        """s: the rows that one exchange sends from this rank."""
        return self.send_rows.shape[0]

    def to(self, device: torch.device | str) -> Halo:
        """The same halo, its indices on another device, where the rows lie."""
        return replace(self, own=self.own.to(device), held=self.held.to(device), send_rows=self.send_rows.to(device))


@dataclass(frozen=True, eq=False)
class HaloPlan:
    """A rank's share of a graph: its queries, the edges that enter them, and the halo of keys that those come from.

    Attributes:
        queries: int64 `[n_q]`, the queries that the rank holds, ascending, numbered in the whole graph.
        keys: the `Halo` of the keys.
        edges: `Edges` of n_q queries and `keys.num_held` keys, in the caller's order, with their data.
        edge: int64 `[E_r]`, the number of each of them in the whole edge list: a tensor `[E]` or `[E, F]` of edge data
            is `tensor[plan.edge]` here, a bias `[H, E]` is `bias[:, plan.edge]`.
        num_queries, num_keys: of the whole graph.
        one_set: whether queries and keys are the same nodes, divided alike; then row i of the held keys is query i for
            every query of this rank, and layers that add self-loops may be given `plan.edges` over the held rows.
    """

    queries: Tensor
    keys: Halo
    edges: Edges
    edge: Tensor
    num_queries: int
    num_keys: int
    one_set: bool

    @property
    def name(self) -> str:
        """What ranks compare before they exchange."""
        return self.keys.name

    @property
    def edge_index(self) -> Tensor:
        """`[2, E_r]`: held keys to queries of this rank, as layers of graphs take it."""
        return self.edges.edge_index

    def to(self, device: torch.device | str) -> HaloPlan:
        """The same plan on another device."""
        return replace(
            self,
            queries=self.queries.to(device),
            keys=self.keys.to(device),
            edges=self.edges.to(device),
            edge=self.edge.to(device),
        )


def plan_halo(
    edges: Edges,
    partition: Partition,
    *,
    whole: bool = True,
    rank: int | None = None,
    group: dist.ProcessGroup | None = None,
) -> HaloPlan:
    """The share of one rank, made once a graph; each rank computes its own, from the whole edge list or its part of it.

    Ranks compare graph and partition first. A rank that is named asks no other process, for a look at the plan of any
    rank from anywhere.

    Args:
        edges: the whole graph, the same on all ranks; or, where it is not `whole`, the edges that enter this rank's
            queries, numbered as in the whole graph: then ranks ask each other for the keys that they need, and no
            process ever holds all edges. Data come along; those that require a gradient do not, and are given at each
            call instead.
        partition: as many parts as ranks.
        rank: None for this process' own.
        group: the ranks; None for the default group. One process without a group is a group of one.

    Raises:
        ValueError: sizes that are not those of the partition; a number of parts that is not that of the ranks; a rank
            out of range; edge data that require a gradient; not the whole graph, and an edge that enters another
            rank's query.
        DisagreementError: another graph or partition on another rank.

    Example:
        >>> import attnops, torch
        >>> from attnops.distributed import partition, plan_halo
        >>> ring = attnops.Edges(torch.stack([torch.arange(6), torch.arange(6).roll(-1)]), 6, 6)
        >>> plan = plan_halo(ring, partition(ring, 2, method="range"), rank=1)
        >>> plan.queries, plan.keys.held, plan.edge_index                  # node 3 hears node 2, which rank 0 sends
        (tensor([3, 4, 5]), tensor([3, 4, 5, 2]), tensor([[3, 0, 1],
            [0, 1, 2]]))
    """
    refusal: Exception | None = None
    try:
        _check(edges, partition, whole, rank, group)
    except (TypeError, ValueError) as error:
        if rank is not None:
            raise
        refusal = error
    name = ""
    if refusal is None:
        graph = f"{edges} {digest(edges.edge_index)}" if whole else f"edges by rank, with {list(edges.data)}"
        name = f"{graph} in {partition.fingerprint}"
    if rank is None:
        device = edges.edge_index.device if isinstance(edges, Edges) else "cpu"
        with lost_ranks("plan_halo"):
            agree("plan_halo", {"graph": name}, group, refusal=refusal, device=device)
        rank = dist.get_rank(group) if dist.is_initialized() else 0
    source, target = edges.source.long().cpu(), edges.target.long().cpu()
    of_key, of_query = partition.key_part[source], partition.query_part[target]
    needs, device = [(source, of_key, of_query)], edges.edge_index.device
    asked = None if whole else device
    keys, row = halo_of(partition.key_part, needs, partition.num_parts, rank, name, group, asked)
    queries = partition.queries_of(rank)
    edge = (of_query == rank).nonzero().flatten()
    query_row = torch.searchsorted(queries, target[edge])
    local = torch.stack([row[source[edge]], query_row]).to(device)
    edge = edge.to(device)
    data = {datum: tensor.index_select(0, edge) for datum, tensor in edges.data.items()}
    own = Edges(local, len(queries), keys.num_held, **data)
    own.sorted()
    one_set = partition.query_part is partition.key_part or torch.equal(partition.query_part, partition.key_part)
    return HaloPlan(queries.to(device), keys.to(device), own, edge, edges.num_queries, edges.num_keys, one_set)


def halo_of(
    part: Tensor,
    needs: list[tuple[Tensor, Tensor, Tensor]],
    parts: int,
    rank: int,
    name: str,
    group: dist.ProcessGroup | None,
    asked: torch.device | None = None,
) -> tuple[Halo, Tensor]:
    """The halo of nodes with these parts, and `[N]` the row of each node that is held.

    `needs` are lists of edges: the source of each, the part that holds the source, the part that hears it. Where those
    of other parts are not in them, ranks are `asked` for theirs, by messages on that device.
    """
    count = max(1, len(part))
    sent, received = [part[:0]], [part[:0]]
    for source, holder, hearer in needs:
        away = holder != hearer
        sends, receives = away & (holder == rank), away & (hearer == rank)
        sent.append(hearer[sends] * count + source[sends])
        received.append(holder[receives] * count + source[receives])
    # Sorted by rank, then by node: the order in which the other side expects them.
    sending, receiving = torch.unique(torch.cat(sent)), torch.unique(torch.cat(received))
    if asked is not None and parts > 1:
        sending = _ask(receiving, count, parts, asked, group)
    own = (part == rank).nonzero().flatten()
    held = torch.cat([own, receiving % count])
    row = torch.full((len(part),), -1)
    row[held] = torch.arange(len(held))
    counts = [tuple(torch.bincount(codes // count, minlength=parts).tolist()) for codes in (sending, receiving)]
    return Halo(own, held, row[sending % count], counts[0], counts[1], rank, name, group), row


def _ask(receiving: Tensor, count: int, parts: int, device: torch.device, group: dist.ProcessGroup | None) -> Tensor:
    """What this rank sends, as (receiving rank, node) codes, from what it needs, as (sending rank, node) codes."""
    needed = torch.bincount(receiving // count, minlength=parts).to(device)
    wanted = torch.empty_like(needed)
    with lost_ranks("plan_halo"):
        dist.all_to_all_single(wanted, needed, group=group)
        nodes = torch.empty(int(wanted.sum()), dtype=torch.int64, device=device)
        of = (receiving % count).to(device)
        dist.all_to_all_single(nodes, of, wanted.tolist(), needed.tolist(), group=group)
    by = torch.repeat_interleave(torch.arange(parts), wanted.cpu())
    return by * count + nodes.cpu()


def _check(edges: Edges, partition: Partition, whole: bool, rank: int | None, group: dist.ProcessGroup | None) -> None:
    if not isinstance(edges, Edges) or not isinstance(partition, Partition):
        given = f"{type(edges).__name__} and {type(partition).__name__}"
        raise TypeError(f"edges and partition are {given}; they must be an Edges and a Partition")
    for side, size, part in (
        ("queries", edges.num_queries, partition.query_part),
        ("keys", edges.num_keys, partition.key_part),
    ):
        if len(part) != size:
            raise ValueError(f"partition divides {len(part)} {side}; the edges join {size}")
    for datum, tensor in edges.data.items():
        if tensor.requires_grad:
            raise ValueError(
                f"edge data {datum} require a gradient; leave them out of the plan, which is made once, and give "
                f"edge_data={{'{datum}': {datum}[plan.edge]}} to each call"
            )
    require_parts(partition.num_parts, rank, group)
    require_flag(whole=whole)
    if whole:
        return
    if rank is not None:
        raise ValueError(f"rank is {rank}, and whole is False; a rank that is named is planned from the whole graph")
    mine = dist.get_rank(group) if dist.is_initialized() else 0
    entered = partition.query_part[edges.target.long().cpu()]
    if bool((entered != mine).any()):
        wrong = int(edges.target[(entered != mine).nonzero()[0, 0]])
        raise ValueError(f"whole is False, and an edge enters the query {wrong}, which rank {mine} does not hold")


def require_parts(parts: int, rank: int | None, group: dist.ProcessGroup | None) -> None:
    """Raise `ValueError` where a partition and a group, or a rank that is named, do not fit."""
    if rank is not None:
        if type(rank) is not int or not 0 <= rank < parts:
            raise ValueError(f"rank is {rank!r}; the partition has the parts 0 to {parts - 1}")
        return
    ranks = dist.get_world_size(group) if dist.is_initialized() else 1
    if ranks != parts:
        raise ValueError(f"partition has {parts} parts; it must have {ranks}, one a rank of the group")
