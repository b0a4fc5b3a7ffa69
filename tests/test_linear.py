"""Linear attention: however a sequence is cut, padded or batched, it is the recurrence, and that is the sum."""

from __future__ import annotations

from collections.abc import Sequence
from types import ModuleType
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnops.linear import LinearState, linear_attend

D64 = torch.float64
MAPS = {"elu": lambda x: torch.nn.functional.elu(x) + 1, "relu": torch.relu, "identity": lambda x: x}


def rand(*shape: int, seed: int = 0, dtype: torch.dtype = D64) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def naive(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    feature_map: str = "elu",
    causal: bool = False,
    decay: Tensor | None = None,
    key_mask: Tensor | None = None,
    normalize: bool | None = None,
) -> Tensor:
    """The quadratic form: every pair laid out, decays multiplied one by one."""
    phi = MAPS[feature_map]
    repeat = query.shape[-3] // key.shape[-3]
    key, value = key.repeat_interleave(repeat, -3), value.repeat_interleave(repeat, -3)
    weights = phi(query) @ phi(key).transpose(-1, -2)
    steps = torch.arange(key.shape[-2])
    real = torch.ones(key.shape[-2], dtype=torch.bool) if key_mask is None else key_mask
    weights = weights * real[..., None, None, :]
    if causal:
        weights = weights * (steps[:, None] >= steps)
        if decay is not None:
            gate = torch.where(real.unsqueeze(-2), decay, 1).expand(weights.shape[:-1])
            for later in steps:
                weights = torch.where(
                    (steps[:, None] >= later) & (later > steps), weights * gate[..., later, None, None], weights
                )
    total = weights.sum(-1, keepdim=True)
    if normalize is False or (normalize is None and feature_map == "identity"):
        return weights @ value
    return torch.where(total == 0, 0, weights @ value / torch.where(total == 0, 1, total))


def recurrence(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, real: Tensor) -> tuple[Tensor, Tensor]:
    """S = decay_t S + k_t v_tᵀ; o_t = q_t S; a masked step is skipped."""
    state, outs = query.new_zeros(*key.shape[:-2], key.shape[-1], value.shape[-1]), []
    for step in range(key.shape[-2]):
        at = [tensor[..., step, :] for tensor in (query, key, value)]
        if real[step]:
            state = decay[..., step, None, None] * state + at[1].unsqueeze(-1) * at[2].unsqueeze(-2)
        outs.append((at[0].unsqueeze(-2) @ state).squeeze(-2))
    return torch.stack(outs, -2), state


def in_chunks(
    sizes: Sequence[int], tensors: Sequence[Tensor], decay: Any = None, key_mask: Tensor | None = None, **options: Any
) -> tuple[Tensor, LinearState | None]:
    outs, state, start = [], None, 0
    for size in sizes:
        cut = slice(start, start + size)
        out, state = linear_attend(
            *(tensor[..., cut, :] for tensor in tensors),
            causal=True,
            decay=decay[..., cut] if isinstance(decay, Tensor) and decay.ndim > 1 else decay,
            key_mask=None if key_mask is None else key_mask[..., cut],
            state=state,
            return_state=True,
            **options,
        )
        outs.append(out)
        start += size
    return torch.cat(outs, -2), state


def close(found: Tensor, expected: Tensor, tolerance: float = 1e-10) -> None:
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)


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


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("feature_map", ["elu", "relu", None])
def test_masked_steps_reach_nothing(feature_map: str | None, causal: bool) -> None:
    real = torch.arange(70) % 3 != 1
    results = []
    for garbage in (0.0, torch.nan, torch.inf):
        query, *rest = (rand(2, 2, 70, 3, seed=seed) for seed in range(3))
        gate = torch.sigmoid(rand(2, 2, 70))
        key, value = (torch.where(real[:, None], tensor, garbage) for tensor in rest)
        gate = torch.where(real, gate, garbage)
        inputs = [tensor.requires_grad_() for tensor in ((query, key, value, gate) if causal else (query, key, value))]
        out, state = linear_attend(
            query, key, value, feature_map, causal, gate if causal else None, key_mask=real, return_state=True
        )
        (out.sin().sum() + state.matrix.cos().sum()).backward()
        for tensor in inputs[1:3]:
            assert (tensor.grad[..., ~real, :] == 0).all()
        results.append([out, *state, *(tensor.grad for tensor in inputs)])
    assert all(torch.isfinite(tensor).all() for tensor in results[0])
    for other in results[1:]:
        assert all(torch.equal(one, two) for one, two in zip(results[0], other, strict=True))


