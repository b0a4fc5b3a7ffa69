"""The same weights and sums as torch-geometric's `softmax` and `scatter` over the in-edges of each node."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnops

pyg = pytest.importorskip("torch_geometric.utils")
BACKENDS = [name for name in ("reference", "scatter") if attnops.available_backends().get(name, "") is None]


def theirs(query: Tensor, key: Tensor, value: Tensor, ends: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """`[H, N, D]` through PyG's functions, which have nodes first."""
    logits = (query[:, ends[1]] * key[:, ends[0]]).sum(-1) / query.shape[-1] ** 0.5 + bias
    weights = pyg.softmax(logits.t(), ends[1], num_nodes=query.shape[1]).t()
    messages = (weights.unsqueeze(-1) * value[:, ends[0]]).transpose(0, 1)
    return pyg.scatter(messages, ends[1], dim=0, dim_size=query.shape[1], reduce="sum").transpose(0, 1), weights


@pytest.mark.parametrize("backend", BACKENDS)
@given(nodes=st.integers(1, 6), count=st.integers(0, 20), seed=st.integers(0, 999))
def test_softmax_over_in_edges(backend: str, nodes: int, count: int, seed: int) -> None:
    """Nodes without in-edges, self-loops and repeated edges among them; forward and backward."""
    random = torch.Generator().manual_seed(seed)
    ends = torch.randint(0, nodes, (2, count), generator=random)
    leaves = [torch.randn(2, nodes, 3, generator=random, dtype=torch.float64) for _ in range(3)]
    leaves.append(torch.randn(2, count, generator=random, dtype=torch.float64))
    weigh = torch.randn(2, nodes, 3, generator=random, dtype=torch.float64)

    def ours(query: Tensor, key: Tensor, value: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        edges = attnops.Edges(ends, nodes, nodes)
        result = attnops.attend(query, key, value, pattern=edges, bias=bias, return_weights=True, backend=backend)
        assert isinstance(result, attnops.AttentionOutput) and result.weights is not None
        return result.out, result.weights

    results = []
    for run in (ours, lambda q, k, v, b: theirs(q, k, v, ends, b)):
        inputs = [x.clone().requires_grad_() for x in leaves]
        out, weights = run(*inputs)
        grads = torch.autograd.grad((out * weigh).sum(), inputs, allow_unused=True)
        results.append(
            [out, weights, *(torch.zeros_like(x) if g is None else g for x, g in zip(inputs, grads, strict=True))]
        )
    for mine, right in zip(*results, strict=True):
        torch.testing.assert_close(mine, right, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("backend", BACKENDS)
def test_half_precision_keeps_weight_where_theirs_loses_it(backend: str) -> None:
    """Thousands of in-edges in float16: a running sum there stops at 2048."""
    count = 3000
    edges = attnops.Edges(torch.stack([torch.arange(count), torch.zeros(count, dtype=torch.long)]), 1, count)
    query, key = torch.zeros(1, 1, 2, dtype=torch.float16), torch.zeros(1, count, 2, dtype=torch.float16)
    ones = torch.ones(1, count, 1, dtype=torch.float16)
    assert abs(float(attnops.attend(query, key, ones, pattern=edges, backend=backend)) - 1) < 1e-3
