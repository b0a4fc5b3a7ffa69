"""Partial results are a commutative monoid, and joining them is the softmax over all keys."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnops.states import AttentionOutput, merge


def soft(logits: Tensor, value: Tensor) -> AttentionOutput:
    """The plain softmax over all keys given, rows of -inf and no keys included."""
    floor = logits.new_full((*logits.shape[:-1], 1), -torch.inf)  # there may be no keys
    largest = torch.cat([floor, logits], -1).amax(-1, keepdim=True)
    largest = torch.where(largest == -torch.inf, 0, largest).detach()
    weights = (logits - largest).exp()
    total = weights.sum(-1, keepdim=True)
    none = total == 0
    out = weights @ value / torch.where(none, 1, total)
    lse = torch.where(none, -torch.inf, largest + torch.where(none, 1, total).log()).squeeze(-1)
    return AttentionOutput(out, lse)


def split(logits: Tensor, value: Tensor, sizes: Sequence[int]) -> list[AttentionOutput]:
    return [soft(*part) for part in zip(logits.split(list(sizes), -1), value.split(list(sizes), -2), strict=True)]


def problem(sizes: Sequence[int], seed: int = 0, scale: float = 3.0, forbidden: float = 0.3) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    keys = sum(sizes)
    logits = scale * torch.randn(2, 3, 4, keys, generator=generator, dtype=torch.float64)
    hidden = torch.rand(2, 3, 4, keys, generator=generator) < forbidden
    hidden[0, 1, 2] = True  # one row hears nobody
    return logits.masked_fill(hidden, -torch.inf), torch.randn(2, 3, keys, 5, generator=generator, dtype=torch.float64)


def assert_same(one: AttentionOutput, other: AttentionOutput, tolerance: float = 1e-12) -> None:
    assert one.lse is not None and other.lse is not None
    torch.testing.assert_close(one.out, other.out, atol=tolerance, rtol=tolerance)
    torch.testing.assert_close(one.lse, other.lse, atol=tolerance, rtol=tolerance)


def identity(like: AttentionOutput) -> AttentionOutput:
    assert like.lse is not None
    return AttentionOutput(torch.zeros_like(like.out), torch.full_like(like.lse, -torch.inf))


SIZES = st.lists(st.integers(0, 4), min_size=1, max_size=5)


@given(SIZES, st.integers(0, 1000), st.sampled_from([0.1, 3.0, 300.0]))
def test_parts_join_to_the_softmax_over_all_keys(sizes: list[int], seed: int, scale: float) -> None:
    logits, value = problem(sizes, seed, scale)
    assert_same(merge(split(logits, value, sizes)), soft(logits, value))


@given(SIZES, st.integers(0, 1000), st.randoms(use_true_random=False))
def test_any_order(sizes: list[int], seed: int, random) -> None:
    parts = split(*problem(sizes, seed), sizes)
    assert_same(merge(random.sample(parts, len(parts))), merge(parts))


@given(st.tuples(*[st.integers(0, 4)] * 3), st.integers(0, 1000))
def test_any_grouping(sizes: tuple[int, ...], seed: int) -> None:
    a, b, c = split(*problem(sizes, seed), sizes)
    assert_same(merge([merge([a, b]), c]), merge([a, merge([b, c])]))
    assert_same(merge([merge([a, b]), c]), merge([a, b, c]))


@given(st.integers(0, 4), st.integers(0, 1000))
def test_identity(size: int, seed: int) -> None:
    (part,) = split(*problem([size], seed), [size])
    for parts in ([part], [part, identity(part)], [identity(part), part]):
        merged = merge(parts)
        assert torch.equal(merged.out, part.out) and torch.equal(merged.lse, part.lse)


def test_only_empty_rows_stay_empty() -> None:
    nothing = AttentionOutput(torch.zeros(2, 3, 4), torch.full((2, 3), -torch.inf))
    merged = merge([nothing, nothing])
    assert torch.equal(merged.out, nothing.out) and torch.equal(merged.lse, nothing.lse)


def test_gradients() -> None:
    sizes = [2, 3, 1]
    logits, value = problem(sizes, forbidden=0.0)
    logits = logits[:1, :1].clone()
    logits[0, 0, 2, :] = 0.5
    parts = split(logits, value[:1, :1], sizes)
    tensors = [part.out.requires_grad_() for part in parts] + [part.lse.requires_grad_() for part in parts]

    def joined(*tensors: Tensor) -> tuple[Tensor, Tensor]:
        merged = merge([AttentionOutput(out, lse) for out, lse in zip(tensors[:3], tensors[3:], strict=True)])
        return merged.out, merged.lse

    assert torch.autograd.gradcheck(joined, tensors)
    assert torch.autograd.gradgradcheck(joined, tensors)


@pytest.mark.parametrize("sizes", [[2, 3], [1, 1, 1, 2], [0, 5]])
def test_gradients_are_those_of_the_softmax(sizes: list[int]) -> None:
    logits, value = problem(sizes)
    grads = []
    for parts in (lambda logits, value: merge(split(logits, value, sizes)), soft):
        inputs = [logits.clone().requires_grad_(), value.clone().requires_grad_()]
        result = parts(*inputs)
        heard = result.lse > -torch.inf
        (result.out.cos().sum() + result.lse[heard].sin().sum()).backward()
        grads.append([each.grad for each in inputs])
    for one, other in zip(*grads, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


def test_a_row_that_hears_nobody_gives_a_gradient_of_exactly_zero() -> None:
    out = torch.randn(2, 3, 4, requires_grad=True)
    lse = torch.tensor([[0.0, -torch.inf, 1.0], [-torch.inf] * 3], requires_grad=True)
    merged = merge([AttentionOutput(out, lse), AttentionOutput(out, lse)])
    (merged.out.sum() + merged.lse.sum()).backward()
    none = lse.detach() == -torch.inf
    assert torch.equal(lse.grad[none], torch.zeros(4)) and torch.equal(out.grad[none], torch.zeros(4, 4))
    assert torch.isfinite(lse.grad).all() and (lse.grad[~none] != 0).all()


def test_what_an_empty_row_of_a_part_holds_is_not_read() -> None:
    out = torch.full((1, 1, 2), torch.nan, requires_grad=True)
    garbage = AttentionOutput(out, torch.full((1, 1), -torch.inf))
    real = AttentionOutput(torch.ones(1, 1, 2), torch.zeros(1, 1))
    merged = merge([garbage, real])
    merged.out.sum().backward()
    assert torch.equal(merged.out, real.out) and torch.equal(out.grad, torch.zeros(1, 1, 2))


def test_far_apart_parts_do_not_overflow() -> None:
    near, far = (AttentionOutput(torch.full((1, 1, 1), x), torch.full((1, 1), x)) for x in (1e4, -1e4))
    assert_same(merge([far, near]), near, 0.0)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_dtypes(dtype: torch.dtype) -> None:
    sizes = [3] * 8
    exact = soft(*problem(sizes))
    at_least_float32 = torch.promote_types(dtype, torch.float32)
    parts = [
        AttentionOutput(part.out.to(dtype), part.lse.to(at_least_float32)) for part in split(*problem(sizes), sizes)
    ]
    merged = merge(parts)
    assert merged.out.dtype == dtype and merged.lse.dtype == at_least_float32
    assert merged.weights is None
    # One rounding of the parts and one of the result, and what float32 and float64 lose in a few sums.
    bound = torch.finfo(dtype).eps + 16 * torch.finfo(at_least_float32).eps
    assert (merged.out.double() - exact.out).abs().max() <= bound * exact.out.abs().max()


def test_an_lse_in_half_precision_is_summed_in_float32() -> None:
    part = AttentionOutput(torch.ones(1, 1, 1).half(), torch.full((1, 1), 8.0).half())
    merged = merge([part] * 100)
    assert merged.lse.dtype == torch.float32
    torch.testing.assert_close(merged.lse, torch.full((1, 1), 100.0).log() + 8, atol=1e-6, rtol=1e-6)


def test_weights_are_dropped() -> None:
    part = replace(soft(*problem([3])), weights=torch.ones(2, 3, 4, 3))
    assert merge([part]).weights is None


def test_compile_and_vmap() -> None:
    torch.compiler.reset()
    sizes = [2, 3, 4]
    parts = split(*problem(sizes), sizes)
    compiled = torch.compile(merge, fullgraph=True, backend="aot_eager")(parts)
    assert isinstance(compiled, AttentionOutput)
    assert_same(compiled, merge(parts))
    mapped = torch.func.vmap(merge)(parts)
    assert isinstance(mapped, AttentionOutput)
    assert_same(mapped, merge(parts))


def test_export() -> None:
    class Merge(torch.nn.Module):
        def forward(self, out: Tensor, lse: Tensor) -> AttentionOutput:
            return merge([AttentionOutput(*pair) for pair in zip(out.unbind(0), lse.unbind(0), strict=True)])

    parts = split(*problem([2, 3]), [2, 3])
    out, lse = torch.stack([part.out for part in parts]), torch.stack([part.lse for part in parts])
    assert_same(torch.export.export(Merge(), (out, lse)).module()(out, lse), merge(parts))


PART = AttentionOutput(torch.zeros(2, 3, 4), torch.zeros(2, 3))


@pytest.mark.parametrize(
    ("parts", "error", "words"),
    [
        ([], ValueError, "parts is empty"),
        (PART, TypeError, "parts is one AttentionOutput"),
        ([PART, replace(PART, lse=None)], ValueError, r"parts\[1\] has no lse"),
        ([PART, PART.out], TypeError, r"parts\[1\] is a Tensor"),
        ([PART, replace(PART, out=PART.out.double())], TypeError, r"parts\[1\]\.out is torch.float64; it"),
        ([PART, replace(PART, out=PART.out[:1])], ValueError, r"parts\[1\]\.out is \[1, 3, 4\]"),
        ([PART, replace(PART, lse=PART.lse[:, :2])], ValueError, r"parts\[1\]\.lse is \[2, 2\]; it must be \[2, 3\]"),
        ([replace(PART, lse=PART.lse.long())], TypeError, "torch.int64; both must be real"),
    ],
)
def test_errors(parts, error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        merge(parts)
