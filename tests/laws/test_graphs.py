"""Laws 5, 6 and 7: the same bits each run; a multigraph keeps its edges; sizes are what is declared."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops import Edges
from tests.laws.problems import BACKENDS, EDGES_ALONE, TRAINING, Built, Problem, hold
from tests.laws.test_forbidden import close

pytestmark = pytest.mark.usefixtures("poison")
LISTS = [name for name in BACKENDS if name in ("reference", "scatter", "native", "triton")]


def everything(built: Built, backend: str) -> dict[str, Tensor]:
    """Output and, where the backend trains, every gradient."""
    result = built.attend(backend)
    tensors = {"out": result.out} | ({} if result.lse is None else {"lse": result.lse})
    return tensors | (built.gradients(result) if built.grad else {})


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_inputs_give_the_same_bits(backend: str) -> None:
    def law(problem: Problem) -> None:
        first, second = (everything(problem.build(grad=backend in TRAINING), backend) for _ in range(2))
        for name, tensor in first.items():
            assert torch.equal(tensor, second[name]), name

    hold(backend, law)


THREADED: dict[str, Callable[[int], tuple[Any, attnops.Score | None]]] = {
    "tensor": lambda h: (torch.nn.Parameter(torch.zeros(h, 1)), None),
    "attr": lambda h: (attnops.EdgeBias(3, h), None),
    "edge type": lambda h: (attnops.EdgeTypePrior(2, h), None),
    "prior": lambda h: (attnops.LogPrior(), None),
    "distance": lambda h: (attnops.Distance(h, 1), None),
    "time": lambda h: (attnops.TimeGap(h), None),
    "type": lambda h: (attnops.TypePrior(2, 2, h), None),
    "t5": lambda h: (attnops.RelativeBias(h), None),
    "shaw": lambda h: (attnops.RelativeKeys(h, 16, 4), None),
    "sink": lambda h: (attnops.Sink(h), None),
    "gatv2": lambda h: (None, attnops.Additive(h, 16, activation="leaky_relu")),
    "gat": lambda h: (None, attnops.SeparableAdditive(h, 16)),
}


@pytest.mark.parametrize("prior", THREADED)
@pytest.mark.parametrize("backend", [name for name in ("scatter", "native") if name in BACKENDS])
def test_the_number_of_threads_changes_no_bit(backend: str, prior: str) -> None:
    random = torch.Generator().manual_seed(0)
    nodes, count, heads = 300, 20_000, 4
    ends = torch.randint(0, nodes, (2, count), generator=random)
    ends[1, :5000] = 7  # a hub
    data = {"attr": torch.randn(count, 3, generator=random), "prior": torch.rand(count, generator=random)}
    data |= {name: torch.randint(0, 2, (count,), generator=random) for name in ("type", "distance")}
    vectors = torch.randn(3, heads, nodes, 16, generator=random)
    time, kinds = torch.rand(nodes, generator=random), torch.randint(0, 2, (nodes,), generator=random)
    bias, score = THREADED[prior](heads)
    parameters = (
        [bias] if isinstance(bias, Tensor) else [p for module in (bias, score) if module for p in module.parameters()]
    )

    def run(threads: int) -> list[Tensor]:
        torch.set_num_threads(threads)
        try:
            real = {name: data[name].clone().requires_grad_() for name in ("attr", "prior")}
            coords = attnops.Coords(time=time.clone().requires_grad_(), type=kinds)
            leaves = [*(x.clone().requires_grad_() for x in vectors), *real.values(), coords.time, *parameters]
            pattern = Edges(ends, nodes, nodes, **{**data, **real})
            out = attnops.attend(*leaves[:3], pattern=pattern, bias=bias, score=score, coords=coords, backend=backend)
            return [out.detach(), *torch.autograd.grad(out.square().sum(), leaves, allow_unused=True)]
        finally:
            torch.set_num_threads(1)

    names = ["out", "query", "key", "value", "attr", "prior", "time", *("parameter" for _ in parameters)]
    for name, one, two in zip(names, run(1), run(2), strict=True):
        assert one is None or torch.equal(one, two), f"{name} has other bits with two threads than with one"


def reordered(edges: Edges, order: Tensor) -> Edges:
    data = {name: tensor[order] for name, tensor in edges.data.items()}
    return Edges(edges.edge_index[:, order], edges.num_queries, edges.num_keys, **data)


@pytest.mark.parametrize("backend", LISTS)
def test_the_order_of_edges_changes_the_order_of_weights_alone(backend: str) -> None:
    def law(problem: Problem) -> None:
        built = problem.build()
        assert built.edges is not None
        order = torch.randperm(built.edges.num_edges, generator=problem.random("order"))
        pattern = reordered(built.edges, order)
        bias = built.bias
        if isinstance(bias, Tensor) and bias.shape[-1] > 1:
            bias = bias[..., order]
        plain = built.attend(backend, return_weights=True)
        moved = built.attend(backend, return_weights=True, pattern=_refiltered(built, pattern), bias=bias)
        close(moved.out, plain.out, "out")
        close(moved.weights, plain.weights[..., order], "weights")

    hold(backend, law, num_edges=9, dtype=torch.float64)


def _refiltered(built: Built, edges: Edges) -> attnops.Pattern:
    assert built.pattern is not None
    return edges if built.pattern.filter is None else edges & built.pattern.filter


@pytest.mark.parametrize("backend", LISTS)
def test_renaming_nodes_renames_rows_alone(backend: str) -> None:
    def law(problem: Problem) -> None:
        built = problem.build()
        assert built.edges is not None
        rows = torch.randperm(problem.num_queries, generator=problem.random("rows"))  # new row r was row rows[r]
        columns = torch.randperm(problem.num_keys, generator=problem.random("columns"))
        plain = built.attend(backend).out
        at = torch.stack([columns.argsort()[built.edges.source], rows.argsort()[built.edges.target]])
        renamed = Edges(at, problem.num_queries, problem.num_keys, **built.edges.data)
        built.query, built.key, built.value = (
            built.query[..., rows, :],
            built.key[..., columns, :],
            built.value[..., columns, :],
        )
        positions = built.coords
        built.coords = tuple(
            attnops.Coords(position=_position(side, count, problem, end)[..., order], **_rest(side, order))
            for side, order, count, end in zip(
                positions, (rows, columns), (problem.num_queries, problem.num_keys), (True, False), strict=True
            )
        )
        moved = built.attend(backend, pattern=renamed).out
        close(moved, plain[..., rows, :], "out")

    hold(backend, law, num_edges=9, pattern=None, dtype=torch.float64)


def _position(side: attnops.Coords, count: int, problem: Problem, queries: bool) -> Tensor:
    if "position" in side:
        return side.position
    return torch.arange(count) + (problem.num_keys - problem.num_queries if queries else 0)


def _rest(side: attnops.Coords, order: Tensor) -> dict[str, Tensor]:
    return {name: tensor[..., order] for name, tensor in side.data.items() if name != "position"}


@pytest.mark.parametrize("backend", LISTS)
def test_an_edge_listed_twice_is_two_pairs(backend: str) -> None:
    """Twice the weight of an edge listed once: the same as log 2 on its logit."""
    ends = torch.tensor([[0, 1, 2, 1], [0, 0, 0, 2]])
    query, key, value = (torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(s)).double() for s in range(3))
    twice = Edges(torch.cat([ends, ends[:, 1:2]], 1), 3, 3)
    result = attnops.attend(query, key, value, pattern=twice, return_weights=True, backend=backend)
    log2 = torch.tensor([0.0, 2.0, 0.0, 0.0], dtype=torch.float64).clamp(min=1).log()
    once = attnops.attend(
        query, key, value, pattern=Edges(ends, 3, 3), bias=log2, return_weights=True, backend="reference"
    )
    close(result.out, once.out, "out")
    close(result.weights[..., [1, 4]].sum(-1), once.weights[..., 1], "weights of the two")
    assert torch.equal(result.weights[..., 1], result.weights[..., 4])
    for dense in (name for name in BACKENDS if name not in LISTS):
        with pytest.raises(attnops.UnsupportedError, match="duplicate"):
            attnops.attend(query, key, value, pattern=twice, backend=dense)


@pytest.mark.parametrize("backend", BACKENDS)
def test_no_self_loop_is_added_and_sizes_are_those_declared(backend: str) -> None:
    edges = Edges(torch.tensor([[0], [1]]), num_queries=4, num_keys=5)
    x, y = torch.randn(1, 4, 2), torch.randn(1, 5, 2)
    out = attnops.attend(x, y, y, pattern=edges, backend=backend)
    assert out.shape == (1, 4, 2)
    assert torch.equal(out[0, [0, 2, 3]], torch.zeros(3, 2)) and torch.allclose(out[0, 1], y[0, 0])


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("empty", ["queries", "keys", "both", "batch", "edges", "values", "dims"])
def test_empty_problems_work(backend: str, empty: str) -> None:
    batch = (0,) if empty == "batch" else (2,)
    nq, nk = 0 if empty in ("queries", "both") else 3, 0 if empty in ("keys", "both") else 4
    dim, width = 0 if empty == "dims" else 4, 0 if empty in ("values", "dims") else 4
    training = backend in TRAINING
    query = torch.randn(*batch, 2, nq, dim, requires_grad=training)
    key = torch.randn(*batch, 2, nk, dim, requires_grad=training)
    value = torch.randn(*batch, 2, nk, width, requires_grad=training)
    table = attnops.ALiBi(2) if backend == "flex" else attnops.RelativeBias(2, 8, 6)
    grid = torch.cartesian_prod(torch.arange(nk), torch.arange(nq)).t()
    listed = Edges(grid[:, :0] if empty == "edges" else grid, nq, nk)
    patterns = {None: None, "edges": listed, "causal": attnops.Causal()}
    for name, pattern in patterns.items():
        if (backend in EDGES_ALONE and name != "edges") or (empty == "edges" and name != "edges"):
            continue
        for bias in (None, table):
            out = attnops.attend(query, key, value, pattern=pattern, bias=bias, backend=backend)
            assert out.shape == (*batch, 2, nq, width) and torch.isfinite(out).all()
            if empty in ("keys", "edges"):
                assert (out == 0).all()
            if training:
                leaves = [query, key, value, *(bias.parameters() if bias is not None else [])]
                for grad, leaf in zip(torch.autograd.grad(out.sum(), leaves, allow_unused=True), leaves, strict=True):
                    assert grad is None or (grad.shape == leaf.shape and torch.isfinite(grad).all())


@pytest.mark.parametrize("index_dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("backend", BACKENDS)
def test_edge_ends_may_be_int32_and_are_copied(backend: str, index_dtype: torch.dtype) -> None:
    ends = torch.tensor([[0, 1, 2], [1, 1, 0]], dtype=index_dtype)
    edges = Edges(ends, 3, 3)
    x = torch.randn(1, 3, 2)
    before = attnops.attend(x, x, x, pattern=edges, backend=backend)
    ends.zero_()
    assert torch.equal(attnops.attend(x, x, x, pattern=edges, backend=backend), before)


def test_edges_and_a_pattern_keep_order_and_weights() -> None:
    ends = torch.tensor([[2, 0, 1, 2, 2], [0, 2, 1, 2, 0]])
    x = torch.randn(2, 3, 4)
    filtered = Edges(ends, 3, 3) & attnops.Causal()
    for backend in LISTS:
        weights = attnops.attend(x, x, x, pattern=filtered, return_weights=True, backend=backend).weights
        assert weights.shape == (2, 5)
        causal = ends[0] <= ends[1]
        assert (weights[:, ~causal] == 0).all() and (weights[:, causal] > 0).all()


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in EDGES_ALONE])
def test_two_edge_lists_and_the_algebra_see_sets_of_pairs(backend: str) -> None:
    left = Edges(torch.tensor([[0, 1, 2, 1], [0, 1, 2, 1]]), 3, 3)
    right = Edges(torch.tensor([[0, 2], [0, 1]]), 3, 3)
    x = torch.randn(1, 3, 2, dtype=torch.float64)
    masks = {}
    for name, edges in (("left", left), ("right", right)):
        masks[name] = torch.zeros(3, 3, dtype=torch.bool)
        masks[name][edges.target, edges.source] = True
    cases = {
        "and": (left & right, masks["left"] & masks["right"]),
        "or": (left | right, masks["left"] | masks["right"]),
        "not": (~left, ~masks["left"]),
        "or causal": (left | attnops.Causal(), masks["left"] | torch.ones(3, 3).tril().bool()),
    }
    for name, (pattern, mask) in cases.items():
        close(attnops.attend(x, x, x, pattern=pattern, backend=backend), attnops.attend(x, x, x, pattern=mask), name)


def test_every_small_multigraph_agrees_with_a_loop_over_its_edges() -> None:
    """All edge lists of up to two edges between two nodes."""
    x = torch.randn(2, 2, dtype=torch.float64)
    pairs = list(itertools.product(range(2), range(2)))
    for count in range(3):
        for chosen in itertools.product(pairs, repeat=count):
            ends = torch.tensor(chosen, dtype=torch.long).view(-1, 2).t()
            want = torch.zeros(2, 2, dtype=torch.float64)
            for row in range(2):
                logits = torch.tensor(
                    [float(x[row] @ x[j]) / 2**0.5 for j, i in chosen if i == row], dtype=torch.float64
                )
                for weight, j in zip(logits.softmax(0), [j for j, i in chosen if i == row], strict=True):
                    want[row] += weight * x[j]
            for backend in LISTS:
                got = attnops.attend(x[None], x[None], x[None], pattern=Edges(ends, 2, 2), backend=backend)
                close(got[0], want, str(chosen))
