"""Triton's kernels for edge lists: on a GPU where there is one, else interpreted (`make interpret`)."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops.backends.triton_edges import Triton

REASON = attnops.available_backends()["triton"]
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
runs = pytest.mark.skipif(REASON is not None, reason=f"triton: {REASON}")


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rows of more than three edges fall into several parts."""
    from attnops.kernels import triton_edges

    monkeypatch.setattr(triton_edges, "PIECE", 3)


def graph(queries: int = 6, keys: int = 7, edges: int = 30, seed: int = 0) -> Tensor:
    random = torch.Generator().manual_seed(seed)
    sources = torch.randint(0, keys, (edges,), generator=random)
    return torch.stack([sources, torch.randint(0, queries, (edges,), generator=random)])


def vectors(heads: int, kv_heads: int, dim: int, value_dim: int, dtype: torch.dtype, batch: int = 2) -> list[Tensor]:
    random = torch.Generator().manual_seed(1)
    shapes = ((batch, heads, 6, dim), (batch, kv_heads, 7, dim), (batch, kv_heads, 7, value_dim))
    return [torch.randn(*s, generator=random).to(DEVICE, dtype).requires_grad_() for s in shapes]


def everything(backend: str, inputs: list[Tensor], ends: Tensor, **arguments: Any) -> list[Tensor]:
    """Out, lse and weights, and the gradients of all inputs, a bias and a score under cotangents of all three."""
    edges = attnops.Edges(ends.to(DEVICE), 6, 7)
    result = attnops.attend(
        *inputs, pattern=edges, return_lse=True, return_weights=True, backend=backend, **arguments
    )  # fmt: skip
    assert isinstance(result, attnops.AttentionOutput) and result.lse is not None and result.weights is not None
    lse = torch.where(torch.isfinite(result.lse), result.lse, 0)
    loss = result.out.float().sin().sum() + lse.cos().sum() + result.weights.float().square().sum()
    leaves = [*inputs, *(x for x in arguments.values() if isinstance(x, Tensor))]
    leaves += [p for x in arguments.values() if isinstance(x, torch.nn.Module) for p in x.parameters()]
    return [result.out, lse, result.weights, *torch.autograd.grad(loss, leaves)]


def close(ours: list[Tensor], theirs: list[Tensor], tolerance: float) -> None:
    for mine, other in zip(ours, theirs, strict=True):
        assert mine.dtype == other.dtype
        torch.testing.assert_close(mine, other, rtol=tolerance, atol=tolerance)


@runs
@pytest.mark.parametrize("dim", [1, 3, 16, 33, 128])
@pytest.mark.usefixtures("small_parts")
def test_every_width_with_hubs_in_parts(dim: int) -> None:
    inputs = vectors(4, 2, dim, dim + 2, torch.float64, batch=1)
    bias = torch.randn(1, 4, 30, dtype=torch.float64, device=DEVICE, requires_grad=True)
    ours, theirs = (everything(name, inputs, graph(), bias=bias) for name in ("triton", "scatter"))
    close(ours, theirs, 1e-12)


@runs
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("score", ["dot", "gatv2", "tanh", "gat"])
@pytest.mark.usefixtures("small_parts")
def test_every_score_in_every_dtype(dtype: torch.dtype, score: str) -> None:
    torch.manual_seed(0)
    made = {"dot": attnops.DotProduct(softcap=2.0), "gatv2": attnops.Additive(2, 8, activation="leaky_relu"),
            "tanh": attnops.Additive(2, 8), "gat": attnops.SeparableAdditive(2, 8)}[score].to(DEVICE)  # fmt: skip
    inputs = vectors(2, 2, 8, 8, dtype, batch=1)
    ours, theirs = (everything(name, inputs, graph(), score=made) for name in ("triton", "scatter"))
    tolerances = {torch.float64: 1e-12, torch.float32: 1e-5, torch.float16: 4e-3, torch.bfloat16: 3e-2}
    close(ours, theirs, tolerances[dtype])


@runs
@pytest.mark.parametrize("activation", ["leaky_relu", "tanh"])
@pytest.mark.usefixtures("small_parts")
def test_vectors_of_edges_are_added_inside_of_the_score(activation: str) -> None:
    torch.manual_seed(0)
    score = attnops.Additive(2, 8, activation=activation).to(DEVICE, torch.float64)  # type: ignore[arg-type]
    score.edge_term = "kind"
    inputs = vectors(2, 2, 8, 8, torch.float64, batch=1)
    terms = torch.randn(30, 16, dtype=torch.float64, device=DEVICE)
    results = []
    for backend in ("triton", "scatter"):
        term = terms.clone().requires_grad_()
        edges = attnops.Edges(graph().to(DEVICE), 6, 7, kind=term)
        out = attnops.attend(*inputs, pattern=edges, score=score, backend=backend)
        assert isinstance(out, Tensor)
        results.append([out, *torch.autograd.grad(out.sin().sum(), [*inputs, term, score.a])])
    close(results[0], results[1], 1e-12)


