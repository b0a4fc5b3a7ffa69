"""Mixture of experts as a layer: grouped products, one graph, in models that cache, learn and checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from attnops.seq import Decoder, KVCache, LatentConfig, TransformerConfig, causal_lm_loss, generate
from attnops.seq.grouped import grouped_linear
from attnops.seq.moe import ExpertsConfig, MixtureOfExperts, routings
from tests.seq.mixtures import D64, D, E, F, experts, rand


# ---------------------------------------------------------------------------------------------------- grouped products
@given(st.lists(st.integers(0, 5), min_size=1, max_size=5), st.sampled_from([(4, 8), (3, 5)]), st.booleans())
def test_a_grouped_product_is_one_product_a_row(sizes: list[int], widths: tuple[int, int], half: bool) -> None:
    dtype = torch.float32 if half else D64
    rows, weight = rand(sum(sizes), widths[0], dtype=dtype), rand(len(sizes), widths[1], widths[0], seed=1, dtype=dtype)
    bias = rand(len(sizes), widths[1], seed=2, dtype=dtype)
    tensors = [tensor.requires_grad_() for tensor in (rows, weight, bias)]
    copies = [tensor.detach().clone().requires_grad_() for tensor in tensors]
    ends = torch.tensor(sizes).cumsum(0).to(torch.int32)
    found = grouped_linear(rows, weight, ends, bias)
    group = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    expected = torch.einsum("ri,roi->ro", copies[0], copies[1][group]) + copies[2][group]
    tolerance = 1e-5 if half else 1e-12
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    cotangent = rand(*found.shape, seed=3, dtype=dtype)
    for a, b in zip(
        torch.autograd.grad(found, tensors, cotangent), torch.autograd.grad(expected, copies, cotangent), strict=True
    ):
        torch.testing.assert_close(a, b, atol=tolerance, rtol=tolerance)


# --------------------------------------------------------------------------------------------------------- as a module
def test_the_same_bits_each_time() -> None:
    layer, x = MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F)), rand(3, 40, D, dtype=torch.float32)

    def run() -> list[Tensor]:
        layer.zero_grad()
        out = layer(x)
        out.square().sum().backward()
        return [out, *(parameter.grad.clone() for parameter in layer.parameters())]  # type: ignore[union-attr]

    assert all(torch.equal(a, b) for a, b in zip(run(), run(), strict=True))


def test_compiles_to_one_graph() -> None:
    layer = MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F, capacity_factor=1.0))
    x, real = rand(2, 8, D, dtype=torch.float32), rand(2, 8, seed=1) > 0

    def step(x: Tensor) -> tuple[Tensor, Tensor]:
        with routings() as seen:
            out = layer(x, real)
        return out, seen.loss()

    traced = torch.compile(step, fullgraph=True, backend="aot_eager")
    for found, expected in zip(traced(x), step(x), strict=True):
        torch.testing.assert_close(found, expected)


def test_autocast_computes_experts_in_half_and_the_choice_in_full() -> None:
    layer, x = MixtureOfExperts(D, ExpertsConfig(E, ff_dim=F, shared=1)), rand(1, 64, D, dtype=torch.float32)
    with routings() as full:
        expected = layer(x)
    with torch.autocast("cpu", torch.bfloat16), routings() as half:
        found = layer(x)
    assert torch.equal(full[0].load, half[0].load)
    assert not torch.equal(found.float(), expected)
    torch.testing.assert_close(found.float(), expected, atol=0.05, rtol=0.05)


def test_no_tokens() -> None:
    layer = experts(capacity_factor=1.0, shared=1)
    with routings() as seen:
        assert layer(torch.zeros(2, 0, D, dtype=D64)).shape == (2, 0, D)
        layer(rand(1, 3, D), torch.zeros(1, 3, dtype=torch.bool))
    assert torch.isfinite(seen.loss())


# ----------------------------------------------------------------------------------------------------------- in a model
MODELS: list[dict[str, Any]] = [
    {"experts": ExpertsConfig(4, top_k=2, ff_dim=8, bias=True, activation="clamped_swiglu")},
    {"experts": [None, ExpertsConfig(4, top_k=1, normalize=False, capacity_factor=1.0, shared=1)]},
    {"experts": ExpertsConfig(4, top_k=1, score="sigmoid", normalize=False, weigh="input"), "activation": "relu"},
    {
        "experts": ExpertsConfig(8, groups=4, keep_groups=2, score="sigmoid", balance_bias=True),
        "latent": LatentConfig(8),
    },
]


def decoder(options: dict[str, Any]) -> Decoder:
    config = TransformerConfig(vocab_size=20, dim=16, layers=2, heads=2, ff_dim=16, **options)
    model = Decoder(config)
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


@pytest.mark.parametrize("options", MODELS)
@torch.no_grad()
def test_a_decoder_with_experts_and_a_cache_is_one_pass(options: dict[str, Any]) -> None:
    model = decoder(options).double().eval()
    ids = torch.randint(20, (2, 10))
    mask = torch.tensor([[0, 0, 0] + [1] * 7, [1] * 10])
    for attention_mask in (None, mask):
        cache, cuts = KVCache(), [0, 5, 6, 7, 10]
        steps = [
            model(ids[:, a:b], None if attention_mask is None else attention_mask[:, :b], cache)
            for a, b in pairwise(cuts)
        ]
        real = (torch.ones_like(ids) if attention_mask is None else attention_mask).bool()
        whole = model(ids, attention_mask)
        torch.testing.assert_close(torch.cat(steps, 1)[real], whole[real], atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(whole[0, 3:], model(ids[:1, 3:])[0], atol=1e-6, rtol=1e-6)  # padding is as not there
    written = [generate(model, ids, 6, mask, cache=cache) for cache in ("none", "full", "paged")]
    assert torch.equal(written[0], written[1]) and torch.equal(written[0], written[2])


@pytest.mark.parametrize("options", MODELS)
def test_a_decoder_with_experts_learns(options: dict[str, Any]) -> None:
    model, ids = decoder(options), torch.randint(20, (4, 10))
    optimizer, losses = torch.optim.Adam(model.parameters(), lr=1e-2), []
    for _ in range(40):
        with routings() as seen:
            logits = model(ids)
        loss = causal_lm_loss(logits, ids)
        optimizer.zero_grad()
        (loss + seen.loss()).backward()
        optimizer.step()
        seen.balance_biases()
        losses.append(loss.item())
    assert losses[-1] < 0.5 * losses[0]
    assert len(seen) == sum(isinstance(block.feedforward, MixtureOfExperts) for block in model.blocks)


def test_checkpointing_changes_no_gradient() -> None:
    layer, x = experts(capacity_factor=1.0, bias=True), rand(2, 9, D).requires_grad_()

    def grads(run: Callable[[Tensor], Tensor]) -> list[Tensor]:
        with routings() as seen:
            out = run(x)
        return list(torch.autograd.grad(out.square().sum() + seen.loss(), [x, *layer.parameters()]))

    plain, kept = grads(layer), grads(lambda x: checkpoint(layer, x, use_reentrant=False))
    assert all(torch.equal(a, b) for a, b in zip(plain, kept, strict=True))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 9}, "top_k is 9"),
        ({"top_k": 0}, "top_k"),
        ({"groups": 3}, "groups is 3"),
        ({"groups": 4, "keep_groups": 5}, "keep_groups is 5"),
        ({"top_k": 5, "groups": 4, "keep_groups": 2}, "hold 4 of the 8"),
        ({"score": "tanh"}, "score is 'tanh'"),
        ({"weigh": "both"}, "weigh is 'both'"),
        ({"capacity_factor": 0.0}, "capacity_factor is 0.0"),
        ({"shared": -1}, "shared is -1"),
    ],
    ids=lambda value: "-".join(value) if isinstance(value, dict) else "",
)
def test_a_bad_option_is_named(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ExpertsConfig(E, **options)


def test_a_bad_call_is_named() -> None:
    layer = experts()
    with pytest.raises(ValueError, match="real is torch"):
        layer(rand(2, 3, D), torch.ones(2, 4, dtype=torch.bool))
    with pytest.raises(ValueError, match="ff_dim is None"):
        MixtureOfExperts(D, ExpertsConfig(E))