def test_a_batch_row_that_is_masked_whole_keeps_its_state() -> None:
    tensors = [rand(2, 1, 5, 3, seed=seed) for seed in range(3)]
    state = LinearState(rand(2, 1, 3, 3).abs(), rand(2, 1, 3).abs())
    mask = torch.tensor([[True], [False]]).expand(2, 5)
    _, end = linear_attend(*tensors, causal=True, decay=0.5, key_mask=mask, state=state, return_state=True)
    assert torch.equal(end.matrix[1], state.matrix[1]) and torch.equal(end.normalizer[1], state.normalizer[1])
    assert not torch.equal(end.matrix[0], state.matrix[0])


@pytest.mark.parametrize("causal", [False, True])
def test_a_denominator_of_zero_gives_zero(causal: bool) -> None:
    query, key, value = (rand(1, 4, 3, seed=seed) for seed in range(3))
    query[0, 1] = -1  # relu makes it 0
    inputs = [tensor.requires_grad_() for tensor in (query, key.abs(), value)]
    out = linear_attend(*inputs, feature_map="relu", causal=causal)
    out.sum().backward()
    assert (out[0, 1] == 0).all() and (out[0, 0] != 0).all()
    assert all(torch.isfinite(tensor.grad).all() for tensor in inputs)
    nobody = linear_attend(*inputs, causal=causal, key_mask=torch.zeros(4, dtype=torch.bool))
    assert torch.equal(nobody, torch.zeros_like(nobody))
    # A numerator that is not zero over a denominator that is.
    query, key = torch.tensor([[[1.0, 1.0]]]), torch.tensor([[[1.0, -1.0], [1.0, -1.0]]])
    assert linear_attend(query, key, rand(1, 2, 3, dtype=torch.float32), None, normalize=True).abs().max() == 0


def test_very_negative_features_keep_elu_plus_one_positive() -> None:
    query, key = torch.full((1, 1, 2), -30.0), torch.full((1, 2, 2), -30.0)
    value = torch.tensor([[[1.0], [3.0]]])
    assert linear_attend(query, key, value).item() == pytest.approx(2.0)


@pytest.mark.parametrize("length", [1, 5, 67])
@pytest.mark.parametrize("feature_map", ["elu", None])
def test_gradients(feature_map: str | None, length: int) -> None:
    shapes = [(4, length, 2), (2, length, 2), (2, length, 2)]
    tensors = [rand(*shape, seed=seed).requires_grad_() for seed, shape in enumerate(shapes)]
    gate = torch.sigmoid(rand(4, length)).requires_grad_()
    state = [rand(4, 2, 2, seed=5).abs().requires_grad_(), (rand(4, 2, seed=6).abs() + 1).requires_grad_()]
    mask = torch.arange(length) % 4 != 2

    def run(query: Tensor, key: Tensor, value: Tensor, gate: Tensor, *state: Tensor) -> tuple[Tensor, ...]:
        out, end = linear_attend(
            query, key, value, feature_map, True, gate, mask, LinearState(*state), return_state=True
        )  # fmt: skip
        return out, *end

    inputs = (*tensors, gate, *state)
    if length > 5:  # every entry would take minutes: one random direction instead
        assert torch.autograd.gradcheck(run, inputs, fast_mode=True)
    else:
        assert torch.autograd.gradcheck(run, inputs)
        assert torch.autograd.gradgradcheck(run, inputs)
        assert torch.autograd.gradcheck(lambda *qkv: linear_attend(*qkv, feature_map, key_mask=mask), tensors)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_accumulates_in_float32(dtype: torch.dtype) -> None:
    tensors = [rand(2, 500, 4, seed=seed, dtype=torch.float32).to(dtype) for seed in range(3)]
    exact, end = linear_attend(*(tensor.double() for tensor in tensors), causal=True, decay=0.99, return_state=True)
    out, state = linear_attend(*tensors, causal=True, decay=0.99, return_state=True)
    assert out.dtype == dtype and state.matrix.dtype == state.normalizer.dtype == torch.float32
    assert (out - exact).abs().max() <= (torch.finfo(dtype).eps + 1e-5) * exact.abs().max()
    assert (state.matrix - end.matrix).abs().max() <= 1e-5 * end.matrix.abs().max()


