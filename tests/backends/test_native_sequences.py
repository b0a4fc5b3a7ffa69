"""`native` on a grid: every width, level and number of threads, what it knows and what is evaluated for it."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import attnops
from attnops import block_kernel
from attnops.kernels import library
from attnops.testing import assert_close_as_reference
from tests.laws.problems import Crossing
from tests.laws.test_memory import Largest

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason=library.unavailable() or "")


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def run(backend: str, dtype: torch.dtype, sizes: tuple[int, ...], **arguments: Any) -> list[Tensor]:
    """Out, lse and the gradients of query, key, value and of every parameter of the bias."""
    batch, heads, kv_heads, rows, columns, dim, value_dim = sizes
    shapes = ((batch, heads, rows, dim), (batch, kv_heads, columns, dim), (batch, kv_heads, columns, value_dim))
    leaves = [normal(*shape, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]
    bias = arguments.get("bias")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if isinstance(bias, nn.Module):
        bias.to(wide)
        leaves_of_bias = list(bias.parameters())
    elif isinstance(bias, Tensor):
        arguments["bias"] = bias.detach().to(wide).requires_grad_()
        leaves_of_bias = [arguments["bias"]]
    else:
        leaves_of_bias = []
    result = attnops.attend(*leaves, return_lse=True, backend=backend, **arguments)
    assert isinstance(result, attnops.AttentionOutput) and result.lse is not None
    lse = torch.where(torch.isfinite(result.lse), result.lse, 0)
    weighed = (result.out * normal(*result.out.shape, seed=7).to(dtype)).sum().to(wide)
    weighed = weighed + (lse * normal(*lse.shape, seed=8).to(wide)).sum()
    grads = torch.autograd.grad(weighed, leaves + leaves_of_bias)
    return [result.out, result.lse, *grads]


def check(dtype: torch.dtype, sizes: tuple[int, ...], **arguments: Any) -> None:
    got, reference = (run(backend, dtype, sizes, **arguments) for backend in ("native", "reference"))
    golden = run("reference", torch.float64, sizes, **arguments)
    most = max(float(grad.abs().max()) for grad in golden[2:])
    for place, (mine, exact, plain) in enumerate(zip(got, golden, reference, strict=True)):
        kind = "forward" if place < 2 else "gradient" if place < 5 else "parameter"
        least = most if place >= 2 else 0.0
        assert not torch.isnan(mine).any()
        assert_close_as_reference(mine, exact, plain, kind=kind, dtype=dtype, least=least, what=f"result {place}")


def learned(bias: Any) -> Any:
    for seed, parameter in enumerate(bias.parameters()):
        parameter.data = 0.5 * normal(*parameter.shape, seed=seed)
    return bias


DIMS = (1, 3, 5, 7, 13, 63, 64, 65, 128, 256)


@pytest.mark.parametrize("level", library.LEVELS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_width_at_every_level(level: str, dtype: torch.dtype, at_level: Any) -> None:
    at_level(level)
    for place, dim in enumerate(DIMS):
        check(dtype, (1, 2, 1, 37, 41, dim, DIMS[-1 - place]), pattern=attnops.Causal(), bias=attnops.ALiBi(2))


@pytest.fixture
def at_level() -> Any:
    before = library.level()

    def choose(level: str) -> None:
        if library.LEVELS.index(level) > library.LEVELS.index(before):
            pytest.skip(f"this machine has no {level}")
        library.use_level(level)

    yield choose
    library.use_level(before)


@pytest.mark.parametrize(("heads", "kv_heads"), [(1, 1), (3, 3), (8, 2), (32, 32), (32, 1), (7, 1), (130, 1)])
def test_heads_of_every_grouping(heads: int, kv_heads: int) -> None:
    check(torch.float32, (2, heads, kv_heads, 9, 21, 8, 8), pattern=attnops.Causal(), bias=attnops.ALiBi(heads))


NODES = attnops.Coords(
    position=torch.tensor([3, 0, 7, 7, 1] * 60),
    type=torch.arange(300) % 3,
    time=torch.arange(300).double().sqrt(),
    segment=torch.arange(300) // 90,
)
COMBINATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"pattern": attnops.Causal()},
    "window, alibi": {"pattern": attnops.SlidingWindow(50, 3), "bias": lambda: attnops.ALiBi(4)},
    "t5, alibi": {"pattern": attnops.Causal(), "bias": lambda: attnops.RelativeBias(4) + attnops.ALiBi(4)},
    "shaw": {"pattern": attnops.Causal(), "bias": lambda: attnops.RelativeKeys(4, 16, 5)},
    "types, times": {
        "pattern": attnops.SameSegment(), "coords": NODES,
        "bias": lambda: attnops.TypePrior(3, 3, 4) + attnops.TimeGap(4),
    },
    "given positions": {
        "pattern": attnops.SameSegment(), "coords": NODES,
        "bias": lambda: attnops.RelativeBias(4, 8, 6) + attnops.ALiBi(4) + attnops.RelativeKeys(4, 16, 2),
    },
    "documents": {
        "pattern": attnops.SameSegment() & attnops.Causal(), "coords": attnops.Coords(segment=NODES.segment),
    },
    "global": {"pattern": attnops.SlidingWindow(9, 9) | attnops.GlobalTokens([0, 200])},
    "chunks": {"pattern": attnops.Chunked(64) & attnops.Causal()},
    "padding": {"pattern": attnops.Padding(torch.tensor([0, 77])) & attnops.Causal()},
    "a tensor": {"pattern": attnops.Causal(), "bias": lambda: normal(4, 300, 300, seed=9)},
    "softcap": {
        "score": attnops.DotProduct(softcap=3.0), "pattern": attnops.Causal(), "bias": lambda: attnops.ALiBi(4),
    },
    "sink": {"pattern": attnops.Causal(), "bias": lambda: attnops.Sink(4) + attnops.ALiBi(4)},
    "a user's": {"pattern": attnops.Causal(), "bias": lambda: Crossing(4), "coords": attnops.Coords(type=NODES.type)},
    "dilated": {"pattern": attnops.Dilated(3) & attnops.SlidingWindow(40), "bias": lambda: attnops.RelativeBias(4)},
    "mask": {"pattern": attnops.Mask(normal(2, 1, 300, 300) > 0), "bias": lambda: attnops.TimeGap(4), "coords": NODES},
}  # fmt: skip


@pytest.mark.parametrize("name", COMBINATIONS)
@pytest.mark.parametrize("in_blocks", [False, True])
def test_several_tiles_and_blocks(name: str, in_blocks: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """300 queries and keys, which no tile holds; also with what the kernel does not know evaluated in small blocks."""
    if in_blocks:
        monkeypatch.setattr(block_kernel, "ROWS", 70)
    arguments = dict(COMBINATIONS[name])
    if "bias" in arguments:
        bias = arguments["bias"]()
        arguments["bias"] = learned(bias) if isinstance(bias, nn.Module) else bias
    check(torch.float32, (2, 4, 2, 300, 300, 16, 16), **arguments)


@pytest.mark.parametrize("name", [name for name in COMBINATIONS if name not in ("a user's", "dilated", "mask")])
def test_the_kernel_knows_these(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """No grid of pairs is ever evaluated for them."""
    monkeypatch.setattr(block_kernel, "_evaluated", lambda *_: pytest.fail("pattern and bias were evaluated"))
    arguments = dict(COMBINATIONS[name])
    if "bias" in arguments:
        arguments["bias"] = arguments["bias"]()
    run("native", torch.float32, (2, 4, 2, 300, 300, 16, 16), **arguments)


@pytest.mark.parametrize(("rows", "columns"), [(1, 5000), (3, 4100), (16, 3000), (1, 1), (130, 1)])
def test_few_queries_against_many_keys_are_merged(rows: int, columns: int) -> None:
    for dim in (16, 13):
        check(torch.float32, (1, 4, 2, rows, columns, dim, 16), pattern=attnops.Causal(), bias=attnops.ALiBi(4))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision(dtype: torch.dtype) -> None:
    check(dtype, (2, 4, 2, 70, 150, 32, 16), pattern=attnops.Causal(), bias=learned(attnops.RelativeBias(4)))


def test_the_same_bits_with_any_number_of_threads() -> None:
    sizes = (1, 2, 1, 2300, 2300, 16, 16)
    bias = learned(attnops.RelativeBias(2) + attnops.RelativeKeys(2, 16, 3))
    results = []
    for threads in (1, 2, 3):
        torch.set_num_threads(threads)
        try:
            results.append(run("native", torch.float32, sizes, pattern=attnops.Causal(), bias=bias))
        finally:
            torch.set_num_threads(1)
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_two_threads_at_once_give_the_same_numbers() -> None:
    query = normal(1, 4, 400, 32)
    want = attnops.attend(query, query, query, pattern=attnops.Causal(), bias=attnops.ALiBi(4), backend="native")

    def again(_: int) -> bool:
        got = attnops.attend(query, query, query, pattern=attnops.Causal(), bias=attnops.ALiBi(4), backend="native")
        return torch.equal(got, want)  # type: ignore[arg-type]

    with ThreadPoolExecutor(2) as pool:
        assert all(pool.map(again, range(8)))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
def test_a_forked_child_gives_the_same_numbers() -> None:
    """OpenMP's threads do not live on in it; whoever waits for them waits for ever."""
    query = normal(1, 4, 500, 32)
    torch.set_num_threads(2)
    try:
        want = attnops.attend(query, query, query, pattern=attnops.Causal(), bias=attnops.ALiBi(4), backend="native")
        child = os.fork()
        if child == 0:
            signal.alarm(20)
            got = attnops.attend(query, query, query, pattern=attnops.Causal(), bias=attnops.ALiBi(4), backend="native")
            os._exit(0 if got.numpy().tobytes() == want.numpy().tobytes() else 1)  # type: ignore[union-attr]
        assert os.waitpid(child, 0)[1] == 0
    finally:
        torch.set_num_threads(1)


