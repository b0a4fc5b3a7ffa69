"""Laws 1 and 2: a row that hears nobody is zeros and learns nothing; what is forbidden is never read."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops.testing import assert_close_as_reference
from tests.laws.problems import BACKENDS, EDGES_ALONE, TRAINING, Built, Problem, hold

pytestmark = pytest.mark.usefixtures("poison")
NAN, INF = float("nan"), float("inf")
EXACT = {"dtype": torch.float64}


def close(got: Tensor, want: Tensor, what: str, least: float = 1.0) -> None:
    assert_close_as_reference(got, want, want, kind="gradient", least=least, what=what)


def dead_rows(built: Built) -> Tensor:
    """`[*B, H, Nq]`"""
    dead = ~built.allowed().any(-1)
    return dead.view(*built.problem.batch, *dead.shape[1:])


# --------------------------------------------------------------------------------------------------------------- law 1
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_row_that_hears_nobody_is_zeros(backend: str) -> None:
    def law(problem: Problem) -> None:
        built = problem.build()
        dead = dead_rows(built)
        result = built.attend(backend)
        assert not torch.isnan(result.out).any() and (result.out[dead] == 0).all()
        if result.lse is not None:
            assert (result.lse[dead] == -INF).all() and torch.isfinite(result.lse[~dead]).all()

    hold(backend, law)


@pytest.mark.parametrize("backend", [name for name in ("reference", "scatter", "triton") if name in BACKENDS])
def test_its_weights_are_zeros_and_those_of_others_sum_to_one(backend: str) -> None:
    def law(problem: Problem) -> None:
        built = problem.build()
        dead = dead_rows(built)
        weights = built.attend(backend, return_weights=True).weights
        assert weights is not None and (weights >= 0).all()
        if built.edges is not None:
            rows = torch.zeros(*problem.batch, problem.heads, problem.num_queries, dtype=weights.dtype)
            sums = rows.index_add(-1, built.edges.target, weights)
        else:
            sums = weights.sum(-1)
        assert (sums[dead] == 0).all()
        expected = torch.ones_like(sums[~dead])
        if "sink" in problem.biases:  # which keeps some weight for itself
            assert (sums[~dead] < 1).all() and (sums[~dead] > 0).all()
        else:
            assert_close_as_reference(
                sums[~dead], expected.double(), expected * (1 - 4 * torch.finfo(weights.dtype).eps)
            )

    hold(backend, law)


@pytest.mark.parametrize("backend", TRAINING)
def test_a_row_that_hears_nobody_adds_exactly_zero_gradient(backend: str) -> None:
    """Whatever its query holds, and whatever gradient arrives at it."""

    def law(problem: Problem) -> None:
        dead = dead_rows(problem.build())

        def gradients(query_there: float, cotangent_there: float) -> dict[str, Tensor]:
            built = problem.build(grad=True)
            with torch.no_grad():
                built.query[dead] = query_there
            out = built.attend(backend).out
            weigh = problem.real("cotangent", *out.shape).to(out.dtype)
            weigh[dead] = cotangent_there
            grads = torch.autograd.grad(out, list(built.leaves.values()), weigh, allow_unused=True)
            each = zip(built.leaves.items(), grads, strict=True)
            return {name: torch.zeros_like(leaf) if grad is None else grad for (name, leaf), grad in each}

        plain, loud, garbage = gradients(0.5, 0.0), gradients(0.5, 1000.0), gradients(NAN, 0.0)
        assert (plain["query"][dead] == 0).all()
        for name, grad in plain.items():
            assert torch.isfinite(grad).all(), f"gradient of {name}"
            assert torch.equal(grad, loud[name]), f"gradient of {name} feels what arrives at a row that hears nobody"
            close(garbage[name], grad, f"gradient of {name} beside garbage in queries")

    hold(backend, law, strided=False, **EXACT)


# --------------------------------------------------------------------------------------------------------------- law 2
@pytest.mark.parametrize("backend", BACKENDS)
def test_minus_infinity_in_a_bias_is_a_forbidden_pair(backend: str) -> None:
    def law(problem: Problem) -> None:
        built = problem.build()
        mask = problem.chance("mask", 0.5, *_pairs(built))
        bias = problem.real("finite bias", *_pairs(built)).to(built.wide)
        forbidden = torch.where(mask, bias, -INF)
        if built.edges is None:
            pattern = attnops.Mask(mask) if built.pattern is None else built.pattern & attnops.Mask(mask)
        else:  # per edge: keep the edges that the mask names
            pattern = None
        by_bias = built.attend(backend, bias=forbidden)
        if pattern is not None:
            by_pattern = built.attend(backend, bias=bias, pattern=pattern)
        else:
            dense = torch.zeros(*mask.shape[:-1], problem.num_queries * problem.num_keys, dtype=torch.bool)
            assert built.edges is not None
            at = built.edges.target * problem.num_keys + built.edges.source
            dense = dense.index_copy(-1, at, mask).view(*mask.shape[:-1], problem.num_queries, problem.num_keys)
            by_pattern = built.attend(backend, bias=bias, pattern=built.pattern & attnops.Mask(dense))
        close(by_bias.out, by_pattern.out, "out")
        if problem.lse:
            close(by_bias.lse, by_pattern.lse, "lse")

    hold(backend, law, biases=(), duplicates=False, **EXACT)


def _pairs(built: Built) -> tuple[int, ...]:
    p = built.problem
    tail = (p.num_queries, p.num_keys) if built.edges is None else (built.edges.num_edges,)
    return (*p.batch, p.heads, *tail)


def spoil(built: Built, rows: Tensor, with_: float) -> None:
    """Put a number into the key and value rows `[*B, Hkv, Nk]` that are True."""
    with torch.no_grad():
        for name in ("key", "value"):
            built.leaves[name][rows] = with_


def of_kv_heads(pairs: Tensor, problem: Problem) -> Tensor:
    """`[B, H, …]` as `[*B, Hkv, G, …]`."""
    return pairs.view(*problem.batch, problem.kv_heads, problem.group, *pairs.shape[2:])


@pytest.mark.parametrize("garbage", [NAN, INF])
@pytest.mark.parametrize("backend", BACKENDS)
def test_keys_that_nobody_may_attend_may_hold_garbage(backend: str, garbage: float) -> None:
    """Never in the output, nor in a gradient: padding of any pattern, on every backend."""
    training = backend in TRAINING

    def law(problem: Problem) -> None:
        unheard = ~of_kv_heads(problem.build().allowed(), problem).flatten(-3, -2).any(-2)  # [*B, Hkv, Nk]

        def run(with_: float) -> tuple[attnops.AttentionOutput, dict[str, Tensor]]:
            built = problem.build(grad=training)
            spoil(built, unheard, with_)
            result = built.attend(backend)
            return result, built.gradients(result) if training else {}

        clean, clean_grads = run(0.0)
        dirty, dirty_grads = run(garbage)
        close(dirty.out, clean.out, "out")
        for name, grad in clean_grads.items():
            close(dirty_grads[name], grad, f"gradient of {name}")

    hold(backend, law, strided=False, **EXACT)


PAIR_BY_PAIR = [name for name in ("reference", "blockwise") if name in BACKENDS]


def split_problem(problem: Problem) -> tuple[Tensor, Tensor, Tensor]:
    """Some garbage keys; the queries that may attend one; the keys that those queries may attend."""
    allowed = problem.build().allowed()
    garbage = problem.chance("garbage", 0.4, *problem.batch, problem.kv_heads, problem.num_keys)
    grouped = of_kv_heads(allowed, problem)  # [*B, Hkv, G, Nq, Nk]
    touched = (grouped & garbage.unsqueeze(-2).unsqueeze(-2)).any(-1)  # [*B, Hkv, G, Nq]
    shared = (grouped & touched.unsqueeze(-1)).flatten(-3, -2).any(-2)  # [*B, Hkv, Nk]
    return garbage, touched.flatten(-3, -2), shared


@pytest.mark.parametrize("backend", PAIR_BY_PAIR)
def test_garbage_stays_with_the_queries_that_may_attend_it(backend: str) -> None:
    def law(problem: Problem) -> None:
        garbage, touched, shared = split_problem(problem)

        def run(with_: float) -> tuple[Tensor, dict[str, Tensor]]:
            built = problem.build(grad=True)
            spoil(built, garbage, with_)
            result = built.attend(backend, return_lse=False)
            return result.out, built.gradients(result)

        (clean, clean_grads), (dirty, dirty_grads) = run(0.0), run(NAN)
        close(dirty[~touched], clean[~touched], "out")
        close(dirty_grads["query"][~touched], clean_grads["query"][~touched], "gradient of query")
        for name in ("key", "value"):
            close(dirty_grads[name][~shared], clean_grads[name][~shared], f"gradient of {name}")

    hold(backend, law, strided=False, **EXACT)


@pytest.mark.parametrize("backend", [name for name in ("sdpa", "scatter", "flex") if name in BACKENDS])
def test_a_backend_that_cannot_keep_pairs_apart_says_so_and_auto_goes_on(backend: str) -> None:
    def law(problem: Problem) -> None:
        garbage, touched, _ = split_problem(problem)
        clean, dirty = problem.build(), problem.build()
        spoil(clean, garbage, 0.0)
        spoil(dirty, garbage, NAN)
        want = clean.attend("reference").out
        plan = attnops.plan(dirty.query, dirty.key, dirty.value, **dirty.arguments)
        candidate = next(each for each in plan.candidates if each.name == backend)
        if candidate.refusals:
            dirty.attend(backend)
        assert candidate.condition in ("", "if keys and values are finite")
        close(dirty.attend("auto").out[~touched], want[~touched], "out of auto")
        if not touched.any():
            close(dirty.attend(backend).out, want, f"out of {backend}")
            return
        try:
            got = dirty.attend(backend).out
        except attnops.UnsupportedError as refusal:
            assert candidate.condition and "finite" in str(refusal)
        else:  # nothing was forbidden, or the backend never looked at a forbidden pair
            close(got[~touched], want[~touched], f"out of {backend}")

    hold(backend, law, strided=False, lse=False, **EXACT)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_coord_of_a_forbidden_pair_may_be_nan(backend: str) -> None:
    time = torch.tensor([[0.0, 1.0, 2.5, NAN], [0.5, NAN, NAN, NAN]], dtype=torch.float64)
    real = torch.tensor([3, 1])
    x = torch.randn(2, 2, 4, 3, dtype=torch.float64)

    def run(times: Tensor) -> tuple[Tensor, list[Tensor]]:
        key_time = times.clone().requires_grad_(backend in TRAINING)
        bias = attnops.TimeGap(2).double()
        query_time = torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=torch.float64)
        arguments: dict[str, Any] = {"bias": bias, "pattern": attnops.Padding(real)}
        if backend in EDGES_ALONE:
            arguments["pattern"] = attnops.Edges(
                torch.cartesian_prod(torch.arange(4), torch.arange(4)).t(), 4, 4
            ) & attnops.Padding(real)
        with torch.set_grad_enabled(backend in TRAINING):
            out = attnops.attend(
                x,
                x,
                x,
                coords=(attnops.Coords(time=query_time), attnops.Coords(time=key_time)),
                backend=backend,
                **arguments,
            )
        if backend not in TRAINING:
            return out, []
        return out, list(torch.autograd.grad(out.square().sum(), [key_time, bias.log_rate]))

    (clean, clean_grads), (dirty, dirty_grads) = run(time.nan_to_num(7.0)), run(time)
    close(dirty, clean, "out")
    for got, want in zip(dirty_grads, clean_grads, strict=True):
        close(got, want, "gradient")