@runs
def test_forbidden_pairs_may_hold_garbage() -> None:
    inputs = vectors(2, 1, 4, 4, torch.float64, batch=1)
    ends = graph()
    bias = torch.randn(1, 2, 30, dtype=torch.float64, device=DEVICE)
    bias[:, :, ends[0] == 3] = float("-inf")
    bias[:, :, ends[1] == 2] = float("-inf")
    clean = everything("triton", inputs, ends, bias=bias.requires_grad_())
    with torch.no_grad():
        for x, row in zip(inputs, (2, 3, 3), strict=True):
            x[:, :, row] = float("nan")
    dirty = everything("triton", inputs, ends, bias=bias)
    for name, (ours, theirs) in enumerate(zip(dirty, clean, strict=True)):
        assert torch.equal(ours, theirs), name


@runs
@pytest.mark.usefixtures("small_parts")
def test_dropout_is_the_same_in_backward_and_the_same_as_the_cpu_s() -> None:
    inputs = vectors(2, 2, 4, 4, torch.float64, batch=1)
    edges = attnops.Edges(graph().to(DEVICE), 6, 7)

    def out(backend: str, query: Tensor) -> Tensor:
        torch.manual_seed(5)
        return attnops.attend(query, *inputs[1:], pattern=edges, dropout=0.4, backend=backend)

    dropped = out("triton", inputs[0])
    assert isinstance(dropped, Tensor)
    assert not torch.allclose(dropped, attnops.attend(*inputs, pattern=edges, backend="triton"))
    (grad,) = torch.autograd.grad(dropped.sin().sum(), inputs[0], retain_graph=True)
    way, step = torch.randn_like(grad), 1e-6
    ahead, behind = (out("triton", inputs[0].detach() + sign * step * way).sin().sum() for sign in (1, -1))
    torch.testing.assert_close((grad * way).sum(), (ahead - behind) / (2 * step), rtol=1e-7, atol=1e-7)

    torch.manual_seed(5)
    seen = attnops.attend(*inputs, pattern=edges, dropout=0.4, return_weights=True, backend="triton")
    assert isinstance(seen, attnops.AttentionOutput) and seen.weights is not None
    assert torch.equal(seen.out, dropped) and 0 < (seen.weights == 0).sum() < seen.weights.numel()
    met = seen.weights.unsqueeze(-1) * inputs[2][:, :, edges.source]
    summed = torch.zeros_like(dropped).index_add(2, edges.target, met)
    torch.testing.assert_close(summed, dropped, rtol=1e-12, atol=1e-12)
    cotangent = torch.randn_like(dropped)  # out is linear in the values
    (of_value,) = torch.autograd.grad(dropped, inputs[2], cotangent)
    torch.testing.assert_close((of_value * inputs[2]).sum(), (dropped * cotangent).sum(), rtol=1e-12, atol=1e-12)
    if DEVICE == "cpu" and attnops.available_backends()["native"] is None:
        torch.testing.assert_close(dropped, out("native", inputs[0]), rtol=1e-12, atol=1e-12)


@runs
@pytest.mark.usefixtures("small_parts")
def test_the_operators_are_as_torch_wants_them() -> None:
    from attnops.edge_terms import read_edges
    from attnops.kernels.triton_edges import triton_edges
    from attnops.operator import _prepare, read_arguments

    inputs = vectors(2, 1, 4, 3, torch.float32, batch=1)
    bias = torch.randn(1, 2, 30, device=DEVICE, requires_grad=True)
    edges = attnops.Edges(graph().to(DEVICE), 6, 7)
    arguments = read_arguments(*inputs, edges, bias, None, None, None, 0.0, True, True, 1 << 30, False)
    *tensors, walk = read_edges(_prepare(arguments, 0.0), widened=False)
    tensors = [None if x is None else x.detach().clone().requires_grad_() for x in tensors]
    torch.library.opcheck(triton_edges.traced, (*tensors, *walk, True, True))


@runs
@pytest.mark.parametrize("sizes", [(0, 7, 0), (6, 7, 0), (6, 1, 1)])
def test_empty_graphs_and_single_edges(sizes: tuple[int, int, int]) -> None:
    queries, keys, count = sizes
    edges = attnops.Edges(torch.zeros(2, count, dtype=torch.int64, device=DEVICE), queries, keys)
    query, key = (torch.randn(2, n, 4, device=DEVICE, requires_grad=True) for n in (queries, keys))
    result = attnops.attend(query, key, key, pattern=edges, return_lse=True, backend="triton")
    assert isinstance(result, attnops.AttentionOutput) and result.lse is not None
    assert torch.isfinite(result.out).all() and result.out[:, 1:].abs().sum() == 0
    assert (result.lse[:, 1:] == float("-inf")).all()
    result.out.sum().backward()
    assert torch.isfinite(query.grad).all() and torch.isfinite(key.grad).all()  # type: ignore[arg-type]


