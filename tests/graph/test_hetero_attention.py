"""Attention over all relations at once: cases from the field, a loop over edges as the right answer, its forms."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

import attnops
from attnops.graph import HeteroAttention

pytestmark = pytest.mark.usefixtures("poison")

HEADS, OUT = 2, 3
SIZES = {"camera": 3, "person": 5, "zone": 2, "ghost": 0}
CHANNELS = {"camera": 4, "person": 6, "zone": 3, "ghost": 2}
SEES, FOLLOWS, IN, NEVER = (
    ("camera", "sees", "person"),
    ("person", "follows", "person"),
    ("person", "in", "zone"),
    ("ghost", "is", "person"),
)
RELATIONS = [SEES, FOLLOWS, IN, NEVER]
METADATA = (list(SIZES), RELATIONS)
COUNTS = {SEES: 7, FOLLOWS: 9, IN: 4, NEVER: 0}


def problem(seed: int) -> tuple[dict[str, Tensor], dict[Any, Tensor]]:
    generator = torch.Generator().manual_seed(seed)
    x = {kind: torch.randn(count, CHANNELS[kind], generator=generator).double() for kind, count in SIZES.items()}
    edges = {
        relation: torch.stack(
            [torch.randint(0, max(1, SIZES[relation[end]]), (count,), generator=generator) for end in (0, 2)]
        )
        for relation, count in COUNTS.items()
    }
    return x, edges


def right(
    layer: HeteroAttention,
    x: dict[str, Tensor],
    edges: dict[Any, Tensor],
    attr: dict[Any, Tensor] | None = None,
    prior: dict[Any, Tensor] | None = None,
) -> dict[str, Tensor]:
    """The formula, edge by edge."""
    kinds, relations = sorted(SIZES), sorted(RELATIONS)

    def mapped(maps: Any, name: str, row: Tensor) -> Tensor:
        return maps[name](row).view(HEADS, OUT)

    outputs = {}
    for kind, count in SIZES.items():
        rows = []
        for i in range(count):
            receives = any(relation[2] == kind for relation in relations)
            query = mapped(layer.query, kind, x[kind][i]) if receives else None
            logits: dict[Any, list[Tensor]] = {}
            values: dict[Any, list[Tensor]] = {}
            for relation in relations:
                if relation[2] != kind:
                    continue
                name = "__".join(relation) if layer.keys == "relation" else relation[0]
                for e, (j, target) in enumerate(edges[relation].t().tolist()):
                    if target != i:
                        continue
                    key = mapped(layer.key, name, x[relation[0]][j])
                    term = None
                    if attr is not None and relation in attr:
                        term = layer.edge["__".join(relation)](attr[relation][e])
                    if layer.score == "dot":
                        logit = (query * key).sum(-1) / math.sqrt(OUT)
                        logit = logit if term is None else logit + term
                    else:
                        hidden = query + key if term is None else query + key + term.view(HEADS, OUT)
                        logit = (torch.nn.functional.leaky_relu(hidden, 0.2) * layer.att).sum(-1)
                    if layer.relation_prior is not None:
                        logit = logit + layer.relation_prior.weight[relations.index(relation)]
                    if layer.type_prior is not None:
                        logit = logit + layer.type_prior.weight[kinds.index(kind), kinds.index(relation[0])]
                    if prior is not None and relation in prior:
                        logit = logit + prior[relation][e].log()
                    group = None if layer.softmax == "joint" else relation
                    logits.setdefault(group, []).append(logit)
                    values.setdefault(group, []).append(mapped(layer.value, name, x[relation[0]][j]))
            row = torch.zeros(HEADS, OUT).double()
            for group in logits:
                weights = torch.stack(logits[group]).softmax(0)
                row = row + (weights.unsqueeze(-1) * torch.stack(values[group])).sum(0)
            joined = row.flatten() if layer.concat else row.mean(0)
            rows.append(joined if layer.skip is None else joined + layer.skip[kind](x[kind][i]))
        width = HEADS * OUT if layer.concat else OUT
        outputs[kind] = torch.stack(rows) if rows else torch.zeros(0, width).double()
    return outputs


def build(**options: Any) -> HeteroAttention:
    """A layer in float64 whose priors are not 0."""
    torch.manual_seed(0)
    layer = HeteroAttention(METADATA, CHANNELS, OUT, HEADS, **options).double()
    with torch.no_grad():
        for name, parameter in layer.named_parameters():
            if "prior" in name or name.startswith("edge."):
                parameter.normal_()
    return layer


@settings(max_examples=25)
@given(
    seed=st.integers(0, 1000),
    options=st.fixed_dictionaries(
        {
            "concat": st.booleans(),
            "score": st.sampled_from(["dot", "gatv2"]),
            "softmax": st.sampled_from(["joint", "relation"]),
            "keys": st.sampled_from(["type", "relation"]),
            "relation_prior": st.booleans(),
            "type_prior": st.booleans(),
            "residual": st.booleans(),
            "linear_bias": st.booleans(),
            "edge_dim": st.sampled_from([None, {FOLLOWS: 2}, {FOLLOWS: 2, SEES: 1, NEVER: 3}]),
        }
    ),
    with_prior=st.booleans(),
)
def test_equals_the_formula(seed: int, options: dict[str, Any], with_prior: bool) -> None:
    """Results and gradients of every parameter and input, over all options."""
    layer = build(**options)
    x, edges = problem(seed)
    x = {kind: features.requires_grad_() for kind, features in x.items()}
    dims = options["edge_dim"] or {}
    attr = {r: torch.randn(COUNTS[r], size).double().requires_grad_() for r, size in dims.items()} or None
    prior = {FOLLOWS: torch.rand(COUNTS[FOLLOWS]).double().requires_grad_()} if with_prior else None
    out = layer(x, edges, attr, edge_data=None if prior is None else {"prior": prior})
    expected = right(layer, x, edges, attr, prior)
    assert list(out) == list(SIZES)
    leaves = [*x.values(), *(attr or {}).values(), *(prior or {}).values(), *layer.parameters()]
    totals = []
    for results in (out, expected):
        total = sum((rows * torch.linspace(1, 2, rows.numel()).view_as(rows)).sum() for rows in results.values())
        totals.append(torch.autograd.grad(total, leaves, allow_unused=True))
    for kind in SIZES:
        torch.testing.assert_close(out[kind], expected[kind], rtol=1e-9, atol=1e-11)
    for leaf, ours, theirs in zip(leaves, *totals, strict=True):
        zero = torch.zeros_like(leaf)
        torch.testing.assert_close(
            zero if ours is None else ours, zero if theirs is None else theirs, rtol=1e-8, atol=1e-10
        )


def test_one_softmax_over_all_relations(cases: ModuleType) -> None:
    """Case B22: relation A and B into one node share one softmax; one a relation only if asked for by name."""
    inputs, expected = cases.CASES["B22"]()
    a, b = ("s", "a", "d"), ("s", "b", "d")
    edges = {a: torch.tensor([[0, 1], [0, 0]]), b: torch.tensor([[2, 3], [0, 1]])}
    x = {"s": torch.eye(4).double(), "d": torch.ones(2, 1).double()}
    results = {}
    for softmax in ("joint", "relation"):
        layer = HeteroAttention(
            (["s", "d"], [a, b]), {"s": 4, "d": 1}, 4, keys="relation", softmax=softmax, linear_bias=False
        ).double()
        with torch.no_grad():
            layer.query["d"].weight.copy_(torch.eye(4)[:, :1])
            for relation, prior in zip((a, b), inputs["prior"], strict=True):  # the priors of the case multiply
                layer.key["__".join(relation)].weight.zero_()
                layer.key["__".join(relation)].weight[0] = inputs["logit"] * prior * 2
                layer.value["__".join(relation)].weight.copy_(torch.eye(4))
        results[softmax] = layer(x, edges, return_attention_weights=True)
    out, weights = results["joint"]
    torch.testing.assert_close(out["d"], expected["out"])
    torch.testing.assert_close(torch.cat([weights[a], weights[b]]).flatten(), expected["weights"])
    _, weights = results["relation"]
    faulty = cases.FAULTY["B22"](inputs)["weights"]
    torch.testing.assert_close(torch.cat([weights[a], weights[b]]).flatten(), faulty)


def test_relations_without_edges_and_types_without_nodes(cases: ModuleType) -> None:
    """Case B24: every type comes back with its own number of rows, in any order of types, with finite gradients."""
    inputs, expected = cases.CASES["B24"]()
    order = list(inputs["sizes"])
    x = {kind: torch.cat([inputs["q"][kind], inputs["k_and_v"][kind]], dim=1).requires_grad_() for kind in order}
    for kinds, relations in ((order, list(inputs["edges"])), (order[::-1], list(inputs["edges"])[::-1])):
        layer = HeteroAttention((kinds, relations), 6, 3, linear_bias=False).double()
        with torch.no_grad():
            for linear in layer.query.values():
                linear.weight.copy_(torch.eye(6)[:3])
            for linear in (*layer.key.values(), *layer.value.values()):
                linear.weight.copy_(torch.eye(6)[3:])
        for given_edges in (inputs["edges"], {r: e for r, e in inputs["edges"].items() if e.shape[1]}):
            out = layer({kind: x[kind] for kind in kinds}, given_edges)
            assert list(out) == kinds
            for kind, count in inputs["sizes"].items():
                assert out[kind].shape == (count, 3)
                torch.testing.assert_close(out[kind], expected[kind])
            total = sum(rows.sum() for rows in out.values())
            grads = torch.autograd.grad(total, [*x.values(), *layer.parameters()])
            assert all(torch.isfinite(grad).all() for grad in grads)


@pytest.mark.parametrize("softmax", ["joint", "relation"])
@pytest.mark.parametrize("keys", ["type", "relation"])
def test_order_of_types_and_relations_changes_nothing(softmax: Any, keys: Any) -> None:
    """Built from the metadata in another order, with the same seed and dicts in another order: the same numbers."""
    x, edges = problem(3)
    layer = build(softmax=softmax, keys=keys, type_prior=True)
    torch.manual_seed(0)
    turned_metadata = (list(SIZES)[::-1], RELATIONS[::-1])
    other = HeteroAttention(turned_metadata, CHANNELS, OUT, HEADS, softmax=softmax, keys=keys, type_prior=True).double()
    other.load_state_dict(layer.state_dict())
    out = layer(x, edges)
    turned = other(dict(reversed(x.items())), dict(reversed(edges.items())))
    assert list(turned) == list(out)[::-1]
    for kind in SIZES:
        assert torch.equal(turned[kind], out[kind])


def test_types_left_out_of_a_batch() -> None:
    """A type without features has no nodes, a relation left out no edges."""
    x, edges = problem(1)
    layer = build(edge_dim={FOLLOWS: 2})
    out = layer({"person": x["person"]}, {FOLLOWS: edges[FOLLOWS]}, {FOLLOWS: torch.randn(9, 2).double()})
    assert {kind: rows.shape[0] for kind, rows in out.items()} == {"camera": 0, "person": 5, "zone": 0, "ghost": 0}
    nothing = layer({}, {})
    assert all(rows.shape == (0, HEADS * OUT) for rows in nothing.values())
    lonely = HeteroAttention((["a"], []), 4, OUT)({"a": torch.randn(2, 4)}, {})
    assert torch.equal(lonely["a"], torch.zeros(2, OUT))


@pytest.mark.parametrize("softmax", ["joint", "relation"])
def test_weights_by_relation(softmax: Any) -> None:
    """In the caller's order, and summing to 1 over the in-edges of a node, of all relations or of each."""
    x, edges = problem(2)
    _, weights = build(softmax=softmax)(x, edges, return_attention_weights=True)
    assert {r: tuple(rows.shape) for r, rows in weights.items()} == {r: (COUNTS[r], HEADS) for r in COUNTS}
    summed = {r: torch.zeros(SIZES[r[2]], HEADS).double().index_add(0, edges[r][1], weights[r]) for r in RELATIONS}
    if softmax == "joint":
        total = sum(summed[r] for r in RELATIONS if r[2] == "person")
        entered = torch.cat([edges[r][1] for r in RELATIONS if r[2] == "person"]).unique()
        torch.testing.assert_close(total[entered], torch.ones(len(entered), HEADS).double())
    else:
        for r in RELATIONS:
            entered = edges[r][1].unique()
            torch.testing.assert_close(summed[r][entered], torch.ones(len(entered), HEADS).double())