def test_strided_rows_are_read_in_place() -> None:
    query, key, value = (normal(2, 50, 4, 24, seed=seed).transpose(1, 2) for seed in range(3))
    got = attnops.attend(query, key, value, pattern=attnops.Causal(), backend="native")
    want = attnops.attend(*(x.contiguous() for x in (query, key, value)), pattern=attnops.Causal(), backend="native")
    assert torch.equal(got, want)  # type: ignore[arg-type]


# --------------------------------------------------------------------------------------------------- what a user writes
def test_a_bias_of_a_users_own_keeps_no_square_of_n() -> None:
    """16384 tokens: the square is 268 million numbers."""
    n = 16384
    query, key, value = (normal(1, n, 4, seed=seed).requires_grad_() for seed in range(3))
    bias = learned(Crossing(1))
    with Largest() as seen:
        out = attnops.attend(
            query, key, value, pattern=attnops.Causal() & attnops.SlidingWindow(n // 4), bias=bias,
            coords=attnops.Coords(type=torch.arange(n) % 3), backend="native",
        )  # fmt: skip
        out.square().sum().backward()  # type: ignore[union-attr]
    assert seen.numbers <= 2 * block_kernel.NUMBERS < n * n / 16
    assert bias.table.grad.abs().sum() > 0


def test_a_subclass_that_says_otherwise_is_believed() -> None:
    class Far(attnops.ALiBi):
        def forward(self, pairs: attnops.Pairs) -> Tensor:
            return -super().forward(pairs)

    class Later(attnops.Causal):
        def allows(self, pairs: attnops.Pairs) -> Tensor:
            return pairs.key.position >= pairs.query.position

    check(torch.float64, (1, 2, 2, 9, 9, 4, 4), pattern=Later(), bias=Far(2))


def test_a_bias_that_reaches_its_numbers_by_a_closure_learns(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(block_kernel, "ROWS", 7)
    hidden = torch.tensor(0.3, dtype=torch.float64, requires_grad=True)

    class Closure(attnops.Bias):
        def forward(self, pairs: attnops.Pairs) -> Tensor:
            return hidden * (pairs.query.index - pairs.key.index).abs().to(pairs.dtype)

    x = normal(2, 20, 4, dtype=torch.float64)
    grads = []
    for backend in ("native", "reference"):
        out = attnops.attend(x, x, x, bias=Closure(), backend=backend)
        grads.append(torch.autograd.grad(out.square().sum(), hidden)[0])  # type: ignore[union-attr]
    torch.testing.assert_close(grads[0], grads[1])


# ------------------------------------------------------------------------------------------------------------- the rest
def test_garbage_that_nobody_attends_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = (normal(2, 2, 30, 8, seed=seed) for seed in range(3))
    padding = attnops.Padding(torch.tensor([11, 0]))
    want = [attnops.attend(query, key, value, pattern=padding, backend="reference")]
    key[0, :, 11:], value[0, :, 11:], key[1], value[1], query[1] = (float("nan"), float("inf")) * 2 + (float("nan"),)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    for pattern in (padding, padding & attnops.Dilated(1)):  # told by ranges, and evaluated
        for rows in (256, 7):
            monkeypatch.setattr(block_kernel, "ROWS", rows)
            for learns in (True, False):
                with torch.set_grad_enabled(learns):
                    out = attnops.attend(*leaves, pattern=pattern, backend="native")
                torch.testing.assert_close(out, want[0])
                if learns:
                    dquery, *others = torch.autograd.grad(out.sum(), leaves)  # type: ignore[union-attr]
                    assert torch.isfinite(dquery).all() and (dquery[1] == 0).all()
                    for grad in others:
                        assert torch.isfinite(grad).all() and (grad[1] == 0).all() and (grad[0, :, 11:] == 0).all()


def test_garbage_that_some_attend_is_refused_and_auto_goes_on() -> None:
    x = normal(1, 6, 4)
    value = x.clone()
    value[:, 3] = float("nan")
    with pytest.raises(attnops.UnsupportedError, match="not finite where some query may attend"):
        attnops.attend(x, x, value, pattern=attnops.Causal(), backend="native")
    out = attnops.attend(x, x, value, pattern=attnops.Causal())
    assert torch.isfinite(out[:, :3]).all() and torch.isnan(out[:, 3:]).all()  # type: ignore[index]


def test_a_query_of_nan_shows_in_its_row_alone() -> None:
    query, key = normal(1, 5, 4), normal(1, 7, 4, seed=1)
    query[:, 2] = float("nan")
    out = attnops.attend(query, key, key, backend="native")
    assert torch.isnan(out[:, 2]).all() and torch.isfinite(out[:, [0, 1, 3, 4]]).all()  # type: ignore[index]


@pytest.mark.parametrize("rows", [256, 7])
def test_dropout_is_the_same_in_the_backward(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients against finite differences, each evaluation with the same seed."""
    monkeypatch.setattr(block_kernel, "ROWS", rows)
    query, key, value = (normal(1, 2, 9, 4, seed=seed, dtype=torch.float64).requires_grad_() for seed in range(3))
    bias = learned(attnops.RelativeBias(2, 8, 6)).double()

    def forward(*inputs: Tensor) -> Any:
        torch.manual_seed(5)
        pattern = attnops.Causal() if rows == 256 else attnops.Causal() & attnops.Dilated(1)
        return attnops.attend(*inputs[:3], pattern=pattern, bias=bias, dropout=0.4, backend="native")

    assert torch.autograd.gradcheck(forward, (query, key, value, *bias.parameters()))


def test_dropout_differs_by_head_and_row() -> None:
    n = 200
    query, value = torch.zeros(2, 2, n, 1), torch.eye(n).expand(2, 2, n, n)
    kept = attnops.attend(query, query, value, dropout=0.5, backend="native") > 0  # type: ignore[operator]
    rows = kept.flatten(0, 2).float()
    agreement = (rows @ rows.T + (1 - rows) @ (1 - rows).T) / n
    assert float((agreement - torch.eye(len(rows))).max()) < 0.8 and abs(float(rows.mean()) - 0.5) < 0.01


def test_a_second_derivative_raises() -> None:
    x = normal(2, 9, 4).requires_grad_()
    for pattern in (attnops.Causal(), attnops.Causal() & attnops.Dilated(2)):
        out = attnops.attend(x, x, x, pattern=pattern, backend="native")
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)  # type: ignore[union-attr]
        with pytest.raises(RuntimeError):
            grad.sum().backward()


def test_weights_and_other_scores_are_refused() -> None:
    x = normal(2, 9, 4)
    for arguments in ({"return_weights": True}, {"score": attnops.Additive(2, 4)}):
        with pytest.raises(attnops.UnsupportedError, match="without an edge list"):
            attnops.attend(x, x, x, backend="native", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["t5, alibi", "shaw", "types, times", "a user's", "global"])
def test_compiled_training_is_one_graph(name: str) -> None:
    arguments = dict(COMBINATIONS[name])
    if "bias" in arguments:
        arguments["bias"] = learned(arguments["bias"]()).double()
    parameters = list(arguments["bias"].parameters()) if "bias" in arguments else []
    inputs = [normal(1, 4, 300, 16, seed=seed, dtype=torch.float64).requires_grad_() for seed in range(3)]

    def forward(*x: Tensor) -> Any:
        return attnops.attend(*x, backend="native", **arguments)

    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for got, want in zip(*(
        torch.autograd.grad(call(*inputs).square().sum(), inputs + parameters) for call in (compiled, forward)
    ), strict=True):  # fmt: skip
        torch.testing.assert_close(got, want)
    torch._dynamo.reset()


def test_the_operators_pass_opcheck() -> None:
    sizes = ((4, 5), (2, 7), (2, 7))
    query, key, value = (normal(2, heads, count, 8, seed=count).requires_grad_() for heads, count in sizes)
    ranges = torch.tensor([[0, 3], [0, 4], [1, 5], [0, 0], [2, 7]], dtype=torch.int32).view(1, 5, 1, 2)
    table, additive = normal(1, 4, 1, 11).requires_grad_(), normal(2, 1, 5, 7).requires_grad_()
    nothing = torch.empty(0, dtype=torch.long)
    slope, spots = normal(4).requires_grad_(), [torch.rand(1, 5).double(), torch.rand(2, 7).double()]
    full = (ranges, additive, [table], [nothing] * 3, [0, 0, 4, 1], [slope], spots)
    bare = (None, None, [], [], [0, 0], [], [])
    for terms in (full, bare):
        inputs = (query, key, value, *terms, 0.3, 0.0, 0.0, None)
        torch.library.opcheck(torch.ops.attnops.block_attention.default, inputs)
        constants = tree_map_only(Tensor, torch.Tensor.detach, inputs)
        out, lse = torch.ops.attnops.block_attention(*constants)
        arguments = (normal(*out.shape), normal(*lse.shape), out, lse, *constants, terms is full)
        torch.library.opcheck(torch.ops.attnops.block_attention_backward.default, arguments)


def test_vmap_joins_the_batch() -> None:
    inputs = [normal(3, 2, 9, 4, seed=seed) for seed in range(3)]
    bias = learned(attnops.RelativeBias(2, 8, 6) + attnops.RelativeKeys(2, 4, 2))

    def one(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return attnops.attend(query, key, value, pattern=attnops.Causal(), bias=bias, backend="native")

    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(one)(*inputs), one(*inputs))


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7F800001, -1])
def test_any_nan_stays_a_nan(bits: int) -> None:
    """Uninitialised memory holds NaNs of every payload; none becomes a number."""
    query, key, value = torch.randn(3, 1, 2, 30, 16)
    key[:, :, 0] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    out = attnops.attend(query, key, value, backend="native", return_lse=True)
    assert isinstance(out, attnops.AttentionOutput) and out.lse is not None
    assert torch.isnan(out.out).all() and torch.isnan(out.lse).all()
    with pytest.raises(attnops.UnsupportedError, match="finite"):
        attnops.attend(query, key, value, pattern=attnops.Causal(), backend="native")


def test_more_rows_than_32_bits_count_are_refused() -> None:
    query = torch.randn(1, 1, 1, 4)
    keys = query.expand(1, 1, 2**31 + 5, 4)
    with pytest.raises(attnops.UnsupportedError, match="counted in 32 bits"):
        attnops.attend(query, keys, keys, pattern=attnops.SlidingWindow(3), backend="native")
