"""The layer of linear attention is the operator between two linear layers, and carries its state."""

from __future__ import annotations

import pytest
import torch

from attnops import linear_attend
from attnops.seq import Block, FeedForward, KVCache, LinearAttention, TransformerConfig
from attnops.seq.context import Context, read_context


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("kv_heads", [None, 2, 1])
def test_it_is_the_operator_between_two_linear_layers(causal: bool, kv_heads: int | None) -> None:
    torch.manual_seed(0)
    layer = LinearAttention(16, 4, kv_heads, causal=causal, decay=0.9 if causal else None).double()
    x = torch.randn(2, 7, 16, dtype=torch.float64)
    held = kv_heads or 4
    projected = (x @ layer.qkv.weight.t()).view(2, 7, 4 + 2 * held, 4).transpose(1, 2)
    query, key, value = projected[:, :4], projected[:, 4 : 4 + held], projected[:, 4 + held :]
    right = linear_attend(query, key, value, causal=causal, decay=layer.decay)
    torch.testing.assert_close(layer(x), right.transpose(1, 2).reshape(2, 7, 16) @ layer.out.weight.t())


@pytest.mark.parametrize("cuts", [[7], [3, 4], [1] * 7, [6, 1]])
def test_however_a_text_is_cut_its_numbers_are_those_at_once(cuts: list[int]) -> None:
    layer, x = LinearAttention(16, 4, decay=0.8).double(), torch.randn(2, 7, 16, dtype=torch.float64)
    state, outs = None, []
    for part in torch.split(x, cuts, 1):
        out, state = layer(part, state=state, return_state=True)
        outs.append(out)
    torch.testing.assert_close(torch.cat(outs, 1), layer(x))


def test_padding_is_not_heard() -> None:
    layer, x = LinearAttention(16, 4), torch.randn(1, 5, 16)
    padded = torch.cat((torch.full((1, 2, 16), 1e3), x), 1)
    mask = torch.tensor([[0, 0, 1, 1, 1, 1, 1]])
    out = layer(padded, read_context(torch.zeros(1, 7, dtype=torch.long), mask))
    torch.testing.assert_close(out[:, 2:], layer(x))


def test_it_stands_in_a_block() -> None:
    config = TransformerConfig(vocab_size=10, dim=16, layers=1, heads=4)
    block, x = Block(config, LinearAttention(16, 4), FeedForward(16, 32)), torch.randn(2, 5, 16)
    normed = block.attention(block.attention_norm(x))
    torch.testing.assert_close(block(x), x + normed + block.feedforward(block.feedforward_norm(x + normed)))


def test_keys_and_documents_have_no_place_in_a_state() -> None:
    layer, x, ids = LinearAttention(16, 4), torch.randn(1, 3, 16), torch.zeros(1, 3, dtype=torch.long)
    with pytest.raises(ValueError, match="context has a cache of keys"):
        layer(x, Context(torch.arange(3), cache=KVCache()))
    with pytest.raises(ValueError, match="context has segments"):
        layer(x, read_context(ids, segments=ids))
    with pytest.raises(ValueError, match="heads is 0"):
        LinearAttention(16, 0)
