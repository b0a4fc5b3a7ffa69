"""`Linear`: `nn.Linear` in all it does, and the kernel where few rows ask for no gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from attnops.kernels import library
from attnops.seq import Decoder, Linear, TransformerConfig
from attnops.seq import linear as module

needs_library = pytest.mark.skipif(library.unavailable() is not None, reason=str(library.unavailable()))


class Subclass(Tensor):
    pass


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """The shapes that met the kernel."""
    met: list[tuple[int, ...]] = []
    kernel = module.linear_rows

    def watched(x: Tensor, *rest: Any) -> Tensor:
        met.append(tuple(x.shape))
        return kernel(x, *rest)

    monkeypatch.setattr(module, "linear_rows", watched)
    return met


@needs_library
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("shape", [(300,), (1, 300), (8, 1, 300), (2, 16, 300)])
def test_few_rows_meet_the_kernel(shape: tuple[int, ...], bias: bool, calls: list[tuple[int, ...]]) -> None:
    layer, x = Linear(300, 256, bias), torch.randn(shape)
    with torch.no_grad():
        got = layer(x)
    assert calls == [shape]
    torch.testing.assert_close(got, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def in_function_mode(layer: Linear, x: Tensor) -> Tensor:
    with torch.device("cpu"):  # torch's own function mode
        return layer(x)  # type: ignore[no-any-return]


def in_dispatch_mode(layer: Linear, x: Tensor) -> Tensor:
    with FlopCounterMode(display=False) as counter:
        out: Tensor = layer(x)
    assert counter.get_total_flops() == 2 * x.numel() * layer.out_features
    return out


def under_autocast(layer: Linear, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        out: Tensor = layer(x)
    assert out.dtype == torch.bfloat16
    return out


def with_tangent(layer: Linear, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        out = layer(forward_ad.make_dual(x, torch.ones_like(x)))  # type: ignore[no-untyped-call]
        primal, tangent = forward_ad.unpack_dual(out)  # type: ignore[no-untyped-call]
    assert tangent is not None
    return primal  # type: ignore[no-any-return]


def with_gradients(layer: Linear, x: Tensor) -> Tensor:
    with torch.enable_grad():
        out: Tensor = layer(x)
    assert out.requires_grad
    return out


def of_a_transposed_weight(layer: Linear, x: Tensor) -> Tensor:
    layer.weight = nn.Parameter(layer.weight.t().contiguous().t())
    return layer(x)  # type: ignore[no-any-return]


WATCHED: dict[str, Callable[[Linear, Tensor], Tensor]] = {
    "gradients": with_gradients,
    "autocast": under_autocast,
    "vmap": lambda layer, x: torch.vmap(layer)(x),
    "tangent": with_tangent,
    "function mode": in_function_mode,
    "dispatch mode": in_dispatch_mode,
    "subclass": lambda layer, x: layer(x.as_subclass(Subclass)),  # type: ignore[arg-type]
    "compile": lambda layer, x: torch.compile(layer, backend="eager", fullgraph=True)(x),
    "halves": lambda layer, x: layer.bfloat16()(x.bfloat16()),
    "many rows": lambda layer, x: layer(x.expand(33, 300)),
    "negated view": lambda layer, x: layer(torch._neg_view(x)),
    "transposed weight": of_a_transposed_weight,
}


@pytest.mark.parametrize("how", WATCHED)
def test_all_else_is_torch(how: str, calls: list[tuple[int, ...]]) -> None:
    layer, x = Linear(300, 256), torch.randn(1, 300)
    with torch.no_grad():
        out = WATCHED[how](layer, x)
    assert not calls
    right = F.linear(-x if how == "negated view" else x, layer.weight.float(), layer.bias.float())
    near = 0.05 if how in ("halves", "autocast") else 1e-5
    torch.testing.assert_close(
        out.detach().as_subclass(Tensor).float(), right.detach().expand(len(out), -1), rtol=near, atol=near
    )


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.randn(2, 299), "cannot be multiplied"),
        (torch.randn(2, 300, dtype=torch.float64), "same dtype"),
        (torch.tensor(1.0), "."),
    ],
)
def test_what_does_not_fit_is_an_error_and_reads_nothing(x: Tensor, message: str) -> None:
    layer = Linear(300, 256)
    with torch.no_grad(), pytest.raises(RuntimeError, match=message):
        layer(x)
    with torch.no_grad(), pytest.raises(RuntimeError):
        module.linear(torch.randn(2, 300), layer.weight, torch.zeros(255))


def test_no_rows_and_inference_mode() -> None:
    layer = Linear(300, 256)
    with torch.inference_mode():
        assert layer(torch.randn(0, 300)).shape == (0, 256)
        assert layer(torch.randn(2, 0, 300)).shape == (2, 0, 256)
        assert layer(torch.randn(3, 300)).is_inference()


@needs_library
def test_a_step_of_a_model_runs_on_it_head_and_all(calls: list[tuple[int, ...]]) -> None:
    model = Decoder(TransformerConfig(vocab_size=400, dim=256, layers=2, heads=4, ff_dim=300)).eval()
    ids = torch.randint(400, (1, 3))
    with torch.no_grad():
        step = model(ids)
    assert len(calls) == 2 * 4 + 1  # qkv, out, up, down of each layer, and the head
    torch.testing.assert_close(step, model(ids).detach(), rtol=1e-4, atol=1e-5)


def test_names_and_repr_are_those_of_torch() -> None:
    ours, theirs = Linear(3, 4), nn.Linear(3, 4)
    assert repr(ours) == repr(theirs) and list(ours.state_dict()) == list(theirs.state_dict())
    assert isinstance(ours, nn.Linear)