@runs
def test_a_second_derivative_is_refused_not_dropped() -> None:
    inputs = vectors(2, 2, 4, 4, torch.float64)
    edges = attnops.Edges(graph().to(DEVICE), 6, 7)
    out = attnops.attend(*inputs, pattern=edges, backend="triton")
    with pytest.raises(NotImplementedError, match=r"'triton' has no second derivative"):
        torch.autograd.grad(out.sum(), inputs, create_graph=True)


def test_it_says_what_it_needs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    x = torch.randn(2, 5, 4)
    edges = attnops.Edges(torch.zeros(2, 1, dtype=torch.int64), 5, 5)
    refusals = {c.name: " ".join(c.refusals) for c in attnops.plan(x, x, x, pattern=edges).candidates}
    assert "tensors lie on cpu" in refusals["triton"] or "torch sees none" in refusals["triton"]
    alone, of_edges = (attnops.plan(x, x, x, pattern=pattern).problem for pattern in (None, edges))
    assert Triton().refuse(of_edges) == ["its kernels run on a GPU, and these tensors lie on cpu"]
    assert Triton().refuse(alone)[1] == "its kernels walk over an edge list, and this pattern is none"
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    assert Triton().refuse(of_edges) == []
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert "pip install triton" in str(Triton().unavailable())


def test_interpreted_in_a_process_of_its_own() -> None:
    """What `make interpret` runs at length, once in every run of the tests."""
    pytest.importorskip("triton")
    code = (
        "import torch, attnops\n"
        "x = torch.randn(2, 5, 4, requires_grad=True)\n"
        "edges = attnops.Edges(torch.randint(0, 5, (2, 12)), 5, 5)\n"
        "ours, theirs = (attnops.attend(x, x, x, pattern=edges, backend=b) for b in ('triton', 'scatter'))\n"
        "torch.testing.assert_close(ours, theirs)\n"
        "a, b = (torch.autograd.grad(out.sin().sum(), x)[0] for out in (ours, theirs))\n"
        "torch.testing.assert_close(a, b)\n"
    )
    environment = {**os.environ, "TRITON_INTERPRET": "1"}
    environment.pop("ATTNOPS_TEST_BACKEND", None)
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]


INDICES = {
    f"{name}_ptr"
    for name in (
        "source", "order", "row", "first", "last", "slot", "target", "source_order", "first_slot", "count", "seed",
    )
}  # fmt: skip
READ = {f"{name}_ptr" for name in ("q", "k", "v", "out", "grad", "grad_q", "grad_k", "grad_v")}
KERNELS = [f"{name}_kernel" for name in ("forward", "join", "add_parts", "weigh", "query", "key", "value")]


@pytest.mark.skipif(os.environ.get("TRITON_INTERPRET") == "1", reason="kernels are interpreted, not compiled")
@pytest.mark.parametrize(("dtype", "score"), [("bf16", 0), ("fp32", 1), ("fp64", 2)])
def test_the_kernels_compile_for_a_gpu_where_there_is_none(
    dtype: str, score: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    triton = pytest.importorskip("triton")
    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("TRITON_DEFAULT_FP_FUSION", "1")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from attnops.kernels import triton_walk

    wide = "fp64" if dtype == "fp64" else "fp32"
    asked: dict[str, Any] = dict.fromkeys(
        ("BIAS", "TERM", "DROPOUT", "KEEP", "DELTA", "OF_WEIGHTS", "OF_BIAS", "OF_A", "OF_TERM"), True
    )
    asked |= {
        "D": 33,
        "DV": 40,
        "BD": 64,
        "BDV": 64,
        "BE": 32,
        "SCORE": score,
        "SCALE": 0.3,
        "SOFTCAP": 2.0,
        "SLOPE": 0.2,
    }
    asked |= {"RATE": 0.1, "ACC": triton.language.float64 if wide == "fp64" else triton.language.float32}
    for name in KERNELS:
        kernel = getattr(triton_walk, name)
        signature = {}
        for parameter in kernel.params:
            pointer = "*i64" if parameter.name in INDICES else f"*{dtype if parameter.name in READ else wide}"
            kind = pointer if parameter.name.endswith("_ptr") else "i32"
            signature[parameter.name] = "constexpr" if parameter.is_constexpr else kind
        constants = {(place,): asked[p.name] for place, p in enumerate(kernel.params) if p.is_constexpr}
        source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
        assert triton.compile(source, target=GPUTarget("cuda", 80, 32)).asm["cubin"], name
