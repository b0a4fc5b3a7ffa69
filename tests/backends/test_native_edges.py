"""The compiled kernel for edge lists: every width, hubs in parts, garbage, and gradients of all it takes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.autograd import forward_ad
from torch.fx.experimental.proxy_tensor import make_fx

import attnops
from attnops.kernels import edge_attention as kernel
from attnops.kernels import library
from attnops.kernels.edge_attention import native_edges
from attnops.testing import assert_close_as_reference
from tests.laws.test_memory import Largest

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason=str(library.unavailable()))

WIDTHS = (1, 3, 5, 7, 8, 13, 16, 32, 63, 64, 65, 128, 256)


@pytest.fixture(params=[False, True], ids=["whole", "parts"])
def pieces(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with rows of more than six edges cut into parts of three."""
    if request.param:
        monkeypatch.setattr(kernel, "WORK", 1)
        monkeypatch.setattr(kernel, "FEWEST", 3)


@dataclass
class Made:
    """A graph with a hub, duplicates, self-loops, nodes that hear nobody; vectors `[N, H, D]` seen as `[H, N, D]`."""

    heads: int = 2
    kv_heads: int = 2
    dim: int = 8
    value_dim: int = 8
    edges: int = 400
    queries: int = 30
    keys: int = 20
    score: str = "dot"
    seed: int = 0

    def random(self, *shape: int, dtype: torch.dtype) -> Tensor:
        self.seed += 1
        return torch.randn(*shape, generator=torch.Generator().manual_seed(self.seed), dtype=torch.float64).to(dtype)

    def run(self, backend: str, dtype: torch.dtype = torch.float64, **options: Any) -> dict[str, Tensor]:
        """out, lse, weights and every gradient by name."""
        self.seed = 0
        random = torch.Generator().manual_seed(3)
        sources = torch.randint(0, self.keys, (self.edges,), generator=random)
        targets = torch.randint(0, self.queries, (self.edges,), generator=random)
        targets[::2], sources[1::3], targets[targets == 4] = 7, 5, 0
        graph = attnops.Edges(torch.stack([sources, targets]).int(), self.queries, self.keys)
        query = self.random(self.queries, self.heads, self.dim, dtype=dtype).transpose(0, 1).requires_grad_()
        key = self.random(self.keys, self.kv_heads, self.dim, dtype=dtype).transpose(0, 1).requires_grad_()
        value = self.random(self.keys, self.kv_heads, self.value_dim, dtype=dtype).transpose(0, 1).requires_grad_()
        bias = self.random(self.heads, self.edges, dtype=dtype)
        bias[:, ::7] = float("-inf")
        bias[0, 1::5] = float("-inf")
        inputs = {"query": query, "key": key, "value": value, "bias": bias.requires_grad_()}
        score = self.make_score(dtype)
        inputs |= {} if score is None else dict(score.named_parameters())
        got = attnops.attend(
            query, key, value, pattern=graph, bias=bias, score=score, return_lse=True, return_weights=True,
            backend=backend, **options,
        )  # fmt: skip
        assert isinstance(got, attnops.AttentionOutput) and got.lse is not None and got.weights is not None
        results = {"out": got.out, "lse": got.lse, "weights": got.weights}
        upstream = [self.random(*x.shape, dtype=torch.float64).to(x.dtype) for x in results.values()]
        finite = [x.masked_fill(~torch.isfinite(x), 0) for x in results.values()]
        grads = torch.autograd.grad(finite, list(inputs.values()), upstream)
        return {**results, **{f"gradient of {name}": grad for name, grad in zip(inputs, grads, strict=True)}}

    def make_score(self, dtype: torch.dtype) -> attnops.Score | None:
        torch.manual_seed(5)
        scores = {
            "dot": lambda: None,
            "softcap": lambda: attnops.DotProduct(softcap=3.0),
            "gatv2": lambda: attnops.Additive(self.heads, self.dim, "leaky_relu"),
            "bahdanau": lambda: attnops.Additive(self.heads, self.dim),
            "gat": lambda: attnops.SeparableAdditive(self.heads, self.dim),
        }
        score = scores[self.score]()  # type: ignore[no-untyped-call]
        return score if score is None else score.to(dtype)


