"""Losses, perplexity, masked tokens and packing."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from attnops import SlidingWindow
from attnops.seq import causal_lm_loss, mask_tokens, masked_lm_loss, pack, perplexity, sequence_loss
from tests.seq.variants import VOCABULARY, decoder, some_ids


def some_logits(rows: int, length: int) -> Tensor:
    return torch.randn(rows, length, VOCABULARY, dtype=torch.float64, requires_grad=True)


def test_a_causal_loss_is_the_mean_over_next_tokens() -> None:
    logits, ids = some_logits(2, 6), some_ids(2, 6)
    likely = logits.log_softmax(-1)
    each = [-likely[b, i, ids[b, i + 1]] for b in range(2) for i in range(5)]
    torch.testing.assert_close(causal_lm_loss(logits, ids), sum(each) / 10)
    mask = torch.tensor([[0, 1, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]])
    kept = [-likely[b, i, ids[b, i + 1]] for b in range(2) for i in range(5) if mask[b, i] and mask[b, i + 1]]
    torch.testing.assert_close(causal_lm_loss(logits, ids, mask), sum(kept) / len(kept))
    garbage = torch.where(mask == 0, -100, ids)
    torch.testing.assert_close(causal_lm_loss(logits, garbage, mask), sum(kept) / len(kept))


def test_a_loss_over_nothing_is_zero_with_zero_gradient() -> None:
    logits = some_logits(1, 3)
    for loss in (
        causal_lm_loss(logits, torch.full((1, 3), -100)),
        masked_lm_loss(logits, torch.full((1, 3), -100)),
        sequence_loss(logits, torch.full((1, 3), -100), 0.1),
    ):
        (gradient,) = torch.autograd.grad(loss, logits)
        assert float(loss.detach()) == 0 and not gradient.any()


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 1.0])
def test_a_smoothed_loss_is_torchs_mean(smoothing: float) -> None:
    logits, labels = some_logits(2, 5), some_ids(2, 5)
    labels[1, 3:] = -100
    wanted = F.cross_entropy(logits.flatten(0, 1), labels.flatten(), label_smoothing=smoothing)
    torch.testing.assert_close(sequence_loss(logits, labels, smoothing), wanted)
    if smoothing == 0.0:
        torch.testing.assert_close(masked_lm_loss(logits, labels), wanted)


def test_half_precision_is_summed_wide() -> None:
    logits, ids = some_logits(1, 400), some_ids(1, 400)
    half = logits.detach().bfloat16()
    loss = causal_lm_loss(half, ids)
    assert loss.dtype == torch.float32
    torch.testing.assert_close(loss.double(), causal_lm_loss(half.double(), ids), rtol=1e-5, atol=0)


# --------------------------------------------------------------------------------------------------------- perplexity
@torch.no_grad()
def scored_by_hand(model: Any, ids: Tensor, window: int, stride: int) -> float:
    """Each token from the window in which it first appears, one at a time."""
    total, scored = 0.0, 1
    for start in range(0, len(ids), stride):
        for place in range(scored, min(start + window, len(ids))):
            first = min(start, place - 1) if place == scored else min(start, scored - 1)
            total -= float(model(ids[None, first:place]).log_softmax(-1)[0, -1, ids[place]])
        scored = max(scored, min(start + window, len(ids)))
    return math.exp(total / (len(ids) - 1))


@pytest.mark.parametrize("length", [2, 5, 16, 17])
def test_every_token_is_scored_once(length: int) -> None:
    model, ids = decoder(), some_ids(1, length)[0]
    full = float(causal_lm_loss(model(ids[None]), ids[None]).detach().exp())
    assert perplexity(model, ids) == pytest.approx(full, rel=1e-10)
    assert perplexity(model, ids, window=length, stride=1) == pytest.approx(full, rel=1e-10)
    for window, stride in [(4, 2), (4, 4), (5, 1), (2, 1), (2, 2), (30, 3)]:
        got = perplexity(model, ids, window=window, stride=stride)
        assert got == pytest.approx(scored_by_hand(model, ids, window, stride), rel=1e-10), (window, stride)


def test_windows_change_nothing_for_a_model_that_sees_no_further() -> None:
    model, ids = decoder(layers=1, pattern=SlidingWindow(3)), some_ids(2, 20)
    assert perplexity(model, ids, window=9, stride=4) == pytest.approx(perplexity(model, ids), rel=1e-10)


# ------------------------------------------------------------------------------------------------------ masked tokens
def test_masked_tokens_are_80_10_10() -> None:
    ids = torch.randint(5, 1000, (200, 512), generator=torch.Generator().manual_seed(1))
    ids[:, 0] = 2
    attention_mask = torch.ones_like(ids)
    attention_mask[:, -12:] = 0
    draws = torch.Generator().manual_seed(0)
    inputs, labels = mask_tokens(ids, 4, 1000, special_ids=[2], attention_mask=attention_mask, generator=draws)
    chosen = labels != -100
    assert torch.equal(labels[chosen], ids[chosen]) and torch.equal(inputs[~chosen], ids[~chosen])
    assert not chosen[:, 0].any() and not chosen[:, -12:].any()
    count, total = int(chosen.sum()), 200 * 499
    assert count / total == pytest.approx(0.15, abs=0.005)
    masked, kept = (inputs[chosen] == 4).sum() / count, (inputs[chosen] == ids[chosen]).sum() / count
    assert float(masked) == pytest.approx(0.8, abs=0.01) and float(kept) == pytest.approx(0.1, abs=0.01)
    random = inputs[chosen & (inputs != 4) & (inputs != ids)]
    assert int(random.min()) < 20 and int(random.max()) > 980
    again = mask_tokens(
        ids, 4, 1000, special_ids=[2], attention_mask=attention_mask, generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(again[0], inputs)
    assert not (mask_tokens(ids, 4, 1000, rate=0.0)[1] != -100).any()


# ------------------------------------------------------------------------------------------------------------- packing
def test_packing_loses_and_invents_nothing() -> None:
    documents = [some_ids(1, length, seed=length)[0] for length in (3, 9, 1, 7, 2, 20)]
    rows = pack(documents, length=8, pad_id=99)
    parts = []
    for row in range(len(rows.ids)):
        for segment in range(int(rows.segments[row].max()) + 1):
            where = (rows.segments[row] == segment).nonzero().flatten()
            assert torch.equal(where, torch.arange(int(where[0]), int(where[-1]) + 1))
            parts.append(rows.ids[row][where].tolist())
    wanted = [part.tolist() for document in documents for part in document.split(8)]
    assert sorted(parts) == sorted(wanted)
    assert torch.equal(rows.attention_mask == 0, rows.ids == 99) and torch.equal(rows.segments == -1, rows.ids == 99)
    assert len(rows.ids) == 6


# ------------------------------------------------------------------------------------------------------ what is wrong
def test_one_error_names_what_was_wrong() -> None:
    model, ids = decoder(), some_ids(1, 6)
    logits = some_logits(2, 6)
    for wrong, message in [
        (lambda: causal_lm_loss(logits, ids), r"ids has shape \[1, 6\]; it must be \[2, 6\]"),
        (lambda: causal_lm_loss(logits[0], ids), r"logits has shape \[6, 23\]"),
        (lambda: causal_lm_loss(logits[:1], ids, torch.ones(1, 5)), r"attention_mask has shape \[1, 5\]"),
        (lambda: masked_lm_loss(logits, ids), "labels has shape"),
        (lambda: sequence_loss(logits[:1], ids, 1.5), "label_smoothing is 1.5"),
        (lambda: perplexity(model, ids[:, :1]), "ids has 1 tokens"),
        (lambda: perplexity(model, ids, window=1), "window is 1"),
        (lambda: perplexity(model, ids, window=4, stride=5), "stride is 5; it must be at most window = 4"),
        (lambda: mask_tokens(ids, 4, 10, rate=2.0), "rate is 2.0"),
        (lambda: mask_tokens(ids, 10, 10), "mask_id is 10"),
        (lambda: pack([], 4), "documents is empty"),
        (lambda: pack([[1], []], 4), r"documents\[1\] has shape \[0\]"),
        (lambda: pack([[1]], 0), "length is 0"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()
