"""Partitions and plans, without a process; and the exchange of rows, with some."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnops import Edges
from attnops.distributed import DisagreementError, HaloPlan, Partition, halo_exchange, partition, plan_halo


def graph(seed: int, num_queries: int, num_keys: int, num_edges: int) -> Edges:
    generator = torch.Generator().manual_seed(seed)
    num_edges = num_edges if num_queries and num_keys else 0
    ends = [torch.randint(0, max(1, size), (num_edges,), generator=generator) for size in (num_keys, num_queries)]
    return Edges(torch.stack(ends), num_queries, num_keys, name=torch.arange(num_edges))


SIZES = st.integers(0, 12)
PARTS = st.integers(1, 5)


@given(st.integers(0, 99), SIZES, SIZES, st.integers(0, 40), PARTS, st.sampled_from(["metis", "range", "random"]))
def test_plans_of_all_ranks_fit_and_hold_what_is_needed_once(
    seed: int, num_queries: int, num_keys: int, num_edges: int, parts: int, method: str
) -> None:
    edges = graph(seed, num_queries, num_keys, num_edges)
    if method == "random":
        generator = torch.Generator().manual_seed(seed)
        owners = [torch.randint(0, parts, (size,), generator=generator) for size in (num_queries, num_keys)]
        divided = Partition(owners[0], owners[1], parts)
    else:
        divided = partition(edges, parts, method)  # type: ignore[arg-type]
    plans = [plan_halo(edges, divided, rank=rank) for rank in range(parts)]
    for nodes, size in (([plan.queries for plan in plans], num_queries), ([p.keys.own for p in plans], num_keys)):
        assert torch.equal(torch.cat(nodes).sort().values, torch.arange(size))
    assert torch.equal(torch.cat([plan.edge for plan in plans]).sort().values, torch.arange(edges.num_edges))
    for rank, plan in enumerate(plans):
        # Each edge joins the nodes that it joins in the whole graph, and carries its data.
        assert torch.equal(plan.edges.data["name"], plan.edge)
        assert torch.equal(plan.keys.held[plan.edges.source], edges.source[plan.edge])
        assert torch.equal(plan.queries[plan.edges.target], edges.target[plan.edge])
        assert torch.equal(_exchanged([p.keys.own for p in plans], plans, rank), plan.keys.held)
        received = plan.keys.held[plan.keys.num_own :]
        needed = set(edges.source[plan.edge].tolist()) - set(plan.keys.own.tolist())
        assert sorted(received.tolist()) == sorted(needed)


def _exchanged(rows: list[Tensor], plans: list[HaloPlan], rank: int) -> Tensor:
    """What an exchange delivers to a rank, without one."""
    parts = [rows[rank]]
    for sender, plan in enumerate(plans):
        sent = plan.keys.send_rows.split(plan.keys.send_counts)[rank]
        assert len(sent) == plans[rank].keys.receive_counts[sender] and (sender != rank or not len(sent))
        parts.append(rows[sender][sent])
    return torch.cat(parts)


def test_metis_keeps_communities_together_and_shares_work_out() -> None:
    communities, size = 4, 40
    generator = torch.Generator().manual_seed(0)
    nodes = torch.randperm(communities * size, generator=generator)  # so that their order says nothing
    source = torch.randint(0, communities * size, (2000,), generator=generator)
    inside = torch.randint(0, size, (2000,), generator=generator) + source // size * size
    edges = Edges(torch.stack([nodes[source], nodes[inside]]), communities * size, communities * size)
    sent = {
        method: sum(plan_halo(edges, partition(edges, 4, method), rank=rank).keys.num_sent for rank in range(4))
        for method in ("metis", "range")
    }
    assert sent["metis"] == 0 < sent["range"]
    loads = torch.bincount(partition(edges, 4).query_part[edges.target])
    assert loads.max() <= 1.3 * loads.min()
    assert torch.equal(partition(edges, 3, seed=1).query_part, partition(edges, 3, seed=1).query_part)


def test_bipartite_nodes_are_divided_by_themselves() -> None:
    edges = graph(0, 9, 9, 30)
    assert partition(edges, 2).key_part is partition(edges, 2).query_part or torch.equal(
        partition(edges, 2).key_part, partition(edges, 2).query_part
    )
    divided = partition(edges, 2, bipartite=True)
    assert not plan_halo(edges, divided, rank=0).one_set and plan_halo(edges, partition(edges, 2), rank=0).one_set


def test_without_metis_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pymetis", None)
    with pytest.raises(ImportError, match=r"attnops\[distributed\].*pymetis.*method='range'"):
        partition(graph(0, 9, 9, 30), 2)


def alone() -> HaloPlan:
    return plan_halo(graph(0, 4, 4, 5), partition(graph(0, 4, 4, 5), 1))


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: partition(graph(0, 4, 4, 5), 0), "parts is 0"),
        (lambda: partition(graph(0, 4, 4, 5), 2, "metes"), "method is 'metes'"),
        (lambda: partition(graph(0, 4, 5, 5), 2, bipartite=False), "4 queries and 5 keys"),
        (lambda: Partition(torch.tensor([0, 2]), torch.tensor([0]), 2), "query_part holds parts 0 to 2"),
        (lambda: plan_halo(graph(0, 4, 4, 5), partition(graph(0, 5, 5, 5), 2), rank=0), "divides 5 queries"),
        (lambda: plan_halo(graph(0, 4, 4, 5), partition(graph(0, 4, 4, 5), 2), rank=2), "rank is 2"),
        (lambda: plan_halo(graph(0, 4, 4, 5), partition(graph(0, 4, 4, 5), 2)), "2 parts; it must have 1"),
        (lambda: plan_halo(graph(0, 4, 4, 5), partition(graph(0, 4, 4, 5), 2), rank="0"), "rank is '0'"),  # type: ignore[arg-type]
        (lambda: partition(graph(0, 4, 4, 5), 2, seed=-1), "seed is -1"),
        (lambda: partition(graph(0, 4, 4, 5), 2, bipartite="x"), "bipartite is 'x'"),  # type: ignore[arg-type]
        (lambda: halo_exchange(torch.ones(4, 2).to_sparse(), alone()), "rows is torch.sparse_coo; it must be strided"),
        (lambda: partition(graph(0, 4, 4, 5), 2, seed=0.5), "seed is 0.5"),  # type: ignore[arg-type]
    ],
)
def test_bad_arguments(make: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        make()


# ----------------------------------------------------------------------------------------------- with processes
def exchanged(group: Any, dtype: torch.dtype, width: tuple[int, ...]) -> tuple[int, int]:
    """Rows arrive where they belong; the bytes that went out, and those that the plan says."""
    edges = graph(3, 20, 20, 50)
    plan = plan_halo(edges, partition(edges, group.size(), "range"), group=group)
    rows = (torch.arange(20 * max(1, torch.Size(width).numel())) % 251).to(dtype)
    rows = rows.view(20, -1)[:, : torch.Size(width).numel()].reshape(20, *width)
    sent = []

    def counting(out: Tensor, into: Tensor, *arguments: Any, **options: Any) -> Any:
        sent.append(into.nbytes)
        return original(out, into, *arguments, **options)

    original, dist.all_to_all_single = dist.all_to_all_single, counting
    try:
        held = halo_exchange(rows[plan.keys.own], plan)
    finally:
        dist.all_to_all_single = original
    assert torch.equal(held, rows[plan.keys.held]) and held.dtype == dtype
    return sum(sent), plan.keys.num_sent * rows[0].nbytes


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64, torch.int64, torch.uint8, torch.bool])
def test_rows_of_any_dtype_and_as_many_bytes_as_planned(ranks: Any, dtype: torch.dtype) -> None:
    for width in ((), (3,), (2, 5), (0,)):
        for sent, planned in ranks(exchanged, dtype, width, world=3):
            assert sent == planned and (sent > 0 or width == (0,))


def twice(group: Any) -> tuple[Tensor, Tensor, Tensor]:
    """The nodes of this rank, and the first and second derivative of Σ w x² over all held rows."""
    edges = graph(5, 15, 15, 60)
    plan = plan_halo(edges, partition(edges, group.size(), "range"), group=group)
    x = torch.linspace(-1, 1, 15, dtype=torch.float64)[plan.keys.own].requires_grad_()
    held = halo_exchange(x, plan)
    weight = (group.rank() + 1) * (1 + plan.keys.held)
    (first,) = torch.autograd.grad((weight * held**2).sum(), x, create_graph=True)
    (second,) = torch.autograd.grad((first * (1 + plan.keys.own)).sum(), x)
    rows = x.detach().expand(3, -1).t().requires_grad_()  # any strides, and a gradient that is one number all over
    (ones,) = torch.autograd.grad(halo_exchange(rows, plan).sum(), rows)
    hearers = torch.bincount(torch.cat([plan.keys.own.argsort(), plan.keys.send_rows]), minlength=plan.keys.num_own)
    assert torch.equal(ones, hearers.double().unsqueeze(1).expand(-1, 3))
    return plan.keys.own, first.detach(), second


def test_gradients_come_home_and_can_be_differentiated(ranks: Any) -> None:
    edges, world = graph(5, 15, 15, 60), 3
    divided = partition(edges, world, "range")
    total = torch.zeros(15, dtype=torch.float64)
    for rank in range(world):
        held = plan_halo(edges, divided, rank=rank).keys.held
        total[held] += (rank + 1) * (1 + held)
    x = torch.linspace(-1, 1, 15, dtype=torch.float64)
    for own, first, second in ranks(twice, world=world):
        assert torch.allclose(first, (2 * total * x)[own], rtol=1e-14)
        assert torch.allclose(second, (2 * total)[own] * (1 + own), rtol=1e-14)


def planned_from_own_edges(group: Any) -> list[tuple[Tensor, ...]]:
    """The plan from this rank's edges alone, beside the one from the whole graph."""
    rank, out = group.rank(), []
    for edges in (graph(7, 20, 20, 50), graph(8, 9, 30, 40), graph(9, 6, 6, 0)):
        divided = partition(edges, group.size(), "range")
        want = plan_halo(edges, divided, group=group)
        own = Edges(edges.edge_index[:, want.edge], edges.num_queries, edges.num_keys, name=want.edge)
        got = plan_halo(own, divided, whole=False, group=group)
        assert got.keys.send_counts == want.keys.send_counts and got.keys.receive_counts == want.keys.receive_counts
        assert torch.equal(got.keys.send_rows, want.keys.send_rows) and torch.equal(got.keys.held, want.keys.held)
        assert torch.equal(got.edge_index, want.edge_index) and torch.equal(got.edges.data["name"], want.edge)
        rows = torch.arange(3 * edges.num_keys).view(-1, 3)
        out.append((halo_exchange(rows[got.keys.own], got), rows[want.keys.held]))
        if rank == 0:
            bad = Edges(
                torch.tensor([[0], [edges.num_queries - 1]]), edges.num_queries, edges.num_keys, name=torch.ones(1)
            )
            with pytest.raises(ValueError, match=r"enters the query .* which rank 0 does not hold"):
                plan_halo(bad, divided, whole=False, group=group)
        else:
            with pytest.raises(DisagreementError, match="rank 0 refused its arguments: whole is False"):
                plan_halo(own, divided, whole=False, group=group)
    return out


