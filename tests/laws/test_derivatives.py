"""Gradients against finite differences: of every bias and score, and twice on the reference."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import attnops
from tests.laws.problems import BACKENDS, BIASES, EDGE_BIASES, EDGES_ALONE, TRAINING, Problem

SMALL = Problem(seed=3, batch=(2,), kv_heads=1, group=2, num_queries=3, num_keys=4, dim=4, value_dim=4)
LISTED = SMALL.with_(num_edges=7)


def gradcheck(problem: Problem, backend: str, twice: bool = False, **arguments: object) -> None:
    built = problem.build(grad=True)
    leaves = {name: leaf for name, leaf in built.leaves.items() if leaf.numel()}

    def run(*_: Tensor) -> list[Tensor]:
        result = built.attend(backend, return_lse=True, **arguments)
        assert result.lse is not None
        return [result.out, torch.where(torch.isfinite(result.lse), result.lse, 0)]

    check = torch.autograd.gradgradcheck if twice else torch.autograd.gradcheck
    inputs = tuple(leaf for name, leaf in leaves.items() if name != "datum prior")  # which has a kink where it is 0
    assert check(run, inputs, fast_mode=True)


@pytest.mark.parametrize("bias", [*BIASES, "tensor"])
@pytest.mark.parametrize("backend", [name for name in ("reference", "blockwise", "sdpa", "native") if name in BACKENDS])
def test_every_bias(backend: str, bias: str) -> None:
    gradcheck(SMALL.with_(biases=(bias,), pattern="causal"), backend)


@pytest.mark.parametrize("bias", [*EDGE_BIASES, "tensor", "time", "shaw"])
@pytest.mark.parametrize("backend", [name for name in ("reference", "scatter", "triton") if name in BACKENDS])
def test_every_bias_over_edges(backend: str, bias: str) -> None:
    gradcheck(LISTED.with_(biases=(bias,), duplicates=True), backend)


@pytest.mark.parametrize("score", ["softcap", "bahdanau", "gatv2", "gat"])
@pytest.mark.parametrize(
    "backend", [name for name in ("reference", "blockwise", "scatter", "triton") if name in BACKENDS]
)
def test_every_score(backend: str, score: str) -> None:
    gradcheck((LISTED if backend in EDGES_ALONE else SMALL).with_(score=score), backend)


def test_the_prior_learns_where_it_is_not_zero() -> None:
    prior = torch.tensor([0.5, 2.0, 0.0, 1.0], dtype=torch.float64, requires_grad=True)
    x = torch.randn(1, 2, 3, dtype=torch.float64)
    for backend in ("reference", "scatter"):
        edges = attnops.Edges(torch.tensor([[0, 1, 0, 1], [0, 0, 1, 1]]), 2, 2, prior=prior)
        out = attnops.attend(x, x, x, pattern=edges, bias=attnops.LogPrior(), backend=backend)
        (grad,) = torch.autograd.grad(out.square().sum(), prior)
        assert grad[2] == 0 and torch.isfinite(grad).all() and (grad[:2] != 0).all()


@pytest.mark.parametrize("bias", ["alibi", "shaw", "time", "sink", "tensor", "custom"])
def test_twice_on_the_reference(bias: str) -> None:
    gradcheck(SMALL.with_(biases=(bias,), pattern=("~", "window")), "reference", twice=True)


@pytest.mark.parametrize("score", ["softcap", "bahdanau", "gat"])
def test_twice_on_the_reference_with_scores_over_edges(score: str) -> None:
    gradcheck(LISTED.with_(score=score, biases=("attr",)), "reference", twice=True)


@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("bias", [(), ("alibi",), ("tensor",), ("custom",)])
@pytest.mark.parametrize("backend", TRAINING)
def test_twice_elsewhere_is_right_or_raises(backend: str, bias: tuple[str, ...], listed: bool, lse: bool) -> None:
    """Never a wrong number."""
    if backend in EDGES_ALONE and not listed:
        return
    problem = (LISTED if listed else SMALL).with_(biases=bias, pattern="causal", lse=lse)

    def second(name: str) -> list[Tensor]:
        built = problem.build(grad=True)
        result = built.attend(name)
        loss = result.out.square().sum() + (
            0 if result.lse is None else torch.where(torch.isfinite(result.lse), result.lse, 0).sum()
        )
        leaves = list(built.leaves.values())
        first = torch.autograd.grad(loss, leaves, create_graph=True)
        torch.autograd.backward(sum((g * g).sum() for g in first))
        return [torch.zeros_like(leaf) if leaf.grad is None else leaf.grad for leaf in leaves]

    try:
        got = second(backend)
    except (RuntimeError, NotImplementedError) as error:
        assert str(error)
        return
    for mine, right in zip(got, second("reference"), strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("backend", ["sdpa", "blockwise", "scatter"])
@pytest.mark.parametrize("lse", [False, True])
def test_a_step_through_a_gradient_is_right_or_raises(backend: str, lse: bool) -> None:
    """As in MAML, by `torch.autograd.grad` with its inputs named, which prunes what it thinks unreachable."""
    x, weight = torch.randn(1, 6, 3).double(), torch.randn(3, 3).double().requires_grad_()
    pattern = attnops.Edges(torch.randint(0, 6, (2, 20)), 6, 6) if backend in EDGES_ALONE else attnops.Causal()

    def second(name: str) -> torch.Tensor:
        def loss(weight: torch.Tensor) -> torch.Tensor:
            y = x @ weight
            result = attnops.attend(y, y, y, pattern=pattern, return_lse=True, backend=name)
            assert isinstance(result, attnops.AttentionOutput) and result.lse is not None
            heard = torch.where(result.lse.isfinite(), result.lse, 0)
            return result.out.square().sum() + (heard.sum() if lse else 0)

        (first,) = torch.autograd.grad(loss(weight), weight, create_graph=True)
        return torch.autograd.grad(loss(weight - 0.1 * first), weight)[0]

    try:
        got = second(backend)
    except RuntimeError:
        return
    torch.testing.assert_close(got, second("reference"))