def test_a_prior_of_the_users_own() -> None:
    """A bias reads edge and node data by name; a sink and a pattern add as anywhere."""

    class Near(attnops.Bias):
        def forward(self, pairs: attnops.Pairs) -> Tensor:
            return -(pairs.query.time - pairs.key.time).abs() * pairs.edge.weight

    x, edges = problem(4)
    node_data = {"time": {kind: torch.rand(count).double() for kind, count in SIZES.items()}}
    edge_data = {"weight": {relation: torch.rand(count).double() for relation, count in COUNTS.items() if count}}
    layer = build(bias=Near(), relation_prior=False)
    plain = build(relation_prior=False)
    out, weights = layer(x, edges, edge_data=edge_data, node_data=node_data, return_attention_weights=True)
    time, prior = node_data["time"], {}
    for r, weight in edge_data["weight"].items():
        gap = time[r[2]][edges[r][1]] - time[r[0]][edges[r][0]]
        prior[r] = (-gap.abs() * weight).exp()
    expected, wanted = plain(x, edges, edge_data={"prior": prior}, return_attention_weights=True)
    for kind in SIZES:
        torch.testing.assert_close(out[kind], expected[kind])
    for relation in RELATIONS:
        torch.testing.assert_close(weights[relation], wanted[relation])


