"""Linear attention under what torch does to it: autograd, dtypes, compile, vmap, export; and its memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.linear import LinearState, linear_attend
from tests.linear.forms import D64, close, rand


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