def test_a_plan_needs_no_process_to_hold_all_edges(ranks: Any) -> None:
    for results in ranks(planned_from_own_edges, world=3):
        for got, want in results:
            assert torch.equal(got, want)


def without_a_plan(group: Any) -> str:
    """Rank 1 has none, and so does not know with whom it would exchange: the default group is told."""
    if dist.get_rank() == 1:
        with pytest.raises(TypeError) as caught:
            halo_exchange(torch.ones(2), None)  # type: ignore[arg-type]
        return str(caught.value)
    edges = graph(5, 15, 15, 60)
    plan = replace(plan_halo(edges, partition(edges, group.size(), "range"), rank=dist.get_rank()).keys, group=None)
    with pytest.raises(DisagreementError) as told:
        halo_exchange(torch.ones(plan.num_own), plan)
    return str(told.value)


def test_a_rank_without_a_plan_holds_nobody_up(ranks: Any) -> None:
    for said in ranks(without_a_plan, world=4):
        assert "plan is NoneType; it must be from plan_halo" in said


def complex_rows(group: Any) -> tuple[Tensor, Tensor]:
    edges = graph(5, 15, 15, 60)
    plan = plan_halo(edges, partition(edges, group.size(), "range"), group=group)
    x = torch.randn(15, 2, dtype=torch.complex128)[plan.keys.own].requires_grad_()
    held = halo_exchange(x, plan)
    held.abs().square().sum().backward()
    hearers = torch.bincount(torch.cat([plan.keys.own.argsort(), plan.keys.send_rows]), minlength=plan.keys.num_own)
    assert x.grad is not None
    return x.grad, 2 * hearers.unsqueeze(1) * x.detach()


def test_complex_rows_have_their_gradient(ranks: Any) -> None:
    for got, want in ranks(complex_rows, world=2):
        assert torch.allclose(got, want)
