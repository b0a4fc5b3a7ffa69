"""`native` on a grid: every width, level and number of threads, what it knows and what is evaluated for it."""

from __future__ import annotations

import os
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops
from attnops import block_kernel
from attnops.kernels import library
from tests.backends.sequences import COMBINATIONS, check, learned, normal, run
from tests.laws.problems import Crossing
from tests.laws.test_memory import Largest

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason=library.unavailable() or "")
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
