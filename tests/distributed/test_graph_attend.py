"""A graph divided over ranks gives the numbers of one process: forward, and the gradient of everything."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops
from attnops import Coords, Edges
from attnops.closeness import assert_close_as_reference
from attnops.distributed import (
    DisagreementError,
    HaloPlan,
    Partition,
    graph_attend,
    halo_exchange,
    partition,
    plan_halo,
)
from attnops.graph import GATv2Conv, TransformerConv

HEADS, KV_HEADS, DIM, VALUE_DIM = 4, 2, 6, 5


@dataclass(frozen=True)
class Case:
    """A graph, what is preferred on it, and how its nodes are divided."""

    prior: str = "none"
    num_queries: int = 13
    num_keys: int = 13
    num_edges: int = 60
    divided: str = "metis"
    batch: tuple[int, ...] = ()
    dtype: torch.dtype = torch.float32
    seed: int = 0

    @property
    def one_set(self) -> bool:
        return self.num_queries == self.num_keys


class Problem:
    """Tensors of the whole graph in one dtype, from numbers that float32 holds; all leaves by name."""

    def __init__(self, case: Case, dtype: torch.dtype) -> None:
        self.case, self.generator = case, torch.Generator().manual_seed(case.seed)
        self.leaves: dict[str, Tensor] = {}
        self.dtype = dtype
        n, m, e = case.num_queries, case.num_keys, case.num_edges
        self.query = self.leaf("query", *case.batch, HEADS, n, DIM)
        self.key = self.leaf("key", *case.batch, KV_HEADS, m, DIM)
        self.value = self.leaf("value", *case.batch, KV_HEADS, m, VALUE_DIM)
        ends = [torch.randint(0, max(1, size), (e,), generator=self.generator) for size in (m, n)]
        hub = torch.rand(e, generator=self.generator) < 0.3
        source, target = torch.where(hub, 1, ends[0]), torch.where(hub.flip(0), 2, ends[1])
        target = torch.where(target == n - 1, 0, target)  # the last query hears nobody
        source = torch.where(source == m - 1, 0, source)  # the last key is heard by nobody
        self.edge_index = torch.stack([source, target])
        self.type = torch.randint(0, 3, (e,), generator=self.generator)
        self.attr = self.leaf("attr", e, 2)
        self.time = [self.leaf(f"time {side}", size) for side, size in (("queries", n), ("keys", m))]
        self.per_edge = self.leaf("bias", HEADS, e)
        self.bias, self.score, self.pattern = self._priors()
        for name, prior in (("bias", self.bias), ("score", self.score)):
            for parameter_name, parameter in prior.named_parameters() if isinstance(prior, nn.Module) else ():
                with torch.no_grad():
                    parameter.copy_(torch.randn(parameter.shape, generator=self.generator) * 0.5)
                self.leaves[f"parameter {name}.{parameter_name}"] = parameter

    def leaf(self, name: str, *shape: int) -> Tensor:
        numbers = torch.randn(*shape, generator=self.generator).to(self.case.dtype).to(self.dtype)
        self.leaves[name] = numbers.requires_grad_()
        return numbers

    def _priors(self) -> tuple[Any, Any, Any]:
        kinds = {
            "none": (None, None, None),
            "per edge": (self.per_edge, None, None),
            "learned": (attnops.EdgeBias(2, HEADS) + attnops.EdgeTypePrior(3, HEADS) + attnops.Sink(HEADS), None, None),
            "coords": (attnops.TimeGap(HEADS) + attnops.ALiBi(HEADS), attnops.DotProduct(softcap=3.0), None),
            "causal": (attnops.Rotary(DIM), None, attnops.Causal()),
            "content": (attnops.RelativeKeys(HEADS, DIM, 4), None, None),
            "additive": (None, attnops.Additive(HEADS, DIM, "leaky_relu"), None),
        }
        bias, score, pattern = kinds[self.case.prior]
        wide = torch.float64 if self.dtype == torch.float64 else torch.float32
        return (
            (bias if not isinstance(bias, nn.Module) else bias.to(wide)),
            (score.to(wide) if score else None),
            pattern,
        )

    def edges(self) -> Edges:
        return Edges(self.edge_index, self.case.num_queries, self.case.num_keys, type=self.type)

    def cotangent(self) -> Tensor:
        shape = (*self.case.batch, HEADS, self.case.num_queries, VALUE_DIM)
        numbers = torch.randn(*shape, generator=torch.Generator().manual_seed(1))
        return numbers.to(self.case.dtype).to(self.dtype)

    def gradients(self, out: Tensor, cotangent: Tensor) -> dict[str, Tensor]:
        loss = (out * cotangent).sum()
        grads = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)
        return {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(self.leaves.items(), grads, strict=True)
        }


def divide(case: Case, edges: Edges, parts: int) -> Partition:
    if case.divided != "with empty parts":
        return partition(edges, parts, case.divided, bipartite=not case.one_set)  # type: ignore[arg-type]
    queries, keys = (torch.full((size,), parts - 1) for size in (case.num_queries, case.num_keys))
    return Partition(queries, queries if case.one_set else keys, parts)


def one_process(case: Case, dtype: torch.dtype, backend: str) -> tuple[Tensor, dict[str, Tensor]]:
    p = Problem(case, dtype)
    edges = Edges(p.edge_index, case.num_queries, case.num_keys, type=p.type, attr=p.attr)
    out = attnops.attend(
        p.query, p.key, p.value, pattern=edges if p.pattern is None else edges & p.pattern, bias=p.bias,
        score=p.score, coords=(Coords(time=p.time[0]), Coords(time=p.time[1])), backend=backend,
    )  # fmt: skip
    assert isinstance(out, Tensor)
    return out.detach(), p.gradients(out, p.cotangent())


def on_a_rank(group: Any, case: Case) -> tuple[Tensor, Tensor, Tensor, dict[str, Tensor]]:
    """The share of this rank: its queries and their output, its edges, the gradients that it holds."""
    p = Problem(case, case.dtype)
    edges = p.edges()
    plan = plan_halo(edges, divide(case, edges, group.size()), group=group)
    own = plan.keys.own
    out = graph_attend(
        p.query.index_select(-2, plan.queries), p.key.index_select(-2, own), p.value.index_select(-2, own), plan,
        bias=p.per_edge[:, plan.edge] if case.prior == "per edge" else p.bias, score=p.score, pattern=p.pattern,
        coords=(Coords(time=p.time[0][plan.queries]), Coords(time=p.time[1][own])),
        edge_data={"attr": p.attr[plan.edge]},
    )  # fmt: skip
    assert isinstance(out, Tensor)
    gradients = p.gradients(out, p.cotangent().index_select(-2, plan.queries))
    return plan.queries, out.detach(), plan.edge, gradients


CASES = [
    *(Case(prior) for prior in ("none", "per edge", "learned", "coords", "causal", "content", "additive")),
    Case("per edge", divided="range", batch=(2,)),
    Case("learned", num_queries=7, num_keys=19),
    Case("coords", num_queries=9, num_keys=5, divided="range"),
    Case("per edge", divided="with empty parts"),
    Case("learned", num_queries=4, num_keys=9, divided="with empty parts"),
    Case("coords", num_edges=0),
    Case("learned", num_queries=3, num_keys=3),
    Case("per edge", dtype=torch.bfloat16),
    Case("learned", num_edges=400, dtype=torch.float64),
]


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_equal_to_one_process(ranks: Any, world: int) -> None:
    for case in CASES:
        golden, golden_gradients = one_process(case, torch.float64, "reference")
        reference, reference_gradients = one_process(case, case.dtype, "reference")
        out, heard = torch.full_like(reference, float("nan")), []
        total: dict[str, Tensor] = {}
        for queries, part, edge, gradients in ranks(on_a_rank, case, world=world):
            out[..., queries, :] = part
            heard.append(edge)
            for name, gradient in gradients.items():  # those of one node or edge lie on one rank alone
                total[name] = gradient + total[name] if name in total else gradient
        assert torch.equal(torch.cat(heard).sort().values, torch.arange(case.num_edges))
        what = f"{case} on {world} ranks"
        assert_close_as_reference(out, golden, reference, what=what)
        for name, gradient in total.items():
            kind = "parameter" if name.startswith("parameter") else "gradient"
            assert_close_as_reference(
                gradient, golden_gradients[name], reference_gradients[name], kind=kind, what=f"{what}: {name}"
            )


class Layers(nn.Module):
    """Layers that know nothing of ranks: one over one set of nodes, with self-loops, one over held and own rows."""

    def __init__(self) -> None:
        super().__init__()
        self.first = GATv2Conv(5, 3, heads=2, edge_dim=2)
        self.second = TransformerConv(6, 4, heads=2, edge_dim=2, beta=True)

    def on_a_rank(self, x: Tensor, plan: HaloPlan, attr: Tensor) -> Tensor:
        held = halo_exchange(x, plan)
        h = self.first(held, plan.edge_index, attr)[: len(x)].tanh()
        out: Tensor = self.second((halo_exchange(h, plan), h), plan.edge_index, attr)
        return out

    def forward(self, x: Tensor, edge_index: Tensor, attr: Tensor) -> Tensor:
        h = self.first(x, edge_index, attr).tanh()
        out: Tensor = self.second((h, h), edge_index, attr)
        return out


def layers() -> tuple[Layers, Edges, Tensor, Tensor]:
    torch.manual_seed(0)
    case = Case(num_edges=50, dtype=torch.float64)
    edges = Problem(case, case.dtype).edges()
    x, attr = torch.randn(13, 5).double().requires_grad_(), torch.randn(50, 2).double().requires_grad_()
    return Layers().double(), edges, x, attr


def layers_on_a_rank(group: Any) -> tuple[Tensor, Tensor, list[Tensor]]:
    model, edges, x, attr = layers()
    plan = plan_halo(edges, partition(edges, group.size()), group=group)
    out = model.on_a_rank(x[plan.queries], plan, attr[plan.edge])
    loss = (out.cos() * (1 + plan.queries).unsqueeze(1)).sum()
    return plan.queries, out.detach(), list(torch.autograd.grad(loss, [x, attr, *model.parameters()]))


def test_layers_run_over_what_a_rank_holds(ranks: Any) -> None:
    model, edges, x, attr = layers()
    want = model(x, edges.edge_index, attr)
    of_want = torch.autograd.grad((want.cos() * torch.arange(1, 14).unsqueeze(1)).sum(), [x, attr, *model.parameters()])
    results = ranks(layers_on_a_rank, world=3)
    for queries, out, _ in results:
        assert torch.allclose(out, want[queries], rtol=1e-12, atol=1e-12)
    for gradients in zip(of_want, *(gradients for _, _, gradients in results), strict=True):
        assert torch.allclose(sum(gradients[1:]), gradients[0], rtol=1e-10, atol=1e-11)  # type: ignore[arg-type]


def refused(group: Any, change: str) -> str:
    """Rank 1 differs in one thing: what this rank is told."""
    case, odd = Case("per edge", dtype=torch.float64), group.rank() == 1
    p = Problem(case, case.dtype)
    edges = p.edges()
    if change == "graph" and odd:
        edges = Edges(p.edge_index.flip(1), case.num_queries, case.num_keys)
    with pytest.raises((ValueError, TypeError, DisagreementError)) as caught:
        plan = plan_halo(edges, divide(case, edges, 2 + (change == "parts" and odd)), group=group)
        query, key, value = p.query[:, plan.queries], p.key[:, plan.keys.own], p.value[:, plan.keys.own]
        arguments: dict[str, Any] = {}
        if odd and change == "dtype":
            query, key, value = query.float(), key.float(), value.float()
        if odd and change == "width":
            value = value[..., :2]
        if odd and change == "size":
            key = key[:, :-1]
        if odd and change == "gradient":
            key, value = key.detach(), value.detach()
        if odd and change == "bias":
            arguments["bias"] = attnops.ALiBi(HEADS)
        if odd and change == "coords":
            arguments["coords"] = Coords(time=p.time[0][plan.queries])
        if odd and change == "bias of other edges":
            arguments["bias"] = p.per_edge[:, :3]
        if odd and change == "edge data":
            arguments["edge_data"] = {"attr": p.attr[:3]}
        if odd and change == "edge data of another type":
            arguments["edge_data"] = [1]
        if odd and change == "backend":
            arguments["backend"] = "nativ"
        if odd and change == "flag":
            arguments["return_lse"] = 1
        if odd and change == "heads of a bias":
            arguments["bias"] = attnops.ALiBi(HEADS + 1)
        if change == "index":
            arguments["pattern"] = attnops.GlobalTokens(torch.tensor([0]))
        if change == "length":
            arguments["bias"] = attnops.Rotary(DIM, scaling=attnops.RotaryScaling.dynamic_ntk(2.0, 4))
        if change == "data":
            learned = Edges(p.edge_index, case.num_queries, case.num_keys, attr=p.attr)
            plan_halo(learned, divide(case, edges, 2), group=group)
        if change == "rank":
            plan = plan_halo(edges, divide(case, edges, 2), rank=0, group=group)
        graph_attend(query, key, value, plan, **arguments)
    return str(caught.value)


WORDS = {
    "graph": "ranks disagree: graph is Edges",
    "parts": "partition has 3 parts; it must have 2",
    "dtype": "dtype is torch.float64 on rank 0, torch.float32 on rank 1",
    "width": "D, Dv is (6, 5) on rank 0, (6, 2) on rank 1",
    "size": "key has shape",
    "gradient": "gradients is [True, True] on rank 0, [False, False] on rank 1",
    "bias": "bias is NoneType on rank 0, (['ALiBi'], None) on rank 1",
    "coords": "coords of keys is [] on rank 0, [('time'",
    "bias of other edges": "bias has shape [4, 3]; it must be",
    "backend": "backend is auto on rank 0, nativ on rank 1",
    "flag": "return_lse is 1",
    "heads of a bias": "bias ALiBi has 5 heads; query has 4",
    "index": "GlobalTokens reads index",
    "length": "depends on the largest position",
    "edge data": "edge data attr has shape [3, 2]; its first axis must be E",
    "edge data of another type": "edge_data is list; it must be a dict",
    "data": "edge data attr require a gradient",
    "rank": "plan is of rank 0; this process is rank 1",
}


@pytest.mark.parametrize("change", WORDS)
def test_ranks_that_disagree_are_told_on_every_rank(ranks: Any, change: str) -> None:
    said = ranks(refused, change)
    assert all(WORDS[change] in words for words in said), said
