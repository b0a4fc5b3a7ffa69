"""Layers over heterogeneous graphs, their nodes divided over ranks, give the numbers of one process."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops
from attnops.closeness import assert_close_as_reference
from attnops.distributed import DisagreementError, Partition, hetero_attend, partition_types, plan_hetero_halo
from attnops.graph import HeteroAttention, HGTConv

SEES, FOLLOWS, IN, NEVER = (
    ("camera", "sees", "person"),
    ("person", "follows", "person"),
    ("person", "in", "zone"),
    ("ghost", "is", "person"),
)
SIZES = {"camera": 4, "person": 9, "zone": 3, "ghost": 0}
CHANNELS = {"camera": 4, "person": 6, "zone": 3, "ghost": 2}
COUNTS = {SEES: 9, FOLLOWS: 25, IN: 7, NEVER: 0}
METADATA = (list(SIZES), list(COUNTS))
KINDS = ("joint", "gatv2 by relation", "scaled", "time and prior", "hgt")


class Problem:
    """The whole graph, a layer with random numbers, and every leaf by name."""

    def __init__(self, kind: str, dtype: torch.dtype) -> None:
        generator = torch.Generator().manual_seed(4)

        def leaf(*shape: int) -> Tensor:
            return torch.rand(*shape, generator=generator).to(dtype).requires_grad_()

        self.x = {kind: leaf(count, CHANNELS[kind]) for kind, count in SIZES.items()}
        self.edges = {
            relation: torch.stack(
                [torch.randint(0, max(1, SIZES[relation[end]]), (count,), generator=generator) for end in (0, 2)]
            )
            for relation, count in COUNTS.items()
        }
        self.prior = {relation: leaf(count) for relation, count in COUNTS.items()}
        self.time = {kind: leaf(count) for kind, count in SIZES.items()}
        self.layer = self._layer(kind).to(dtype)
        for parameter in self.layer.parameters():
            with torch.no_grad():
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        self.leaves = {
            **{f"x of {kind}": each for kind, each in self.x.items()},
            **{f"prior of {relation}": each for relation, each in self.prior.items()},
            **{f"time of {kind}": each for kind, each in self.time.items()},
            **{f"parameter {name}": each for name, each in self.layer.named_parameters()},
        }
        self.timed = kind == "time and prior"

    @staticmethod
    def _layer(kind: str) -> nn.Module:
        build: dict[str, Any] = {
            "joint": lambda: HeteroAttention(METADATA, CHANNELS, 3, 2, type_prior=True, residual=True),
            "gatv2 by relation": lambda: HeteroAttention(METADATA, CHANNELS, 3, 2, score="gatv2", softmax="relation"),
            "scaled": lambda: HeteroAttention(METADATA, CHANNELS, 3, 2, keys="relation", relation_prior="scale"),
            "time and prior": lambda: HeteroAttention(METADATA, CHANNELS, 3, 2, bias=attnops.TimeGap(2)),
            "hgt": lambda: HGTConv(CHANNELS, 6, METADATA, heads=2),
        }
        layer: nn.Module = build[kind]()
        return layer

    def gradients(self, out: dict[str, Tensor], nodes: dict[str, Tensor]) -> dict[str, Tensor]:
        loss = sum((features * torch.cos(nodes[kind] + 1.0).unsqueeze(1)).sum() for kind, features in out.items())
        grads = torch.autograd.grad(loss, list(self.leaves.values()), allow_unused=True)  # type: ignore[arg-type]
        return {
            name: torch.zeros_like(leaf) if grad is None else grad
            for (name, leaf), grad in zip(self.leaves.items(), grads, strict=True)
        }


def one_process(kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    p = Problem(kind, torch.float64)
    data = {"edge_data": {"prior": p.prior}, "node_data": {"time": p.time}} if p.timed else {}
    out = {name: each for name, each in p.layer(p.x, p.edges, **data).items() if each is not None}
    gradients = p.gradients(out, {name: torch.arange(count).double() for name, count in SIZES.items()})
    return {name: each.detach() for name, each in out.items()}, gradients


def divided(kind: str, edges: dict[Any, Tensor], parts: int) -> dict[str, Partition]:
    if kind == "scaled":  # all persons on the last rank, all else on the first: parts without nodes of a type
        owners = {name: torch.full((count,), (parts - 1) * (name == "person")) for name, count in SIZES.items()}
        return {name: Partition(owner, owner, parts) for name, owner in owners.items()}
    return partition_types(edges, SIZES, parts, "range" if kind == "joint" else "metis")


def on_a_rank(group: Any, kind: str) -> tuple[dict[str, Tensor], dict[str, Tensor], dict[str, Tensor]]:
    p = Problem(kind, torch.float64)
    plan = plan_hetero_halo(p.edges, divided(kind, p.edges, group.size()), group=group)
    own = {name: halo.own for name, halo in plan.nodes.items()}
    data: dict[str, Any] = {}
    if p.timed:
        data["node_data"] = {"time": {name: p.time[name][rows] for name, rows in own.items()}}
        data["edge_data"] = {"prior": {relation: each[plan.edge[relation]] for relation, each in p.prior.items()}}
    out = hetero_attend(p.layer, {name: p.x[name][rows] for name, rows in own.items()}, plan, **data)
    gradients = p.gradients(out, {name: rows.double() for name, rows in own.items()})
    return own, {name: each.detach() for name, each in out.items()}, gradients


@pytest.mark.parametrize("world", [1, 2, 3, 4])
def test_equal_to_one_process(ranks: Any, world: int) -> None:
    for kind in KINDS:
        golden, golden_gradients = one_process(kind)
        out = {name: torch.full_like(each, float("nan")) for name, each in golden.items()}
        total: dict[str, Tensor] = {}
        for own, part, gradients in ranks(on_a_rank, kind, world=world):
            assert part.keys() == golden.keys()
            for name, features in part.items():
                out[name][own[name]] = features
            for name, gradient in gradients.items():
                total[name] = gradient + total[name] if name in total else gradient
        for name, each in golden.items():
            assert_close_as_reference(out[name], each, each, what=f"{kind} on {world}: {name}")
        for name, each in golden_gradients.items():
            what = f"{kind} on {world}: {name}"
            assert_close_as_reference(total[name], each, each, kind="parameter", least=1.0, what=what)
        of_nodes = [golden_gradients[f"x of {name}"] for name in ("camera", "person")]
        of_edges = [golden_gradients[f"prior of {FOLLOWS}"], golden_gradients["time of person"]]
        assert all(each.abs().max() > 0.01 for each in (of_nodes + of_edges if kind == "time and prior" else of_nodes))


def refused(group: Any, change: str) -> str:
    p, odd = Problem("joint", torch.float64), group.rank() == 1
    if change == "graph" and odd:
        p.edges[FOLLOWS] = p.edges[FOLLOWS].flip(1)
    with pytest.raises((ValueError, TypeError, DisagreementError)) as caught:
        plan = plan_hetero_halo(p.edges, divided("joint", p.edges, 2), group=group)
        x = {name: p.x[name][halo.own] for name, halo in plan.nodes.items()}
        if odd and change == "missing":
            del x["zone"]
        if odd and change == "width":
            x["zone"] = x["zone"][:, :2]
        if odd and change == "gradient":
            x["zone"] = x["zone"].detach()
        data: Any = {"time": [1]} if odd and change == "node data" else {}
        hetero_attend(p.layer, [x] if odd and change == "list" else x, plan, node_data=data)  # type: ignore[arg-type]
    return str(caught.value)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("graph", "ranks disagree: graph is"),
        ("missing", "x_dict['zone'] is NoneType"),
        ("width", "ranks disagree: types is"),
        ("gradient", "ranks disagree: gradients is"),
        ("list", "x_dict is list; it must be a dict"),
        ("node data", "node_data['time'] is list; it must be a dict"),
    ],
)
def test_ranks_that_disagree_are_told_on_every_rank(ranks: Any, change: str, words: str) -> None:
    said = ranks(refused, change)
    assert all(words in each for each in said), said


def test_bad_arguments() -> None:
    with pytest.raises(ValueError, match="joins types that are not all of camera"):
        partition_types({SEES: torch.zeros(2, 0, dtype=torch.long)}, {"camera": 3}, 2)
    with pytest.raises(ValueError, match=r"of the relation .*target \(query\) 5"):
        partition_types({SEES: torch.tensor([[0], [5]])}, {"camera": 3, "person": 5}, 2)
    nobody = torch.zeros(2, 0, dtype=torch.long)
    with pytest.raises(ValueError, match=r"the relation 'sees'; it must be \(source, name, target\)"):
        partition_types({"sees": nobody}, {"camera": 3}, 2)  # type: ignore[dict-item]
    with pytest.raises(TypeError, match="edge_index_dict is list"):
        partition_types([], {"camera": 3}, 2)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"num_nodes\['zone'\] is -1"):
        partition_types({}, {"zone": -1}, 2)
    with pytest.raises(ValueError, match="seed is -1"):
        partition_types({SEES: nobody}, {"camera": 3, "person": 5}, 2, seed=-1)
    with pytest.raises(TypeError, match="partitions is an empty dict"):
        plan_hetero_halo({}, {})
    with pytest.raises(TypeError, match="plan is NoneType; it must be from plan_hetero_halo"):
        hetero_attend(nn.Identity(), {}, None)  # type: ignore[arg-type]
