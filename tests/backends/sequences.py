"""Problems on a grid for `native`, and the comparison with `reference`."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

import attnops
from attnops.testing import assert_close_as_reference
from tests.laws.problems import Crossing


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


def run(backend: str, dtype: torch.dtype, sizes: tuple[int, ...], **arguments: Any) -> list[Tensor]:
    """Out, lse and the gradients of query, key, value and of every parameter of the bias."""
    batch, heads, kv_heads, rows, columns, dim, value_dim = sizes
    shapes = ((batch, heads, rows, dim), (batch, kv_heads, columns, dim), (batch, kv_heads, columns, value_dim))
    leaves = [normal(*shape, seed=seed).to(dtype).requires_grad_() for seed, shape in enumerate(shapes)]
    bias = arguments.get("bias")
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    if isinstance(bias, nn.Module):
        bias.to(wide)
        leaves_of_bias = list(bias.parameters())
    elif isinstance(bias, Tensor):
        arguments["bias"] = bias.detach().to(wide).requires_grad_()
        leaves_of_bias = [arguments["bias"]]
    else:
        leaves_of_bias = []
    result = attnops.attend(*leaves, return_lse=True, backend=backend, **arguments)
    assert isinstance(result, attnops.AttentionOutput) and result.lse is not None
    lse = torch.where(torch.isfinite(result.lse), result.lse, 0)
    weighed = (result.out * normal(*result.out.shape, seed=7).to(dtype)).sum().to(wide)
    weighed = weighed + (lse * normal(*lse.shape, seed=8).to(wide)).sum()
    grads = torch.autograd.grad(weighed, leaves + leaves_of_bias)
    return [result.out, result.lse, *grads]


def check(dtype: torch.dtype, sizes: tuple[int, ...], **arguments: Any) -> None:
    got, reference = (run(backend, dtype, sizes, **arguments) for backend in ("native", "reference"))
    golden = run("reference", torch.float64, sizes, **arguments)
    most = max(float(grad.abs().max()) for grad in golden[2:])
    for place, (mine, exact, plain) in enumerate(zip(got, golden, reference, strict=True)):
        kind = "forward" if place < 2 else "gradient" if place < 5 else "parameter"
        least = most if place >= 2 else 0.0
        assert not torch.isnan(mine).any()
        assert_close_as_reference(mine, exact, plain, kind=kind, dtype=dtype, least=least, what=f"result {place}")


def learned(bias: Any) -> Any:
    for seed, parameter in enumerate(bias.parameters()):
        parameter.data = 0.5 * normal(*parameter.shape, seed=seed)
    return bias


NODES = attnops.Coords(
    position=torch.tensor([3, 0, 7, 7, 1] * 60),
    type=torch.arange(300) % 3,
    time=torch.arange(300).double().sqrt(),
    segment=torch.arange(300) // 90,
)


COMBINATIONS: dict[str, dict[str, Any]] = {
    "full": {},
    "causal": {"pattern": attnops.Causal()},
    "window, alibi": {"pattern": attnops.SlidingWindow(50, 3), "bias": lambda: attnops.ALiBi(4)},
    "t5, alibi": {"pattern": attnops.Causal(), "bias": lambda: attnops.RelativeBias(4) + attnops.ALiBi(4)},
    "shaw": {"pattern": attnops.Causal(), "bias": lambda: attnops.RelativeKeys(4, 16, 5)},
    "types, times": {
        "pattern": attnops.SameSegment(), "coords": NODES,
        "bias": lambda: attnops.TypePrior(3, 3, 4) + attnops.TimeGap(4),
    },
    "given positions": {
        "pattern": attnops.SameSegment(), "coords": NODES,
        "bias": lambda: attnops.RelativeBias(4, 8, 6) + attnops.ALiBi(4) + attnops.RelativeKeys(4, 16, 2),
    },
    "documents": {
        "pattern": attnops.SameSegment() & attnops.Causal(), "coords": attnops.Coords(segment=NODES.segment),
    },
    "global": {"pattern": attnops.SlidingWindow(9, 9) | attnops.GlobalTokens([0, 200])},
    "chunks": {"pattern": attnops.Chunked(64) & attnops.Causal()},
    "padding": {"pattern": attnops.Padding(torch.tensor([0, 77])) & attnops.Causal()},
    "a tensor": {"pattern": attnops.Causal(), "bias": lambda: normal(4, 300, 300, seed=9)},
    "softcap": {
        "score": attnops.DotProduct(softcap=3.0), "pattern": attnops.Causal(), "bias": lambda: attnops.ALiBi(4),
    },
    "sink": {"pattern": attnops.Causal(), "bias": lambda: attnops.Sink(4) + attnops.ALiBi(4)},
    "a user's": {"pattern": attnops.Causal(), "bias": lambda: Crossing(4), "coords": attnops.Coords(type=NODES.type)},
    "dilated": {"pattern": attnops.Dilated(3) & attnops.SlidingWindow(40), "bias": lambda: attnops.RelativeBias(4)},
    "mask": {"pattern": attnops.Mask(normal(2, 1, 300, 300) > 0), "bias": lambda: attnops.TimeGap(4), "coords": NODES},
}  # fmt: skip