def test_autocast_leaves_it_alone() -> None:
    tensors = [rand(2, 80, 4, seed=seed, dtype=torch.float32) for seed in range(3)]
    plain = linear_attend(*tensors, causal=True, decay=0.9)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(linear_attend(*tensors, causal=True, decay=0.9), plain)


def test_own_feature_map() -> None:
    weight = rand(3, 6).requires_grad_()
    tensors = [rand(2, 9, 3, seed=seed) for seed in range(3)]
    out, state = linear_attend(*tensors, feature_map=lambda x: (x @ weight).exp(), causal=True, return_state=True)
    weights = ((tensors[0] @ weight).exp() @ (tensors[1] @ weight).exp().transpose(-1, -2)).tril()
    close(out, weights @ tensors[2] / weights.sum(-1, keepdim=True))
    assert state.matrix.shape == (2, 6, 3)
    out.sum().backward()
    assert weight.grad.abs().sum() > 0


@pytest.mark.parametrize("decay", [None, 0.9, "step"])
@pytest.mark.parametrize("length", [1, 5, 130])
def test_compile(decay: Any, length: int) -> None:
    torch.compiler.reset()
    tensors = [rand(2, 2, length, 3, seed=seed) for seed in range(3)]
    options = {"decay": torch.sigmoid(rand(2, 2, length)) if decay == "step" else decay, "feature_map": lambda x: x}
    options["key_mask"] = rand(2, length) > -1
    state = LinearState(rand(2, 2, 3, 3), rand(2, 2, 3))

    def run(query: Tensor, key: Tensor, value: Tensor, state: LinearState) -> tuple[Tensor, LinearState]:
        return linear_attend(query, key, value, causal=True, state=state, return_state=True, **options)

    out, end = run(*tensors, state)
    found, found_end = torch.compile(run, fullgraph=True, backend="aot_eager")(*tensors, state)
    close(found, out)
    assert isinstance(found_end, LinearState)
    close(found_end.matrix, end.matrix)


def test_vmap_and_export() -> None:
    tensors = [rand(3, 2, 70, 3, seed=seed) for seed in range(3)]
    gate, mask = torch.sigmoid(rand(3, 2, 70)), rand(3, 70) > -1

    class Gated(torch.nn.Module):
        def forward(self, query: Tensor, key: Tensor, value: Tensor, gate: Tensor, mask: Tensor) -> Tensor:
            out = linear_attend(query, key, value, causal=True, decay=gate, key_mask=mask)
            assert isinstance(out, Tensor)
            return out

    inputs = (*tensors, gate, mask)
    expected = Gated()(*inputs)
    close(torch.func.vmap(Gated())(*inputs), expected)
    close(torch.export.export(Gated(), inputs).module()(*inputs), expected)


def test_a_gate_that_underflowed_while_traced_forgets_and_has_a_finite_gradient() -> None:
    tensors = [rand(1, 2, 70, 3, seed=seed) for seed in range(3)]
    gate = torch.full((1, 2, 70), 0.5, dtype=D64)
    gate[..., 33] = 0  # read where values can be read, and refused; under vmap they cannot

    def loss(gate: Tensor) -> Tensor:
        return linear_attend(*(tensor[0] for tensor in tensors), causal=True, decay=gate, normalize=False).sin().sum()

    assert torch.isfinite(torch.func.vmap(torch.func.grad(loss))(gate)).all()
    out = torch.func.vmap(lambda *each: linear_attend(*each[:3], causal=True, decay=each[3]))(*tensors, gate)
    fresh = linear_attend(*(tensor[:, :, 33:] for tensor in tensors), causal=True, decay=0.5)
    close(out[:, :, 33:], fresh)


