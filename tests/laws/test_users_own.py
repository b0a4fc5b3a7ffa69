"""A user's own bias, pattern or score that gives the wrong thing is named; what inference kept serves training."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import attnops

BACKENDS = ("reference", "sdpa", "blockwise", "flex", "scatter")


def given(kind: type, method: str, value: Any) -> Any:
    """An object of a class `Given` whose method gives `value`."""
    return type("Given", (kind,), {method: lambda self, *arguments: value})()


def run(backend: str, **arguments: Any) -> torch.Tensor:
    x = torch.randn(2, 4, 5, 8)
    if backend == "scatter":
        arguments["pattern"] = attnops.Edges(torch.tensor([[0, 1, 2], [3, 3, 4]]), 5, 5) & arguments.get(
            "pattern", attnops.Full()
        )
    out = attnops.attend(x, x, x, backend=backend, **arguments)
    assert isinstance(out, torch.Tensor)
    return out


WRONG = [None, 1.0, torch.ones(4), torch.ones(7, 1, 1, 1), torch.ones(1, 1, 1, 1, 1), torch.ones(1).cfloat()]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [*WRONG, torch.ones(1, dtype=torch.bool)], ids=str)
def test_a_bias_is_named(backend: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Given\(\)\.forward gave .*; it must"):
        run(backend, bias=given(attnops.Bias, "forward", value))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("value", [*WRONG, torch.ones(1)], ids=str)
def test_a_pattern_is_named(backend: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Given\(\)\.allows gave .*; it must"):
        run(backend, pattern=given(attnops.Pattern, "allows", value))


@pytest.mark.parametrize("backend", ["reference", "blockwise", "scatter"])
@pytest.mark.parametrize("value", WRONG, ids=str)
def test_a_score_is_named(backend: str, value: Any) -> None:
    with pytest.raises((TypeError, ValueError), match=r"Given\(\)\.forward gave .*; it must"):
        run(backend, score=given(attnops.Score, "forward", value))


@pytest.mark.parametrize("backend", BACKENDS)
def test_scalars_broadcast(backend: str) -> None:
    plain = run_seeded(backend)
    constant = given(attnops.Bias, "forward", torch.tensor(1.0, dtype=torch.float64))
    torch.testing.assert_close(run_seeded(backend, bias=constant), plain)
    everything = given(attnops.Pattern, "allows", torch.tensor(True))
    torch.testing.assert_close(run_seeded(backend, pattern=everything), plain)


def run_seeded(backend: str, **arguments: Any) -> torch.Tensor:
    torch.manual_seed(0)
    return run(backend, **arguments)


def test_what_inference_kept_serves_training() -> None:
    x = torch.randn(4, 6, 8)
    graph = attnops.Edges(torch.randint(0, 6, (2, 12)), 6, 6)
    problems: list[dict[str, Any]] = [
        {"pattern": attnops.Chunked(3), "bias": attnops.ALiBi(4), "backend": "sdpa"},
        {"pattern": graph, "backend": "scatter"},
        {"pattern": graph, "score": attnops.Additive(4, 8), "backend": "scatter"},
    ]
    for problem in problems:
        with torch.inference_mode():
            attnops.attend(x, x, x, **problem)
        y = x.clone().requires_grad_()
        out = attnops.attend(y, y, y, **problem)
        assert isinstance(out, torch.Tensor)
        (grad,) = torch.autograd.grad(out.square().sum(), y)
        assert grad.isfinite().all()


@pytest.mark.parametrize("scale", [0.0, -2.0, -1e-3])
@pytest.mark.parametrize("lse", [False, True])
@pytest.mark.parametrize("backend", ["sdpa", "blockwise"])
def test_any_scale(backend: str, lse: bool, scale: float) -> None:
    """Torch's causal kernel multiplies its own -inf by the scale."""
    x = torch.randn(2, 4, 5, 8, dtype=torch.float64)
    results = []
    for name in (backend, "reference"):
        y = x.clone().requires_grad_()
        got = attnops.attend(y, y, y, pattern=attnops.Causal(), scale=scale, return_lse=lse, backend=name)
        out = got if isinstance(got, torch.Tensor) else got.out
        results.append((out.detach(), *torch.autograd.grad(out.square().sum(), y)))
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right)


def test_a_bias_that_does_nothing_is_a_mistake() -> None:
    class Misspelt(attnops.Bias):
        def foward(self, pairs: attnops.Pairs) -> torch.Tensor:
            return pairs.head

    class Uninitialised(attnops.Bias):
        def __init__(self) -> None:
            pass

    x = torch.randn(2, 4, 8)
    with pytest.raises(TypeError, match="Misspelt does nothing"):
        attnops.attend(x, x, x, bias=Misspelt())
    with pytest.raises(TypeError, match=r"super\(\)"):
        attnops.attend(x, x, x, bias=Uninitialised())


@pytest.mark.parametrize("backend", ["reference", "sdpa", "blockwise", "scatter"])
def test_nan_on_a_forbidden_edge_reaches_no_parameter(backend: str) -> None:
    attr = torch.tensor([[1.0, 2.0], [float("nan"), 1.0], [0.0, 1.0]])
    graph = attnops.Edges(torch.tensor([[0, 4, 3], [1, 3, 4]]), 5, 5, attr=attr)
    x, bias = torch.randn(4, 5, 8), attnops.EdgeBias(2, 4)
    out = attnops.attend(x, x, x, pattern=graph & attnops.Causal(), bias=bias, backend=backend)
    assert isinstance(out, torch.Tensor) and out.isfinite().all()
    (grad,) = torch.autograd.grad(out.square().sum(), bias.weight)
    assert grad.isfinite().all()


def test_patterns_combine_by_signs_alone() -> None:
    with pytest.raises(TypeError, match="neither true nor false"):
        bool(attnops.Causal())
    with pytest.raises(TypeError, match="Mask"):
        attnops.Causal() & torch.ones(2, 2).bool()
    with pytest.raises(TypeError, match="must be a Pattern"):
        attnops.Causal() | 3


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in ("scatter", "triton", "flex")])
@pytest.mark.parametrize("parent", [attnops.Causal, attnops.SameSegment, attnops.Full], ids=lambda kind: kind.__name__)
def test_a_pattern_that_writes_allows_anew_inherits_no_description(backend: str, parent: type[attnops.Pattern]) -> None:
    class Backwards(parent):  # type: ignore[misc, valid-type]
        def allows(self, pairs: attnops.Pairs) -> torch.Tensor:
            return pairs.query.position <= pairs.key.position

    query, key, value = torch.randn(3, 2, 300, 4)
    coords = attnops.Coords(segment=torch.arange(300) // 100)
    out = attnops.attend(query, key, value, pattern=Backwards(), coords=coords, backend=backend)
    later = torch.ones(300, 300, dtype=torch.bool).triu()
    torch.testing.assert_close(out, attnops.attend(query, key, value, pattern=later, backend="reference"))
    assert attnops.plan(query, key, value, pattern=Backwards(), coords=coords).cost.pairs == 2 * 300 * 301 // 2
