"""Linear layers: the kernel where few rows ask for no gradient, and torch's own in everything else."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import forward_ad
from torch.utils.flop_counter import FlopCounterMode

from attnops.kernels import library
from attnops.seq import Decoder, FeedForward, LatentConfig, TransformerConfig
from attnops.seq import linear as module
from attnops.seq.linear import apply_linear, linear

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
@pytest.mark.parametrize("shape", [(300,), (1, 300), (8, 1, 300), (2, 8, 300)])
def test_few_rows_meet_the_kernel(shape: tuple[int, ...], bias: bool, calls: list[tuple[int, ...]]) -> None:
    layer, x = nn.Linear(300, 256, bias), torch.randn(shape)
    with torch.no_grad():
        got = apply_linear(layer, x)
    with torch.inference_mode():
        assert torch.equal(apply_linear(layer, x), got) and torch.equal(linear(x + 0, layer.weight, layer.bias), got)
    assert calls == [shape] * 3
    torch.testing.assert_close(got, F.linear(x, layer.weight, layer.bias), rtol=1e-5, atol=1e-5)


def in_function_mode(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.device("cpu"):  # torch's own function mode
        return apply_linear(layer, x)


def in_dispatch_mode(layer: nn.Linear, x: Tensor) -> Tensor:
    with FlopCounterMode(display=False) as counter:
        out = apply_linear(layer, x)
    assert counter.get_total_flops() == 2 * x.numel() * layer.out_features
    return out


def under_autocast(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.autocast("cpu", torch.bfloat16):
        out = apply_linear(layer, x)
    assert out.dtype == torch.bfloat16
    return out


def with_tangent(layer: nn.Linear, x: Tensor) -> Tensor:
    with forward_ad.dual_level():
        out = apply_linear(layer, forward_ad.make_dual(x, torch.ones_like(x)))  # type: ignore[no-untyped-call]
        primal, tangent = forward_ad.unpack_dual(out)  # type: ignore[no-untyped-call]
    assert tangent is not None
    return primal  # type: ignore[no-any-return]


def with_gradients(layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.enable_grad():
        out = apply_linear(layer, x)
    assert out.requires_grad
    return out


def of_a_transposed_weight(layer: nn.Linear, x: Tensor) -> Tensor:
    layer.weight = nn.Parameter(layer.weight.t().contiguous().t())
    return apply_linear(layer, x)


def compiled(layer: nn.Linear, x: Tensor) -> Tensor:
    return torch.compile(apply_linear, backend="eager", fullgraph=True)(layer, x)  # type: ignore[no-any-return]


def functional(layer: nn.Linear, x: Tensor) -> Tensor:
    return torch._from_functional_tensor(linear(torch._to_functional_tensor(x), layer.weight, layer.bias))  # type: ignore[no-any-return]


WATCHED: dict[str, Callable[[nn.Linear, Tensor], Tensor]] = {
    "gradients": with_gradients,
    "autocast": under_autocast,
    "vmap": lambda layer, x: torch.vmap(lambda row: apply_linear(layer, row))(x),
    "tangent": with_tangent,
    "function mode": in_function_mode,
    "dispatch mode": in_dispatch_mode,
    "subclass": lambda layer, x: apply_linear(layer, x.as_subclass(Subclass)),  # type: ignore[arg-type]
    "compile": compiled,
    "functional": functional,
    "halves": lambda layer, x: apply_linear(layer.bfloat16(), x.bfloat16()),
    "many rows": lambda layer, x: apply_linear(layer, x.expand(17, 300)),
    "narrow weights": lambda layer, x: linear(x[:, :100], layer.weight[:, :100].contiguous(), layer.bias),
    "negated view": lambda layer, x: apply_linear(layer, torch._neg_view(x)),
    "transposed weight": of_a_transposed_weight,
    "sparse weight": lambda layer, x: linear(x, layer.weight.detach().to_sparse_csr(), None) + layer.bias,
    "nothing but zeros": lambda layer, x: linear(torch._efficientzerotensor(x.shape), layer.weight, layer.bias),
}


@pytest.mark.parametrize("how", WATCHED)
@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta state")
def test_all_else_is_torch(how: str, calls: list[tuple[int, ...]]) -> None:
    layer, x = nn.Linear(300, 256), torch.randn(1, 300)
    with torch.no_grad():
        out = WATCHED[how](layer, x)
    assert not calls
    met = {"negated view": -x, "nothing but zeros": 0 * x}.get(how, x)
    width = 100 if how == "narrow weights" else 300
    right = F.linear(met[:, :width], layer.weight.float()[:, :width], layer.bias.float())
    near = 0.05 if how in ("halves", "autocast") else 1e-5
    torch.testing.assert_close(
        out.detach().as_subclass(Tensor).float(), right.detach().expand(len(out), -1), rtol=near, atol=near
    )


class Doubled(nn.Linear):
    """An adapter."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


def with_own_forward(layer: nn.Linear) -> nn.Module:
    before = layer.forward
    layer.forward = lambda x: 2 * before(x)  # type: ignore[method-assign,assignment]
    return layer


def with_hook(layer: nn.Linear, before: bool) -> nn.Module:
    if before:
        layer.register_forward_pre_hook(lambda _, given: (2 * given[0],))
    else:
        layer.register_forward_hook(lambda _, given, out: 2 * out)
    return layer


