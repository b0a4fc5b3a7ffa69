"""`native` on a grid under what torch does to it: dropout, second derivatives, compile, opcheck, vmap."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only

import attnops
from attnops import block_kernel
from attnops.kernels import library
from tests.backends.sequences import COMBINATIONS, learned, normal

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason=library.unavailable() or "")


@pytest.mark.parametrize("rows", [256, 7])
def test_dropout_is_the_same_in_the_backward(rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradients against finite differences, each evaluation with the same seed."""
    monkeypatch.setattr(block_kernel, "ROWS", rows)
    query, key, value = (normal(1, 2, 9, 4, seed=seed, dtype=torch.float64).requires_grad_() for seed in range(3))
    bias = learned(attnops.RelativeBias(2, 8, 6)).double()

    def forward(*inputs: Tensor) -> Any:
        torch.manual_seed(5)
        pattern = attnops.Causal() if rows == 256 else attnops.Causal() & attnops.Dilated(1)
        return attnops.attend(*inputs[:3], pattern=pattern, bias=bias, dropout=0.4, backend="native")

    assert torch.autograd.gradcheck(forward, (query, key, value, *bias.parameters()))


def test_dropout_differs_by_head_and_row() -> None:
    n = 200
    query, value = torch.zeros(2, 2, n, 1), torch.eye(n).expand(2, 2, n, n)
    kept = attnops.attend(query, query, value, dropout=0.5, backend="native") > 0  # type: ignore[operator]
    rows = kept.flatten(0, 2).float()
    agreement = (rows @ rows.T + (1 - rows) @ (1 - rows).T) / n
    assert float((agreement - torch.eye(len(rows))).max()) < 0.8 and abs(float(rows.mean()) - 0.5) < 0.01


def test_a_second_derivative_raises() -> None:
    x = normal(2, 9, 4).requires_grad_()
    for pattern in (attnops.Causal(), attnops.Causal() & attnops.Dilated(2)):
        out = attnops.attend(x, x, x, pattern=pattern, backend="native")
        (grad,) = torch.autograd.grad(out.square().sum(), x, create_graph=True)  # type: ignore[union-attr]
        with pytest.raises(RuntimeError):
            grad.sum().backward()


@pytest.mark.parametrize("name", ["t5, alibi", "shaw", "types, times", "a user's", "global"])
def test_compiled_training_is_one_graph(name: str) -> None:
    arguments = dict(COMBINATIONS[name])
    if "bias" in arguments:
        arguments["bias"] = learned(arguments["bias"]()).double()
    parameters = list(arguments["bias"].parameters()) if "bias" in arguments else []
    inputs = [normal(1, 4, 300, 16, seed=seed, dtype=torch.float64).requires_grad_() for seed in range(3)]

    def forward(*x: Tensor) -> Any:
        return attnops.attend(*x, backend="native", **arguments)

    torch._dynamo.reset()
    compiled = torch.compile(forward, fullgraph=True, backend="aot_eager")
    for got, want in zip(*(
        torch.autograd.grad(call(*inputs).square().sum(), inputs + parameters) for call in (compiled, forward)
    ), strict=True):  # fmt: skip
        torch.testing.assert_close(got, want)
    torch._dynamo.reset()


def test_the_operators_pass_opcheck() -> None:
    sizes = ((4, 5), (2, 7), (2, 7))
    query, key, value = (normal(2, heads, count, 8, seed=count).requires_grad_() for heads, count in sizes)
    ranges = torch.tensor([[0, 3], [0, 4], [1, 5], [0, 0], [2, 7]], dtype=torch.int32).view(1, 5, 1, 2)
    table, additive = normal(1, 4, 1, 11).requires_grad_(), normal(2, 1, 5, 7).requires_grad_()
    nothing = torch.empty(0, dtype=torch.long)
    slope, spots = normal(4).requires_grad_(), [torch.rand(1, 5).double(), torch.rand(2, 7).double()]
    full = (ranges, additive, [table], [nothing] * 3, [0, 0, 4, 1], [slope], spots)
    bare = (None, None, [], [], [0, 0], [], [])
    for terms in (full, bare):
        inputs = (query, key, value, *terms, 0.3, 0.0, 0.0, None)
        torch.library.opcheck(torch.ops.attnops.block_attention.default, inputs)
        constants = tree_map_only(Tensor, torch.Tensor.detach, inputs)
        out, lse, rest = torch.ops.attnops.block_attention(*constants)
        arguments = (normal(*out.shape), normal(*lse.shape), out, lse, rest, *constants, terms is full)
        torch.library.opcheck(torch.ops.attnops.block_attention_backward.default, arguments)


def test_vmap_joins_the_batch() -> None:
    inputs = [normal(3, 2, 9, 4, seed=seed) for seed in range(3)]
    bias = learned(attnops.RelativeBias(2, 8, 6) + attnops.RelativeKeys(2, 4, 2))

    def one(query: Tensor, key: Tensor, value: Tensor) -> Any:
        return attnops.attend(query, key, value, pattern=attnops.Causal(), bias=bias, backend="native")

    with torch.no_grad():
        torch.testing.assert_close(torch.func.vmap(one)(*inputs), one(*inputs))