@pytest.mark.parametrize("decay", [None, 0.5])
def test_nothing_to_attend(decay: float | None) -> None:
    state = LinearState(rand(1, 3, 2), rand(1, 3))
    out, end = linear_attend(
        *[torch.zeros(1, 0, 3, dtype=D64)] * 2, torch.zeros(1, 0, 2, dtype=D64), causal=True, decay=decay, state=state,
        return_state=True,
    )  # fmt: skip
    assert out.shape == (1, 0, 2) and torch.equal(end.matrix, state.matrix)
    assert linear_attend(*[torch.zeros(0, 2, 4, 3)] * 3, causal=True, decay=decay).shape == (0, 2, 4, 3)
    alone = linear_attend(torch.randn(1, 4, 3), *[torch.zeros(1, 0, 3)] * 2)
    assert torch.equal(alone, torch.zeros(1, 4, 3))


def test_strides_do_not_matter() -> None:
    tensors = [rand(70, 2, 3, seed=seed).transpose(0, 1) for seed in range(3)]
    close(
        linear_attend(*tensors, causal=True, decay=0.9),
        linear_attend(*(tensor.contiguous() for tensor in tensors), causal=True, decay=0.9),
    )


def test_memory_is_linear_in_the_length(monkeypatch: pytest.MonkeyPatch) -> None:
    """No tensor that is made grows faster than N."""
    from torch.utils._python_dispatch import TorchDispatchMode

    class Largest(TorchDispatchMode):
        numel = 0

        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            result = func(*args, **(kwargs or {}))
            for each in result if isinstance(result, (tuple, list)) else [result]:
                if isinstance(each, Tensor):
                    self.numel = max(self.numel, each.untyped_storage().nbytes())
            return result

    def largest(length: int) -> int:
        tensors = [torch.randn(1, length, 8) for _ in range(3)]
        with Largest() as seen:
            linear_attend(*tensors, causal=True, decay=0.9)
        return seen.numel

    assert largest(2048) <= 2 * largest(1024) <= 4 * largest(512) < 512**2 * 4


X = torch.zeros(2, 4, 5, 3)


@pytest.mark.parametrize(
    ("change", "error", "words"),
    [
        ({"query": X[0, 0]}, ValueError, r"query has shape \[5, 3\]"),
        ({"query": 3}, TypeError, "query is int"),
        ({"key": X.double()}, TypeError, r"key is torch\.float64"),
        ({"query": X.long(), "key": X.long(), "value": X.long()}, TypeError, r"query is torch\.int64"),
        ({"key": X[:1]}, ValueError, r"key has shape \[1, 4, 5, 3\]"),
        ({"key": X[..., :2]}, ValueError, "key has 2 features; it must have 3"),
        ({"key": X[:, :3], "value": X[:, :3]}, ValueError, "query has 4 heads; it must be a multiple of the 3 of key"),
        ({"value": X[:, :, :4]}, ValueError, r"value has \[H, N\] = \[4, 4\]; it must have \[4, 5\]"),
        ({"key": X[:, :, :4], "value": X[:, :, :4], "causal": True}, ValueError, "key has 4 steps; .* must have 5"),
        ({"feature_map": "gelu"}, ValueError, "feature_map is 'gelu'; it must be 'elu', 'relu', 'identity'"),
        ({"feature_map": 3}, TypeError, "feature_map is int"),
        ({"feature_map": lambda x: x[..., 0]}, ValueError, "feature_map makes .* of the query"),
        ({"decay": 0.5}, ValueError, "decay was given without causal=True"),
        ({"decay": 0.0, "causal": True}, ValueError, r"decay runs from 0\.0 to 0\.0; it must be in \(0, 1\]"),
        ({"decay": torch.tensor([0.5, 1.5, 1, 1]), "causal": True}, ValueError, r"decay runs from 0\.5 to 1\.5"),
        ({"decay": torch.full((4, 5), torch.nan), "causal": True}, ValueError, "decay runs from nan"),
        ({"decay": torch.ones(5), "causal": True}, ValueError, r"decay has shape \[5\]; it must be a number, \[H\]"),
        ({"key_mask": torch.ones(2, 5)}, TypeError, r"key_mask is torch\.float32; it must be a bool tensor"),
        ({"key_mask": torch.ones(2, 4).bool()}, ValueError, r"key_mask has shape \[2, 4\]; .* \[2, 5\]"),
        ({"state": (X, X)}, TypeError, "state is tuple; it must be a LinearState"),
        ({"state": LinearState(X, X)}, ValueError, r"state\.matrix has shape .*; it must be \[2, 4, 3, 3\]"),
    ],
)
def test_errors(change: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        linear_attend(**{"query": X, "key": X, "value": X, **change})