def parametrized(layer: nn.Linear) -> nn.Module:
    class Twice(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return 2 * weight

    return torch.nn.utils.parametrize.register_parametrization(layer, "weight", Twice(), unsafe=True)


CHANGED: dict[str, Callable[[nn.Linear], nn.Module]] = {
    "adapter": lambda layer: Doubled(300, 256, bias=False).requires_grad_(False),
    "forward of its own": with_own_forward,
    "hook before": lambda layer: with_hook(layer, True),
    "hook after": lambda layer: with_hook(layer, False),
    "parametrized": parametrized,
}


@pytest.mark.parametrize("how", CHANGED)
def test_a_layer_that_was_changed_is_called_as_it_is(how: str, calls: list[tuple[int, ...]]) -> None:
    plain, x = nn.Linear(300, 256, bias=False), torch.randn(2, 300)
    state = copy.deepcopy(plain.state_dict())
    layer = CHANGED[how](plain)
    if how == "adapter":
        layer.load_state_dict(state)
    with torch.no_grad():
        out = apply_linear(layer, x)
    assert not calls
    torch.testing.assert_close(out, 2 * F.linear(x, state["weight"]), rtol=1e-5, atol=1e-5)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::UserWarning", "ignore::FutureWarning")
def test_quantisation_finds_the_layers(calls: list[tuple[int, ...]]) -> None:
    model = Decoder(TransformerConfig(vocab_size=300, dim=256, layers=2, heads=4, ff_dim=300)).eval()
    small = torch.ao.quantization.quantize_dynamic(model, {nn.Linear})
    kinds = [type(each) for each in small.modules() if type(each).__name__ == "Linear"]
    assert len(kinds) == 8 and nn.Linear not in kinds
    ids = torch.randint(300, (1, 3))
    with torch.no_grad():
        torch.testing.assert_close(small(ids), model(ids), rtol=0.2, atol=0.05)


@pytest.mark.parametrize("learns", [False, True])
def test_symbolic_tracing_keeps_the_layers_whole(learns: bool) -> None:
    with torch.set_grad_enabled(learns):
        graph = torch.fx.symbolic_trace(FeedForward(256, 300, "gelu")).graph
    assert [node.target for node in graph.nodes if node.op == "call_module"] == ["up", "down"]
    assert not [node for node in graph.nodes if node.op == "get_attr"]


def test_a_layer_whose_weight_lies_elsewhere() -> None:
    layer, x = nn.Linear(300, 256, bias=False), torch.randn(2, 300)
    held, out = layer.weight.data, layer(x).detach()
    del layer.weight
    layer.forward = lambda x: F.linear(x, held)  # type: ignore[method-assign,assignment]
    for learns in (False, True):
        with torch.set_grad_enabled(learns):
            assert torch.equal(apply_linear(layer, x), out)


@pytest.mark.parametrize(
    "x, message",
    [
        (torch.randn(2, 299), "cannot be multiplied"),
        (torch.randn(2, 300, dtype=torch.float64), "same dtype"),
        (torch.tensor(1.0), "."),
    ],
)
def test_what_does_not_fit_is_an_error_and_reads_nothing(x: Tensor, message: str) -> None:
    layer = nn.Linear(300, 256)
    with torch.no_grad(), pytest.raises(RuntimeError, match=message):
        apply_linear(layer, x)
    with torch.no_grad(), pytest.raises(RuntimeError):
        linear(torch.randn(2, 300), layer.weight, torch.zeros(255))


@pytest.mark.parametrize("which", [0, 1, 2])
def test_memory_that_was_given_back_is_not_read(which: int) -> None:
    tensors = torch.randn(3, 300)[1:], torch.randn(257, 300)[1:], torch.randn(257)[1:]
    tensors[which].untyped_storage().resize_(0)
    with torch.no_grad(), pytest.raises(RuntimeError, match=r"not allocated|storage"):
        linear(*tensors)


def test_no_rows() -> None:
    layer = nn.Linear(300, 256)
    with torch.no_grad():
        assert apply_linear(layer, torch.randn(0, 300)).shape == (0, 256)
        assert apply_linear(layer, torch.randn(2, 0, 300)).shape == (2, 0, 256)


@needs_library
@pytest.mark.parametrize("latent", [None, LatentConfig(rank=256)])
def test_a_step_of_a_model_runs_on_it_head_and_all(latent: LatentConfig | None, calls: list[tuple[int, ...]]) -> None:
    config = TransformerConfig(vocab_size=400, dim=256, layers=2, heads=4, ff_dim=300, latent=latent)
    model, ids = Decoder(config).eval(), torch.randint(400, (1, 3))
    with torch.no_grad():
        step = model(ids)
    linears = sum(type(each) is nn.Linear for each in model.modules())
    assert len(calls) == linears + 1  # with the head
    torch.testing.assert_close(step, model(ids).detach(), rtol=1e-4, atol=1e-5)


def test_a_model_is_copied_and_saved_as_ever() -> None:
    model, ids = FeedForward(256, 300), torch.randn(1, 256)
    held = io.BytesIO()
    torch.save(model.state_dict(), held)
    held.seek(0)
    again = FeedForward(256, 300)
    again.load_state_dict(torch.load(held, weights_only=True))
    with torch.no_grad():
        assert torch.equal(again(ids), model(ids)) and torch.equal(copy.deepcopy(model)(ids), model(ids))
