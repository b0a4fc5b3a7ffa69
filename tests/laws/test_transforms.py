"""Law 10: compile, export, vmap and autocast run every backend, or the refusal says which would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map_only

import attnops
from attnops import Edges
from tests.laws.problems import BACKENDS, EDGES_ALONE, TRAINING, Crossing
from tests.laws.test_forbidden import close

H, N, D = 2, 6, 4
ENDS = torch.cartesian_prod(torch.arange(N), torch.arange(N)).t()[:, ::2].contiguous()


def vectors(count: int = 3, *batch: int, dtype: torch.dtype = torch.float64) -> list[Tensor]:
    random = torch.Generator().manual_seed(0)
    return [torch.randn(*batch, H, N, D, generator=random, dtype=torch.float64).to(dtype) for _ in range(count)]


def learned(module: nn.Module) -> Any:
    for parameter in module.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(1))
    return module.double()


def priors() -> dict[str, tuple[Any, Any]]:
    """Name: (pattern, bias), built outside the traced function."""
    return {
        "plain": (None, None),
        "causal": (attnops.Causal(), None),
        "window and alibi": (attnops.SlidingWindow(2, 1), attnops.ALiBi(H)),
        "table": (attnops.Causal(), learned(attnops.RelativeBias(H, 8, 6))),
        "rotary and sink": (None, attnops.Rotary(D) + learned(attnops.Sink(H))),
        "padding": (attnops.Padding(torch.tensor(4)), None),
    }


EDGE_PRIORS = {
    "edges": lambda: (Edges(ENDS, N, N), None),
    "features": lambda: (
        Edges(ENDS, N, N, attr=torch.ones(ENDS.shape[1], 3, dtype=torch.float64)), learned(attnops.EdgeBias(3, H)),
    ),
    "filtered": lambda: (Edges(ENDS, N, N) & attnops.Causal(), attnops.ALiBi(H)),
}  # fmt: skip


def prior_of(backend: str, name: str) -> tuple[Any, Any]:
    return EDGE_PRIORS[name]() if name in EDGE_PRIORS else priors()[name]


def cases(backends: list[str]) -> list[Any]:
    dense = ["plain", "causal", "window and alibi", "table", "rotary and sink", "padding"]
    names = {"scatter": list(EDGE_PRIORS), "triton": list(EDGE_PRIORS), "flex": ["plain", "causal", "window and alibi"]}
    return [
        pytest.param(backend, name, id=f"{backend}-{name}")
        for backend in backends
        for name in names.get(backend, dense)
    ]


def call(backend: str, name: str) -> Any:
    pattern, bias = prior_of(backend, name)
    return lambda q, k, v: attnops.attend(q, k, v, pattern=pattern, bias=bias, backend=backend), bias


def gradients(run: Any, bias: Any) -> list[Tensor]:
    inputs = [x.requires_grad_() for x in vectors()]
    parameters = [] if bias is None else list(bias.parameters())
    out = run(*inputs)
    weigh = torch.randn(out.shape, generator=torch.Generator().manual_seed(2), dtype=out.dtype)
    return [out.detach(), *torch.autograd.grad(out, inputs + parameters, weigh)]


# -------------------------------------------------------------------------------------------------------- torch.compile
@pytest.fixture
def fresh() -> Any:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("backend", "name"), cases(BACKENDS))
def test_compiled_forward(backend: str, name: str) -> None:
    run, _ = call(backend, name)
    with torch.no_grad():
        want = run(*vectors())
        got = torch.compile(run, fullgraph=True, backend="aot_eager")(*vectors())
    close(got, want, "out")


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize(("backend", "name"), cases(TRAINING))
def test_compiled_training(backend: str, name: str) -> None:
    run, bias = call(backend, name)
    want = gradients(run, bias)
    for got, right in zip(gradients(torch.compile(run, fullgraph=True, backend="aot_eager"), bias), want, strict=True):
        close(got, right, "out or gradient", least=10.0)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", [name for name in TRAINING if name not in EDGES_ALONE])
def test_compiled_training_with_a_bias_of_the_users_own(backend: str) -> None:
    """It runs, or the refusal names a backend that would."""
    bias = learned(Crossing(H))
    kinds = attnops.Coords(type=torch.arange(N) % 3)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attnops.attend(q, k, v, bias=bias, coords=kinds, backend=backend)

    want = gradients(run, bias)
    try:
        got = gradients(torch.compile(run, fullgraph=True, backend="aot_eager"), bias)
    except Exception as error:
        assert "refuses" in str(error) and "'reference'" in str(error), error
        return
    for mine, right in zip(got, want, strict=True):
        close(mine, right, "out or gradient", least=10.0)


@pytest.mark.usefixtures("fresh")
def test_compiled_by_inductor_with_auto_and_other_lengths() -> None:
    bias = attnops.ALiBi(H)

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attnops.attend(q, k, v, pattern=attnops.Causal(), bias=bias)

    compiled = torch.compile(run, fullgraph=True)
    inputs = vectors(dtype=torch.float32)
    torch.testing.assert_close(compiled(*inputs), run(*inputs))


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", BACKENDS)
def test_compiled_garbage_in_padding_stays_out(backend: str) -> None:
    """For keys that no query of their batch and head may attend."""
    query, key, value = vectors()
    pattern: attnops.Pattern = attnops.Padding(torch.tensor(4))
    if backend in EDGES_ALONE:
        pattern = Edges(ENDS, N, N) & pattern

    def run(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attnops.attend(q, k, v, pattern=pattern, backend=backend)

    with torch.no_grad():
        want = run(query, key, value)
        key[:, 4:], value[:, 4:] = float("nan"), float("inf")
        got = torch.compile(run, fullgraph=True, backend="aot_eager")(query, key, value)
    close(got, want, "out")


# --------------------------------------------------------------------------------------------------------- torch.export
class Attention(nn.Module):
    def __init__(self, backend: str) -> None:
        super().__init__()
        self.project = nn.Linear(H * D, 3 * H * D)
        self.bias = attnops.RelativeBias(H, 8, 6)
        self.backend = backend

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.project(x).unflatten(-1, (3, H, D)).permute(2, 0, 3, 1, 4)
        out = attnops.attend(q, k, v, pattern=attnops.Causal(), bias=self.bias, backend=self.backend)
        return out.transpose(1, 2).flatten(2)


@pytest.mark.usefixtures("fresh")
@pytest.mark.parametrize("backend", [name for name in BACKENDS if name not in (*EDGES_ALONE, "flex")] + ["auto"])
def test_export(backend: str) -> None:
    module, x = Attention(backend).eval(), torch.randn(2, N, H * D)
    with torch.no_grad():
        program = torch.export.export(module, (x,))
        torch.testing.assert_close(program.module()(x), module(x))


# ---------------------------------------------------------------------------------------------------- vmap and autocast
@pytest.mark.parametrize("backend", BACKENDS)
def test_vmap_equals_a_loop_or_the_refusal_says_what_would(backend: str) -> None:
    batch = vectors(3, 3)
    for name in EDGE_PRIORS if backend in EDGES_ALONE else ("plain", "causal", "window and alibi", "table"):
        run, _ = call(backend, name)
        with torch.no_grad():
            try:
                got = torch.func.vmap(run)(*batch)
            except attnops.UnsupportedError as refusal:
                assert any(word in str(refusal) for word in ("vmap", "torch.func")) and "best alternative" in str(
                    refusal
                )
                continue
            loop = torch.stack([run(*row) for row in zip(*batch, strict=True)])
        close(got, loop, f"out with {name}")


def test_auto_runs_under_vmap_with_gradients() -> None:
    batch = vectors(3, 3)

    def loss(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attnops.attend(q, k, v, pattern=attnops.Causal()).square().sum()

    got = torch.func.vmap(torch.func.grad(loss, argnums=(0, 1, 2)))(*batch)
    for row in range(3):
        inputs = [x[row].clone().requires_grad_() for x in batch]
        for mine, right in zip(got, torch.autograd.grad(loss(*inputs), inputs), strict=True):
            close(mine[row], right, "gradient")


@pytest.mark.parametrize("backend", [name for name in BACKENDS if name != "flex"])
@pytest.mark.parametrize("lower", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_autocast_keeps_the_dtype_of_the_query(backend: str, lower: torch.dtype, dtype: torch.dtype) -> None:
    inputs = [x.requires_grad_() for x in vectors(dtype=dtype)]
    pattern = Edges(ENDS, N, N) if backend in EDGES_ALONE else attnops.Causal()
    bias = attnops.Rotary(D) + attnops.ALiBi(H) + attnops.RelativeBias(H, 8, 6)
    with torch.autocast("cpu", dtype=lower):
        out = attnops.attend(*inputs, pattern=pattern, bias=bias, backend=backend)
    assert out.dtype == dtype
    grads = torch.autograd.grad(out.float().sum(), inputs)
    assert all(grad.dtype == dtype and torch.isfinite(grad).all() for grad in grads)
    plain = attnops.attend(*inputs, pattern=pattern, bias=bias, backend="reference")
    atol = 1e-12 if dtype == torch.float64 else 0.05  # float64 is never lowered
    torch.testing.assert_close(out.double(), plain.double(), rtol=0, atol=atol)


# ----------------------------------------------------------------------------------------------------- custom operators
def samples() -> dict[str, list[tuple[Any, ...]]]:
    q, k, v = (torch.randn(2, 2, count, 4, requires_grad=True) for count in (3, 5, 5))
    turned = torch.randn(2, 3, 2, 4).transpose(1, 2)
    mask = torch.zeros(2, 2, 3, 5).masked_fill(torch.rand(2, 2, 3, 5) < 0.3, float("-inf"))
    mask[0, 0, 1] = float("-inf")
    out, lse = torch.ops.attnops.flash(q, k, v, mask, 0.5, False)
    grads = (torch.randn_like(out), torch.randn_like(lse))
    saved = [x.detach() for x in (q, k, v)]
    return {
        "flash": [
            (q, k, v, mask, 0.5, False),
            (turned, k, v, None, 0.5, True),
            (q, k, v, mask.clone().requires_grad_(), 0.5, False),
            (*(x.detach().bfloat16() for x in (q, k, v)), None, 0.5, False),
        ],
        "flash_backward": [
            (grads[0], None, *saved, mask, out.detach(), lse.detach(), 0.5, False, False),
            (*grads, *saved, mask, out.detach(), lse.detach(), 0.5, False, True),
        ],
    }


@pytest.mark.parametrize("name", ["flash", "flash_backward"])
def test_operators_of_torchs_kernel_pass_opcheck(name: str) -> None:
    for arguments in samples()[name]:
        torch.library.opcheck(getattr(torch.ops.attnops, name).default, arguments)


def test_operators_over_edges_pass_opcheck() -> None:
    """Each with the arguments that `scatter` itself gives it, forward and backward."""
    seen: dict[str, tuple[Any, ...]] = {}

    class Recorder(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if func.namespace == "attnops":
                seen.setdefault(func.name(), (func, args, kwargs or {}))
            return func(*args, **(kwargs or {}))

    inputs = [x.requires_grad_() for x in vectors()]
    kinds = {"dot": None, "gatv2": learned(attnops.Additive(H, D, activation="leaky_relu"))}
    with Recorder():
        for score in kinds.values():
            pattern, bias = prior_of("scatter", "features")
            attnops.attend(
                *inputs, pattern=pattern, bias=bias, score=score, backend="scatter"
            ).square().sum().backward()
    assert len(seen) >= 4, seen
    for func, args, kwargs in seen.values():
        learns = "max" not in args  # a maximum is a constant of the softmax, and says so when asked for a gradient
        torch.library.opcheck(func, tree_map_only(Tensor, lambda x, learns=learns: _leaf(x, learns), args), kwargs)


def _leaf(tensor: Tensor, learns: bool) -> Tensor:
    return tensor.detach().clone().requires_grad_(learns and tensor.is_floating_point())
