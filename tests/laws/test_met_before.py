"""A plain call that was met before skips its checks; whatever could make them turn out otherwise still meets them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

import attnops
from attnops import operator
from attnops.problem import Call


@pytest.fixture
def met() -> tuple[Tensor, Tensor, Tensor]:
    """Vectors of a call that was met before."""
    torch.manual_seed(0)
    query, key, value = torch.randn(2, 4, 3, 8), torch.randn(2, 2, 5, 8), torch.randn(2, 2, 5, 8)
    operator._met.clear()
    with torch.no_grad():
        for pattern in (None, attnops.Causal()):
            for scale in (None, 1.0):
                attnops.attend(query, key, value, pattern=pattern, scale=scale)
    assert len(operator._met) == 4
    return query, key, value


@pytest.mark.parametrize("pattern", [None, attnops.Causal()], ids=str)
@torch.no_grad()
def test_the_second_call_gives_what_the_first_gave(met: tuple[Tensor, Tensor, Tensor], pattern: Any) -> None:
    other = [torch.randn_like(x) for x in met]
    second = attnops.attend(*other, pattern=pattern)
    assert len(operator._met) == 4
    operator._met.clear()
    assert torch.equal(second, attnops.attend(*other, pattern=pattern))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scale": True}, "scale"),
        ({"scale": float("nan")}, "scale"),
        ({"dropout": False}, "dropout"),
        ({"dropout": 1.0}, "dropout"),
        ({"return_lse": 0}, "return_lse"),
        ({"return_weights": 0}, "return_weights"),
        ({"pattern": "causal"}, "pattern"),
        ({"bias": 1.0}, "bias"),
        ({"score": "dot"}, "score"),
        ({"coords": 3}, "coords"),
        ({"backend": "none"}, "backend"),
        ({"key": torch.zeros(2, 2, 6, 8)}, "value"),
        ({"key": torch.zeros(2, 2, 5, 8, dtype=torch.float64)}, "key"),
        ({"query": torch.zeros(2, 4, 3, 8).to_sparse()}, "query"),
        ({"query": [1.0]}, "query"),
    ],
    ids=str,
)
@torch.no_grad()
def test_errors_stay(met: tuple[Tensor, Tensor, Tensor], change: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {**dict(zip(("query", "key", "value"), met, strict=True)), **change}
    with pytest.raises((TypeError, ValueError), match=message):
        attnops.attend(**arguments)


def test_gradients_autocast_transforms_and_collectors_stay(met: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = met
    leaf = query.clone().requires_grad_()
    assert attnops.attend(leaf, key, value).requires_grad
    with torch.no_grad():
        plain = attnops.attend(query, key, value)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            assert torch.equal(attnops.attend(query, key, value), attnops.attend(*(x.bfloat16() for x in met)).float())
        with attnops.trace() as plans:
            attnops.attend(query, key, value)
        assert len(plans) == 1
        rows = torch.func.vmap(attnops.attend)(*(x.unsqueeze(0) for x in met))
        torch.testing.assert_close(rows[0], plain)
        inner = torch.func.grad(lambda x: attnops.attend(x, key, value).sum())(query)
    (want,) = torch.autograd.grad(attnops.attend(leaf, key, value).sum(), leaf)
    torch.testing.assert_close(inner, want)


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """The calls that reach a backend, as they were prepared."""
    seen: list[Call] = []
    run = operator._run_first

    def spy(call: Call, name: str, candidates: Any, auto: bool) -> Any:
        seen.append(call)
        return run(call, name, candidates, auto)

    monkeypatch.setattr(operator, "_run_first", spy)
    return seen


def test_gradients_are_planned_for(met: tuple[Tensor, Tensor, Tensor], calls: list[Call]) -> None:
    attnops.attend(met[0].clone().requires_grad_(), *met[1:])
    with torch.no_grad():
        attnops.attend(met[0].clone().requires_grad_(), *met[1:])
    assert [call.problem.grad for call in calls] == [True, False]


@torch.no_grad()
def test_autocast_lowers_what_backends_see(met: tuple[Tensor, Tensor, Tensor], calls: list[Call]) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        attnops.attend(*met)
    assert calls[0].query.dtype == calls[0].problem.dtype == torch.bfloat16


@torch.no_grad()
def test_tracers_are_planned_for(met: tuple[Tensor, Tensor, Tensor], calls: list[Call]) -> None:
    make_fx(lambda *x: attnops.attend(*x))(*met)
    with FakeTensorMode(allow_non_fake_inputs=True):
        attnops.attend(*met)
    assert [call.problem.traced for call in calls] == [True, True]


@torch.no_grad()
def test_a_meta_device_has_no_autocast_to_ask_for(met: tuple[Tensor, Tensor, Tensor]) -> None:
    for _ in range(2):
        assert attnops.attend(*(x.to("meta") for x in met)).shape == met[0].shape
    assert len(operator._met) == 4


@torch.no_grad()
def test_a_value_that_is_not_finite_still_finds_another_backend(met: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value = met
    value = value.clone()
    value[:, :, -1] = float("nan")  # the last key is seen by the last query alone
    out = attnops.attend(query, key, value, pattern=attnops.Causal())
    assert torch.isfinite(out[:, :, :-1]).all() and out[:, :, -1].isnan().all()


@torch.no_grad()
def test_a_pattern_derived_from_causal_is_asked_itself(met: tuple[Tensor, Tensor, Tensor]) -> None:
    class Everything(attnops.Causal):
        def allows(self, pairs: attnops.Pairs) -> Tensor:
            return torch.ones((1,) * len(pairs.shape), dtype=torch.bool, device=pairs.device)

    torch.testing.assert_close(attnops.attend(*met, pattern=Everything()), attnops.attend(*met))
