"""Linear attention where there is little to attend: masked steps, denominators of zero, no tokens, bad arguments."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from attnops.linear import LinearState, linear_attend
from tests.linear.forms import D64, rand


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