def test_a_prior_of_zero_forbids() -> None:
    x, edges = problem(5)
    prior = torch.ones(COUNTS[FOLLOWS]).double()
    prior[::2] = 0
    layer = build(keys="relation", linear_bias=False)
    out = layer(x, edges, edge_data={"prior": {FOLLOWS: prior}})
    kept = layer(x, {**edges, FOLLOWS: edges[FOLLOWS][:, 1::2]})
    for kind in SIZES:
        torch.testing.assert_close(out[kind], kept[kind])
    none = layer(x, edges, edge_data={"prior": {r: torch.zeros(COUNTS[r]).double() for r in RELATIONS}})
    assert all((rows == 0).all() for rows in none.values())  # an all -inf group is 0, never NaN


@pytest.mark.parametrize("softmax", ["joint", "relation"])
def test_one_call_of_the_operator(softmax: Any) -> None:
    """Whatever the number of relations, on the edges and not on a dense grid."""
    x = {kind: torch.randn(200, channels).double() for kind, channels in CHANNELS.items()}
    edges = {relation: torch.randint(0, 200, (2, 400)) for relation in RELATIONS}
    with attnops.trace() as plans:
        build(softmax=softmax, type_prior=True)(x, edges)
    assert len(plans) == 1 and plans[0].backend in ("native", "scatter")