def check(made: Made, dtype: torch.dtype) -> None:
    got, golden, reference = made.run("native", dtype), made.run("reference"), made.run("reference", dtype)
    largest = max(float(grad[grad.isfinite()].abs().max()) for name, grad in golden.items() if "gradient" in name)
    for name, result in got.items():
        kind = "forward" if "gradient" not in name else "gradient" if name.split()[-1] in VECTORS else "parameter"
        least = 0.0 if kind == "forward" else largest
        bound = {"kind": kind, "dtype": dtype, "least": least}
        assert_close_as_reference(result, golden[name], reference[name], what=name, **bound)  # type: ignore[arg-type]


VECTORS = ("query", "key", "value")


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("dim", WIDTHS)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=str)
def test_every_width(dim: int, dtype: torch.dtype) -> None:
    check(Made(dim=dim, value_dim=WIDTHS[WIDTHS.index(dim) - 1]), dtype)


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("score", ["softcap", "gatv2", "bahdanau", "gat"])
@pytest.mark.parametrize("dim", [1, 5, 16, 24])
def test_every_score(score: str, dim: int) -> None:
    check(Made(score=score, dim=dim, heads=4, kv_heads=2), torch.float32)


@pytest.mark.parametrize("heads", [1, 2, 8, 12, 32])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_heads_in_groups(heads: int, dtype: torch.dtype) -> None:
    for kv_heads in {1, heads // 2 or 1, heads}:
        check(Made(heads=heads, kv_heads=kv_heads), dtype)


@pytest.mark.parametrize("level", library.levels() if library.unavailable() is None else ())
def test_every_vector_level(level: str) -> None:
    before = library.level()
    library.use_level(level)
    try:
        for dim in (1, 4, 8, 16, 20, 64):
            for score in ("dot", "gatv2"):
                check(Made(dim=dim, value_dim=dim, score=score), torch.float32)
    finally:
        library.use_level(before)


@pytest.mark.usefixtures("pieces")
def test_dropout_is_drawn_once_for_forward_and_backward() -> None:
    """The function of one seed is linear in value: its gradient is exact, and the mean weight is 1."""
    graph = attnops.Edges(torch.randint(0, 50, (2, 4000)), 50, 50)
    query, key = torch.randn(2, 3, 50, 8, dtype=torch.float64)
    value = torch.randn(3, 50, 8, dtype=torch.float64, requires_grad=True)

    def run(value: Tensor, seed: int) -> attnops.AttentionOutput:
        torch.manual_seed(seed)
        out = attnops.attend(
            query, key, value, pattern=graph, dropout=0.4, backend="native", return_weights=True, return_lse=True
        )
        assert isinstance(out, attnops.AttentionOutput)
        return out

    upstream = torch.randn(3, 50, 8, dtype=torch.float64)
    got = run(value, 1)
    (grad,) = torch.autograd.grad(got.out, value, upstream)
    step = torch.randn_like(value)
    change = run(value.detach() + step, 1).out - got.out.detach()
    torch.testing.assert_close((change * upstream).sum(), (grad * step).sum())
    assert got.weights is not None
    share = float((got.weights == 0).double().mean())
    assert 0.37 < share < 0.43 and not torch.equal(run(value, 2).out, got.out)


def test_gradients_of_query_key_bias_and_score_under_dropout() -> None:
    graph = attnops.Edges(torch.randint(0, 6, (2, 30)), 6, 6)
    score = attnops.Additive(2, 3).double()

    def out(query: Tensor, key: Tensor, value: Tensor, bias: Tensor, a: Tensor) -> Tensor:
        torch.manual_seed(0)
        result = torch.func.functional_call(  # type: ignore[no-untyped-call]
            _Call(graph, score), {"score.a": a}, (query, key, value, bias)
        )
        assert isinstance(result, Tensor)
        return result

    vectors = [torch.randn(2, 6, 3, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    bias = torch.randn(2, 30, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(out, (*vectors, bias, score.a))


class _Call(torch.nn.Module):
    def __init__(self, graph: attnops.Edges, score: attnops.Score) -> None:
        super().__init__()
        self.graph, self.score = graph, score

    def forward(self, query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> Tensor:
        out = attnops.attend(
            query, key, value, pattern=self.graph, bias=bias, score=self.score, dropout=0.3, backend="native"
        )
        assert isinstance(out, Tensor)
        return out


@pytest.mark.usefixtures("pieces")
@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("score", ["dot", "gatv2"])
def test_forbidden_rows_may_hold_anything(garbage: float, score: str) -> None:
    """A key that is forbidden to one head and query alone reaches neither, in either direction."""
    graph = attnops.Edges(torch.tensor([[0, 1, 2, 1, 2, 2] * 3, [0, 0, 0, 1, 1, 2] * 3]), 4, 3)
    bias = torch.zeros(2, 18)
    bias[:, graph.source == 2] = float("-inf")
    vectors = [torch.randn(2, n, 4) for n in (4, 3, 3)]
    made = attnops.Additive(2, 4, "leaky_relu") if score == "gatv2" else None

    def run(fill: float) -> list[Tensor]:
        query, key, value = (x.clone() for x in vectors)
        key[:, 2], value[:, 2], query[:, 2:] = fill, fill, fill  # queries 2 and 3 hear nobody
        inputs = [x.requires_grad_() for x in (query, key, value)]
        out = attnops.attend(*inputs, pattern=graph, bias=bias, score=made, backend="native")
        assert isinstance(out, Tensor)
        return [out, *torch.autograd.grad(out.sum() + out.square().sum(), inputs)]

    for dirty, clean in zip(run(garbage), run(0.0), strict=True):
        assert torch.equal(dirty, clean)


@pytest.mark.parametrize("backend", ["native", "scatter", "reference"])
def test_a_row_that_no_edge_joins_reaches_no_parameter(backend: str) -> None:
    graph = attnops.Edges(torch.tensor([[0, 1], [0, 1]]), 3, 3)
    score = attnops.SeparableAdditive(2, 4)
    query, key, value = torch.randn(3, 2, 3, 4)
    query[:, 2] = key[:, 2] = value[:, 2] = float("nan")
    out = attnops.attend(query, key, value, pattern=graph, score=score, backend=backend)
    assert isinstance(out, Tensor)
    assert all(torch.isfinite(grad).all() for grad in torch.autograd.grad(out.square().sum(), score.parameters()))


def test_nan_at_an_allowed_edge_is_not_hidden() -> None:
    graph = attnops.Edges(torch.tensor([[0, 1], [0, 1]]), 2, 2)
    query, key, value = torch.randn(3, 1, 2, 4)
    key[0, 1] = float("nan")
    out = attnops.attend(query, key, value, pattern=graph, backend="native")
    assert isinstance(out, Tensor)
    assert torch.isfinite(out[0, 0]).all() and torch.isnan(out[0, 1]).all()


def test_rows_are_read_where_they_lie() -> None:
    """`[N, H, D]` seen as `[H, N, D]`, and a slice of a wider row, are not copied."""
    nodes = 1000
    graph = attnops.Edges(torch.randint(0, nodes, (2, 50)), nodes, nodes)
    wide = torch.randn(nodes, 4, 48)
    query, key, value = (part.transpose(0, 1) for part in wide.split(16, -1))
    graph.sorted()
    with Largest() as seen, torch.no_grad():
        attnops.attend(query, key, value, pattern=graph, backend="native")
    assert seen.numbers <= nodes * 4 * 16  # the output


@pytest.mark.parametrize("with_term", [False, True])
def test_opcheck(with_term: bool) -> None:
    csr = attnops.Edges(torch.randint(0, 5, (2, 12)), 5, 5).sorted()
    query, key, value = (torch.randn(2, 3, 5, 4, requires_grad=True) for _ in range(3))
    bias, a = torch.randn(2, 3, 12, requires_grad=True), torch.randn(3, 4, requires_grad=True)
    term = torch.randn(2, 3, 12, 4, requires_grad=True) if with_term else None
    walk = (csr.pointer, csr.source, csr.target, csr.source_pointer, csr.source_order, csr.order)
    arguments = (
        query, key, value, bias, a if with_term else None, term, *walk,
        "tanh" if with_term else "dot", 0.5, 0.0, 0.2, 0.25, torch.tensor(7), True, True,
    )  # fmt: skip
    torch.library.opcheck(native_edges.traced, arguments)
    out, lse, _, scores, rest = native_edges.traced(*(x.detach() if isinstance(x, Tensor) else x for x in arguments))
    options = arguments[12:18]
    torch.library.opcheck(
        native_edges.traced_backward,
        (torch.randn_like(out), None, None, *(x.detach() if isinstance(x, Tensor) else x for x in arguments[:12]),
         *options, out, lse, scores, rest, [True, with_term, with_term]),
    )  # fmt: skip


def test_traced_and_eager_calls_are_one_function() -> None:
    csr = attnops.Edges(torch.randint(0, 9, (2, 60)), 9, 9).sorted()
    query, key, value = (torch.randn(2, 3, 9, 4, requires_grad=True) for _ in range(3))
    bias = torch.randn(2, 3, 60, requires_grad=True)
    walk = kernel.Walk(
        csr.pointer, csr.source, csr.target, csr.source_pointer, csr.source_order, csr.order, "dot", 0.5, 2.0, 0.0,
        0.5, torch.tensor(3),
    )  # fmt: skip
    inputs = (query, key, value, bias)
    results = []
    for eager in (False, True):
        made = native_edges(*inputs, None, None, walk, True, True, eager)
        results.append([*made, *torch.autograd.grad([x.sum() for x in made], inputs)])
    for traced, direct in zip(*results, strict=True):
        assert torch.equal(traced, direct)


def test_no_second_derivative_is_given_in_silence() -> None:
    graph = attnops.Edges(torch.randint(0, 5, (2, 12)), 5, 5)
    inputs = [torch.randn(1, 5, 4, requires_grad=True) for _ in range(3)]
    out = attnops.attend(*inputs, pattern=graph, backend="native")
    assert isinstance(out, Tensor)
    with pytest.raises(NotImplementedError, match=r"second derivative.*scatter"):
        torch.autograd.grad(out.square().sum(), inputs[0], create_graph=True)

    def loss(query: Tensor) -> Tensor:
        return attnops.attend(query, *inputs[1:], pattern=graph, backend="native").square().sum()  # type: ignore[union-attr]

    with pytest.raises(NotImplementedError, match="second derivative"):
        torch.autograd.functional.hessian(loss, inputs[0].detach())  # type: ignore[no-untyped-call]


@pytest.mark.parametrize("pattern", [attnops.Causal(), attnops.Edges(torch.randint(0, 5, (2, 12)), 5, 5)], ids=str)
def test_every_tracer_sees_the_call(pattern: attnops.Pattern) -> None:
    """A tracer that is not torch.compile watches as well: fake tensors, torch.jit.trace, make_fx, forward mode."""
    query, key, value = torch.randn(3, 2, 5, 4)

    def run(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        return attnops.attend(query, key, value, pattern=pattern, backend="native")  # type: ignore[return-value]

    want = run(query, key, value)
    other = [torch.randn_like(x) for x in (query, key, value)]
    grid = isinstance(pattern, attnops.Causal)  # an edge list holds real tensors, which do not mix with fake ones
    for mode in ("real", "fake") if grid else ("real",):
        traced = make_fx(run, tracing_mode=mode)(query, key, value)
        torch.testing.assert_close(traced(query, key, value), want)
        torch.testing.assert_close(traced(*other), run(*other))
    if grid:
        with FakeTensorMode() as fake:
            assert run(*(fake.from_tensor(x) for x in (query, key, value))).shape == want.shape
    with forward_ad.dual_level(), pytest.raises(attnops.UnsupportedError, match="derivatives"):
        run(forward_ad.make_dual(query, torch.ones_like(query)), key, value)


def test_terms_of_edges_enter_the_score() -> None:
    """aᵀσ(q + k + e), the e read in the caller's order, with its gradient."""
    graph_of = attnops.Edges
    ends, terms = torch.randint(0, 8, (2, 40)), torch.randn(40, 2 * 6, dtype=torch.float64, requires_grad=True)
    vectors = [torch.randn(3, 2, 8, 6, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    for kind in (attnops.Additive, attnops.SeparableAdditive):
        torch.manual_seed(0)
        score = kind(2, 6).double()
        score.edge_term = "vector"
        data = terms if kind is attnops.Additive else terms[:, :2]
        results = []
        for backend in ("native", "scatter", "reference"):
            graph = graph_of(ends, 8, 8, vector=data)
            out = attnops.attend(*vectors, pattern=graph, score=score, backend=backend)
            assert isinstance(out, Tensor)
            results.append([out, *torch.autograd.grad(out.square().sum(), [*vectors, terms, *score.parameters()])])
        for got, scatter, want in zip(*results, strict=True):
            torch.testing.assert_close(got, want)
            torch.testing.assert_close(scatter, want)
