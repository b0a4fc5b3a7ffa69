"""Linear attention: however a sequence is cut, padded or batched, it is the recurrence, and that is the sum."""

from __future__ import annotations

from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnops.linear import linear_attend
from tests.linear.forms import D64, MAPS, close, in_chunks, naive, rand, recurrence


@st.composite
def problems(draw: st.DrawFn) -> dict[str, Any]:
    batch = draw(st.sampled_from([(), (1,), (2,), (2, 3)]))
    heads, key_heads = draw(st.sampled_from([(1, 1), (2, 2), (4, 2), (4, 1)]))
    length = draw(st.sampled_from([1, 2, 7, 64, 65, 130]))
    seed = draw(st.integers(0, 1000))
    gates = {
        "none": None,
        "number": 0.9,
        "head": torch.rand(heads, generator=torch.Generator().manual_seed(seed), dtype=D64) * 0.9 + 0.1,
        "step": torch.sigmoid(3 * rand(*batch, heads, length, seed=seed)),
        "key head": torch.sigmoid(3 * rand(*batch, key_heads, length, seed=seed)),
    }
    masked = draw(st.booleans())
    return {
        "query": rand(*batch, heads, length, 3, seed=seed + 1),
        "key": rand(*batch, key_heads, length, 3, seed=seed + 2),
        "value": rand(*batch, key_heads, length, 2, seed=seed + 3),
        "feature_map": draw(st.sampled_from(list(MAPS))),
        "decay": gates[draw(st.sampled_from(list(gates)))],
        "key_mask": rand(*batch, length, seed=seed + 4) > -0.5 if masked else None,
        "normalize": draw(st.sampled_from([None, False])),
    }


def full_gate(problem: dict[str, Any]) -> Tensor | None:
    """The decay as `[*B, H, N]`, for the naive form."""
    decay, query = problem["decay"], problem["query"]
    if decay is None:
        return None
    decay = torch.as_tensor(decay, dtype=D64)
    if decay.ndim < 2:
        return decay.reshape(-1, 1).expand(query.shape[:-1])
    return decay.repeat_interleave(query.shape[-3] // decay.shape[-2], -2)


@given(problems())
def test_causal_is_the_quadratic_form(problem: dict[str, Any]) -> None:
    close(linear_attend(**problem, causal=True), naive(**{**problem, "decay": full_gate(problem)}, causal=True))


@given(problems())
def test_without_an_order_is_the_quadratic_form(problem: dict[str, Any]) -> None:
    problem = {**problem, "decay": None, "query": problem["query"][..., :5, :]}  # counts may differ
    close(linear_attend(**problem), naive(**problem))


@given(problems(), st.data())
def test_any_chunking(problem: dict[str, Any], data: st.DataObject) -> None:
    problem = dict(problem)
    tensors = [problem.pop(name) for name in ("query", "key", "value")]
    length = tensors[0].shape[-2]
    if problem["key_mask"] is not None:
        problem["key_mask"] = problem["key_mask"].expand(*tensors[0].shape[:-3], length)
    cuts = sorted(data.draw(st.lists(st.integers(0, length), max_size=3)))
    sizes = [end - begin for begin, end in zip([0, *cuts], [*cuts, length], strict=True)]  # empty chunks too
    whole, end = linear_attend(*tensors, **problem, causal=True, return_state=True)
    for each in (sizes, [1] * length if length < 10 else [length]):
        out, state = in_chunks(each, tensors, **problem)
        close(out, whole)
        close(state.matrix, end.matrix)
        close(state.normalizer, end.normalizer)


def test_a_decay_of_one_is_no_decay() -> None:
    for feature_map in MAPS:
        tensors = [rand(2, 70, 3, seed=seed) for seed in range(3)]
        ungated = linear_attend(*tensors, feature_map=feature_map, causal=True)
        for decay in (1.0, torch.ones(2), torch.ones(2, 70)):
            close(linear_attend(*tensors, feature_map=feature_map, causal=True, decay=decay), ungated)


def test_field_case(cases: ModuleType) -> None:
    given_, expected = cases.CASES["B49"]()
    tensors = [given_[name].unsqueeze(0) for name in ("q", "k", "v")]
    gate, real = given_["decay"].unsqueeze(0), given_["real"]

    def check(feature_map: Any, sizes: list[int], faulty: bool = False) -> None:
        out, state = in_chunks(sizes, tensors, gate, feature_map=feature_map)
        padded, padded_state = in_chunks(sizes, tensors, gate, key_mask=real, feature_map=feature_map)
        found = {
            "out": out[0],
            "state": state.matrix[0],
            "out_padded_at_real": padded[0][real],
            "state_padded": padded_state.matrix[0],
        }
        found = {**found, **cases.FAULTY["B49"](given_)} if faulty else found
        for name, tensor in expected.items():
            close(found[name], tensor, 1e-9)

    for sizes in given_["chunkings"]:
        for feature_map in ("identity", None, lambda x: x, torch.nn.Identity()):
            check(feature_map, sizes)
    with pytest.raises(AssertionError):
        check(None, [7], faulty=True)


@pytest.mark.parametrize("decay", [1e-30, 1e-3, 0.5, 0.999, 1.0])
def test_long_sequences_and_small_decays(decay: float) -> None:
    tensors = [rand(1, 3000, 4, seed=seed, dtype=torch.float32) for seed in range(3)]
    gate = torch.full((1, 3000), decay)
    real = torch.arange(3000) % 7 != 0
    out, state = linear_attend(
        *tensors, feature_map=None, causal=True, decay=gate, key_mask=real, return_state=True
    )  # fmt: skip
    exact, exact_state = recurrence(*(tensor.double() for tensor in tensors), gate.double(), real)
    assert (out - exact).abs().max() <= 1e-5 * exact.abs().max()
    assert (state.matrix - exact_state).abs().max() <= 1e-5 * exact_state.abs().max()
    assert torch.isfinite(linear_attend(*tensors, causal=True, decay=gate)).all()


def test_mixed_gates_keep_their_digits() -> None:
    """Beside a tiny gate, gates near 1 still count: a difference of running sums of logarithms would lose them."""
    tensors = [rand(1, 64, 4, seed=seed, dtype=torch.float32) for seed in range(3)]
    gate = torch.full((1, 64), 0.99)
    gate[0, ::9] = 1e-37
    exact, _ = recurrence(*(tensor.double() for tensor in tensors), gate.double(), torch.ones(64, dtype=torch.bool))
    out = linear_attend(*tensors, feature_map=None, causal=True, decay=gate)
    assert (out - exact).abs().max() <= 1e-6 * exact.abs().max()