def test_dropout_only_in_training() -> None:
    x, edges = problem(7)
    layer = build(dropout=0.5)
    assert not torch.equal(layer(x, edges)["person"], layer(x, edges)["person"])
    layer.eval()
    assert torch.equal(layer(x, edges)["person"], layer(x, edges)["person"])
    torch.testing.assert_close(layer(x, edges)["person"], build()(x, edges)["person"])


@pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled")
def test_sparse_and_hetero_data() -> None:
    data_module = pytest.importorskip("torch_geometric.data", reason="torch-geometric is not installed")
    x, edges = problem(8)
    data = data_module.HeteroData()
    for kind, features in x.items():
        data[kind].x = features
    for relation, edge_index in edges.items():
        data[relation].edge_index = edge_index
    torch.manual_seed(0)
    layer = HeteroAttention(data.metadata(), -1, OUT, HEADS)  # sizes read off the first input
    out = layer.double()(data.x_dict, data.edge_index_dict)
    assert {kind: rows.shape for kind, rows in out.items()} == {kind: (n, HEADS * OUT) for kind, n in SIZES.items()}
    matrix = torch.sparse_coo_tensor(edges[SEES].flip(0), torch.ones(COUNTS[SEES]).double(), (5, 3))
    torch.testing.assert_close(layer(x, {**edges, SEES: matrix})["person"], out["person"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"x_dict": {"dog": torch.randn(2, 4)}}, "x_dict holds the node type 'dog'; the metadata have"),
        ({"x_dict": {"person": torch.randn(2, 4)}}, r"x_dict\['person'\] has 4 features; in_channels has 6"),
        ({"x_dict": {"person": torch.randn(2)}}, r"x_dict\['person'\] is \[2\]; it must be a tensor \[N, F\]"),
        (
            {"edge_index_dict": {("person", "sees", "camera"): torch.zeros(2, 1).long()}},
            r"edge_index_dict holds the relation \('person', 'sees', 'camera'\); the metadata have",
        ),
        (
            {"edge_index_dict": {SEES: torch.tensor([[3], [0]])}},
            r"of the relation \('camera', 'sees', 'person'\): edge_index\[0\] holds .* 3; it must be from 0 to 2",
        ),
        ({"edge_index_dict": {SEES: torch.tensor([[0.0], [0.0]])}}, "of the relation .*: edge_index is torch.float32"),
        ({"edge_attr_dict": {SEES: torch.randn(7, 2)}}, "edge_attr_dict holds .*sees.*, but the layer has no edge_dim"),
        ({"edge_attr_dict": {FOLLOWS: torch.randn(8, 2)}}, r"of the relation .*: edge_attr has shape \[8, 2\]"),
        ({"edge_attr_dict": {FOLLOWS: torch.randn(9, 3)}}, r"edge_attr_dict.* has shape \[9, 3\]; it must be \[E, 2\]"),
        ({"edge_attr_dict": {}}, "edge_attr_dict lacks .*follows.*; it must be"),
        ({"edge_data": {"prior": {SEES: torch.rand(3)}}}, r"edge_data\['prior'\]\[.*\] is .*3.*; .* must be E = 7"),
        ({"edge_data": {"prior": {SEES: -torch.rand(7)}}}, "edge.prior holds -"),
        ({"edge_data": {"speed": {SEES: torch.rand(7)}}}, r"edge_data\['speed'\] lacks .*, which has \d edges"),
        ({"edge_data": {"type": {SEES: torch.rand(7)}}}, "edge_data holds 'type', which the layer itself sets"),
        ({"node_data": {"time": {"camera": torch.rand(3)}}}, r"node_data\['time'\] lacks 'person', which has 5 nodes"),
        ({"node_data": {"time": {"camera": torch.rand(2)}}}, r"node_data\['time'\]\['camera'\] has shape \[2\]"),
        ({"node_data": {"type": {"camera": torch.rand(3)}}}, "node_data holds 'type', which the layer itself sets"),
    ],
)
def test_bad_inputs_are_named(change: dict[str, Any], message: str) -> None:
    x, edges = problem(10)
    arguments = {
        "x_dict": {kind: features.float() for kind, features in x.items()},
        "edge_index_dict": edges,
        "edge_attr_dict": {FOLLOWS: torch.randn(9, 2)},
    }
    if "x_dict" in change:
        change["x_dict"] = arguments["x_dict"] | change["x_dict"]
    if "edge_index_dict" in change:
        change["edge_index_dict"] = edges | change["edge_index_dict"]
    if change.get("edge_attr_dict"):
        change["edge_attr_dict"] = arguments["edge_attr_dict"] | change["edge_attr_dict"]
    layer = HeteroAttention(METADATA, CHANNELS, OUT, HEADS, edge_dim={FOLLOWS: 2})
    with pytest.raises((ValueError, TypeError), match=message):
        layer(**{**arguments, **change})


