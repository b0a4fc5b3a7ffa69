"""Laws 3 and 4: a backend is as close to the float64 reference as the reference of the same dtype, up to a factor."""

from __future__ import annotations

import pytest
import torch

import attnops
from attnops.testing import assert_close_as_reference
from tests.laws.problems import BACKENDS, TRAINING, Problem, hold

pytestmark = pytest.mark.usefixtures("poison")


def check_forward(backend: str, problem: Problem) -> None:
    got = problem.build().attend(backend)
    golden, reference = problem.build(torch.float64).attend(), problem.build().attend()
    assert got.out.dtype == problem.dtype and not torch.isnan(got.out).any()
    assert_close_as_reference(got.out, golden.out, reference.out, what=f"out of {backend}")
    if problem.lse:
        assert got.lse.dtype == (torch.float64 if problem.dtype == torch.float64 else torch.float32)
        assert_close_as_reference(got.lse, golden.lse, reference.lse, dtype=problem.dtype, what=f"lse of {backend}")


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward(backend: str) -> None:
    hold(backend, lambda problem: check_forward(backend, problem))


def check_gradients(backend: str, problem: Problem) -> None:
    def run(name: str, dtype: torch.dtype) -> dict[str, torch.Tensor]:
        built = problem.build(dtype, grad=True)
        return built.gradients(built.attend(name))

    got = run(backend, problem.dtype)
    golden, reference = run("reference", torch.float64), run("reference", problem.dtype)
    assert got.keys() == golden.keys()
    largest = max((float(grad.abs().max()) for grad in golden.values() if grad.numel()), default=0.0)
    for name, grad in got.items():
        kind = "parameter" if name.startswith("parameter") else "gradient"
        what = f"gradient of {name} on {backend}"
        bound = {"kind": kind, "dtype": problem.dtype, "least": largest}  # a shift of all logits cancels to nothing
        assert_close_as_reference(grad, golden[name], reference[name], what=what, **bound)


@pytest.mark.parametrize("backend", TRAINING)
def test_gradients(backend: str) -> None:
    hold(backend, lambda problem: check_gradients(backend, problem))


@pytest.mark.parametrize("size", [-1e6, -1e9, torch.finfo(torch.float32).min, 1e6])
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("reference", "scatter", "native", "triton")])
def test_huge_logits_of_a_graph_keep_their_weights(backend: str, size: float) -> None:
    """Where every logit of a row is huge, the denominator's logarithm is lost in the lse, and no weight may feel it."""
    ends = torch.randint(0, 6, (2, 40), generator=torch.Generator().manual_seed(0))
    query, key, value = torch.randn(3, 2, 6, 4, generator=torch.Generator().manual_seed(0)).requires_grad_().unbind(0)
    edges = attnops.Edges(ends, 6, 6)
    result = attnops.attend(
        query, key, value, pattern=edges, bias=torch.full((1, 40), size), backend=backend, return_weights=True
    )
    (grad,) = torch.autograd.grad(result.out.sum(), value)
    rows = torch.zeros(2, 6).index_add(1, ends[1], result.weights.detach())
    assert_close_as_reference(rows, torch.ones(2, 6).double(), torch.ones(2, 6), what=f"sums of weights of {backend}")
    total = torch.full((2, 4), 6.0)
    assert_close_as_reference(grad.sum(1), total.double(), total, what=f"sums of value's gradients on {backend}")


@pytest.mark.parametrize("learned", [True, False])
@pytest.mark.parametrize("size", [-1e6, -1e9, torch.finfo(torch.float32).min, 1e6])
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name in ("reference", "native")])
def test_huge_logits_of_a_sequence_keep_their_gradients(backend: str, size: float, learned: bool) -> None:
    """The same over a sequence; torch's own fused attention does not hold it (README, Limits)."""
    key = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(0))
    value = torch.randn(2, 40, 8, generator=torch.Generator().manual_seed(1)).requires_grad_()
    bias = torch.full((2, 5, 40), size, requires_grad=learned)
    out = attnops.attend(key[:, :5], key, value, bias=bias, backend=backend)
    (grad,) = torch.autograd.grad(out.sum(), value)
    total = torch.full((2, 8), 5.0)
    assert_close_as_reference(grad.sum(1), total.double(), total, what=f"sums of value's gradients on {backend}")
