"""Laws 3 and 4: a backend is as close to the float64 reference as the reference of the same dtype, up to a factor."""

from __future__ import annotations

import pytest
import torch

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