def test_bad_options_are_named() -> None:
    for options, message in (
        ({"score": "cosine"}, "score is 'cosine'; it must be one of 'dot', 'gatv2'"),
        ({"softmax": "sum"}, "softmax is 'sum'"),
        ({"keys": "edge"}, "keys is 'edge'"),
        ({"edge_dim": {("a", "b", "c"): 2}}, r"edge_dim holds .*, which is not a relation of the metadata"),
    ):
        with pytest.raises(ValueError, match=message):
            build(**options)
    with pytest.raises(ValueError, match="in_channels lacks the node type 'ghost'"):
        HeteroAttention(METADATA, {"camera": 4, "person": 6, "zone": 3}, OUT)
    with pytest.raises(ValueError, match=r"metadata hold the relation .*, but no node type 'b'"):
        HeteroAttention((["a"], [("a", "to", "b")]), 4, OUT)
    with pytest.raises(TypeError, match="metadata is None"):
        HeteroAttention(None, 4, OUT)  # type: ignore[arg-type]


def test_names_that_modules_cannot_have() -> None:
    """Types and relations may be named as they like: with dots, or like a method of a dict."""
    relation = ("keys", "is.a", "v1.2")
    layer = HeteroAttention((["keys", "v1.2"], [relation]), 4, OUT, keys="relation")
    out = layer({"keys": torch.randn(2, 4), "v1.2": torch.randn(3, 4)}, {relation: torch.tensor([[0, 1], [2, 2]])})
    assert {kind: rows.shape for kind, rows in out.items()} == {"keys": (2, OUT), "v1.2": (3, OUT)}
    layer.load_state_dict(layer.state_dict())
