"""What a pattern allows is laid out once where no position was given; nothing else is kept beside a learned bias."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops import lowering
from attnops.backends import sdpa

TYPES = attnops.Coords(type=torch.tensor([0, 1, 2, 1, 0, 2]))
PATTERNS = [attnops.SlidingWindow(2), attnops.Causal(), attnops.SlidingWindow(3, 1) & attnops.Chunked(4)]


@pytest.fixture(autouse=True)
def empty() -> None:
    sdpa._kept.clear()


def _vectors(dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(3, 2, 4, 6, 8, generator=torch.Generator().manual_seed(0)).to(dtype)


def _prior() -> attnops.TypePrior:
    prior = attnops.TypePrior(3, 3, heads=4)
    torch.nn.init.normal_(prior.weight, generator=torch.Generator().manual_seed(1))
    return prior


def _agree(*vectors: Tensor, **options: Any) -> None:
    want = attnops.attend(*vectors, backend="reference", **options)
    for _ in range(2):
        torch.testing.assert_close(attnops.attend(*vectors, backend="sdpa", **options), want)


@pytest.mark.parametrize("pattern", PATTERNS, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_a_learned_table_edited_in_place_is_read_anew(pattern: attnops.Pattern, dtype: torch.dtype) -> None:
    prior = _prior()
    for _ in range(2):
        _agree(*_vectors(dtype), pattern=pattern, bias=attnops.Rotary(8) + prior, coords=TYPES)
        with torch.no_grad():
            prior.weight.mul_(-2)


def test_a_pattern_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, allows = [], lowering.allows
    monkeypatch.setattr(lowering, "allows", lambda call, pairs: asked.append(call) or allows(call, pairs))
    bias, position = _prior(), torch.arange(6)
    for _ in range(3):
        attnops.attend(*_vectors(), pattern=PATTERNS[0], bias=bias, coords=TYPES, backend="sdpa")
    assert len(asked) == 1
    for start in (0, 3):  # positions that are given may change
        moved = attnops.Coords(position=position * start, type=TYPES.type)
        _agree(*_vectors(), pattern=PATTERNS[0], bias=bias, coords=moved)
    assert len(asked) > 4


@pytest.mark.parametrize("number", [float("inf"), float("nan"), float("-inf")])
def test_what_a_bias_holds_at_forbidden_pairs_is_not_read(number: float) -> None:
    bias = torch.randn(4, 6, 6, generator=torch.Generator().manual_seed(2))
    future = torch.ones(6, 6, dtype=torch.bool).triu(1)
    clean = attnops.attend(*_vectors(), pattern=attnops.Causal(), bias=bias, backend="sdpa")
    spoilt = bias.masked_fill(future, number).requires_grad_()
    for _ in range(2):
        out = attnops.attend(*_vectors(), pattern=attnops.Causal(), bias=spoilt, backend="sdpa")
        torch.testing.assert_close(out, clean)
        (gradient,) = torch.autograd.grad(out.sum(), spoilt)
        assert torch.isfinite(gradient).all() and not gradient[:, future].any()


def test_inference_first_then_training() -> None:
    options: dict[str, Any] = {"pattern": PATTERNS[0], "bias": attnops.Rotary(8) + _prior(), "coords": TYPES}
    with torch.inference_mode():
        first = attnops.attend(*_vectors(), **options)
    query = _vectors()[0].requires_grad_()
    out = attnops.attend(query, *_vectors()[1:], backend="sdpa", **options)
    torch.testing.assert_close(out, first.clone())
    out.sum().backward()
    assert query.grad is not None and torch.isfinite(query.grad).all()


def test_vmap_and_autocast_after_a_plain_call() -> None:
    options: dict[str, Any] = {"pattern": PATTERNS[0], "bias": attnops.Rotary(8) + _prior(), "coords": TYPES}
    vectors = _vectors()
    plain = attnops.attend(*vectors, **options)
    mapped = torch.func.vmap(lambda q, k, v: attnops.attend(q, k, v, **options))(*vectors)
    torch.testing.assert_close(mapped, plain)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        low = attnops.attend(*vectors, **options)
    torch.testing.assert_close(low, attnops.attend(*vectors.bfloat16(), **options), check_dtype=False)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_vectors_turn_as_by_positions_that_are_given(dtype: torch.dtype) -> None:
    bias = attnops.Rotary(8)
    query, key, value = _vectors(dtype)
    for rows, keys in ((6, 6), (2, 6), (2, 4), (6, 6), (1, 6), (1, 5)):  # queries are the last rows
        some, upto, of = query[:, :, :rows], (key[:, :, :keys], value[:, :, :keys]), torch.arange(keys)
        given = (attnops.Coords(position=of[keys - rows :]), attnops.Coords(position=of))
        want = attnops.attend(some, *upto, bias=attnops.Rotary(8), coords=given)
        for _ in range(2):
            assert torch.equal(attnops.attend(some, *upto, bias=bias), want)


@pytest.mark.parametrize("edits", [True, False])
def test_a_bias_that_moves_positions_before_is_heard(edits: bool) -> None:
    class Later(attnops.Bias):
        def rotate(self, query: Tensor, key: Tensor, coords: Any) -> tuple[Tensor, Tensor]:
            if edits:
                coords[0].data["position"].add_(5)
            else:
                coords[0].data["position"] = coords[0].data["position"] + 5
            return query, key

    vectors, bias = _vectors(), attnops.Rotary(8)
    attnops.attend(*vectors, bias=bias)
    given = (attnops.Coords(position=torch.arange(6) + 5), attnops.Coords(position=torch.arange(6)))
    want = attnops.attend(*vectors, bias=bias, coords=given)
    assert torch.equal(attnops.attend(*vectors, bias=Later() + bias), want)
