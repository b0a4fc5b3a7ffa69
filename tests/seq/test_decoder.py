"""Laws of decoders: however a text is cut, padded, packed or cached, its logits are the same."""

from __future__ import annotations

import itertools
from typing import Any

import hypothesis
import hypothesis.strategies as st
import pytest
import torch
from torch import Tensor

import attnops
from attnops import GlobalTokens, Mask, SlidingWindow
from attnops.seq import (
    Cache,
    Decoder,
    FirstTokens,
    KVCache,
    LearnedPositions,
    RMSNorm,
    RollingCache,
    TransformerConfig,
    causal_lm_loss,
    pack,
)
from tests.seq.variants import BY_LENGTH, DECODERS, VOCABULARY, decoder, some_ids

LENGTH = 9
every_decoder = pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())


@torch.no_grad()
def in_steps(model: Decoder, ids: Tensor, cache: Cache, ends: list[int], mask: Tensor | None = None) -> Tensor:
    parts = []
    for start, end in itertools.pairwise([0, *ends, ids.shape[1]]):
        parts.append(model(ids[:, start:end], None if mask is None else mask[:, start:end], cache))
    return torch.cat(parts, 1)


def close(got: Tensor, wanted: Tensor, where: Tensor | None = None) -> None:
    if where is not None:
        got, wanted = got[where], wanted[where]
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10 * float(wanted.abs().max()))


@every_decoder
@hypothesis.settings(max_examples=6)
@hypothesis.given(ends=st.sets(st.integers(1, LENGTH - 1)))
def test_every_split_is_the_text_at_once(options: dict[str, Any], ends: set[int]) -> None:
    model, ids = decoder(**options), some_ids(2, LENGTH)
    if not options.get("causal", True):
        ends = {end for end in ends if end >= 3}  # a prefix that sees itself whole must come whole
    with torch.no_grad():
        close(in_steps(model, ids, KVCache(), sorted(ends)), model(ids))


@every_decoder
@pytest.mark.parametrize("side", ["left", "right", "between"])
def test_padding_moves_no_real_token(options: dict[str, Any], side: str) -> None:
    model = decoder(**options)
    texts = [some_ids(1, length, seed=length) for length in (LENGTH, LENGTH - 3)]
    short, filler = texts[1], torch.full((1, 3), 7)
    padded = {
        "left": torch.cat((filler, short), 1),
        "right": torch.cat((short, filler), 1),
        "between": torch.cat((short[:, :2], filler, short[:, 2:]), 1),
    }[side]
    real = {"left": [0] * 3 + [1] * 6, "right": [1] * 6 + [0] * 3, "between": [1] * 2 + [0] * 3 + [1] * 4}[side]
    ids, mask = torch.cat((texts[0], padded)), torch.tensor([[1] * LENGTH, real])
    with torch.no_grad():
        logits = model(ids, mask)
        close(logits[:1], model(texts[0]))
        close(logits[1][mask[1].bool()], model(short)[0])
    for ends in ([], [6], list(range(6 if not options.get("causal", True) else 1, LENGTH))):
        close(in_steps(model, ids, KVCache(), ends, mask), logits, mask.bool())


def test_what_padding_holds_changes_nothing() -> None:
    model, ids = decoder(), some_ids(2, LENGTH)
    mask = torch.ones_like(ids)
    mask[0, :3] = mask[1, -2:] = 0
    other = torch.where(mask == 0, (ids + 5) % VOCABULARY, ids)
    with torch.no_grad():
        first, second = model(ids, mask), model(other, mask)
    assert torch.equal(first[mask.bool()], second[mask.bool()])


@every_decoder
def test_no_token_hears_from_the_future(options: dict[str, Any]) -> None:
    if not options.get("causal", True):
        return
    model, ids = decoder(**options), some_ids(1, LENGTH)
    heard: list[Tensor] = []
    model.embeddings.register_forward_hook(lambda module, args, x: heard.append(x.requires_grad_()) or x)
    for row in (0, 4, LENGTH - 1):
        logits = model(ids)
        (gradient,) = torch.autograd.grad(logits[0, row].square().sum(), heard[-1])
        assert torch.equal(gradient[0].abs().sum(-1).bool(), reached(options, row))


def reached(options: dict[str, Any], row: int) -> Tensor:
    """Which tokens two layers of the pattern reach from a row."""
    patterns = options.get("pattern")
    patterns = patterns if isinstance(patterns, list) else [patterns, patterns]
    x = torch.zeros(1, LENGTH, 1, dtype=torch.float64)
    reach = torch.eye(LENGTH, dtype=torch.bool)
    for pattern in patterns:
        full = attnops.Causal() if pattern is None else pattern & attnops.Causal()
        eye = torch.eye(LENGTH, dtype=torch.float64).unsqueeze(0)
        layer = attnops.attend(x, x, eye, pattern=full)[0] > 0
        reach = (layer.long() @ reach.long()) > 0
    return reach[row]


@every_decoder
def test_packed_documents_are_documents_alone(options: dict[str, Any]) -> None:
    model = decoder(**options)
    documents = [some_ids(1, length, seed=length)[0] for length in (5, 3, 2, 6)]
    rows = pack(documents, length=9)
    assert rows.ids.shape[0] == 2
    with torch.no_grad():
        logits = model(rows.ids, rows.attention_mask, segments=rows.segments)
    found = 0
    for document in documents:
        alone = model(document.unsqueeze(0))[0].detach()
        for row in range(2):
            for segment in range(int(rows.segments[row].max()) + 1):
                where = rows.segments[row] == segment
                if torch.equal(rows.ids[row][where], document):
                    close(logits[row][where], alone)
                    found += 1
    assert found == len(documents)
    apart = [(model(d.unsqueeze(0)).detach(), d.unsqueeze(0)) for d in documents]
    total = sum(float(causal_lm_loss(x, i)) * (i.shape[1] - 1) for x, i in apart) / sum(len(d) - 1 for d in documents)
    packed = causal_lm_loss(logits, rows.ids, rows.attention_mask, rows.segments)
    assert float(packed) == pytest.approx(total, rel=1e-10)


def test_a_document_gives_no_gradient_to_another() -> None:
    model = decoder()
    heard: list[Tensor] = []
    model.embeddings.register_forward_hook(lambda module, args, x: heard.append(x.requires_grad_()) or x)
    logits = model(some_ids(1, 7), segments=torch.tensor([[0, 0, 0, 1, 1, 1, 1]]))
    (gradient,) = torch.autograd.grad(logits[0, 3:].square().sum(), heard[-1])
    assert not gradient[0, :3].any() and gradient[0, 3:].any()


@pytest.mark.parametrize("options", BY_LENGTH.values(), ids=BY_LENGTH.keys())
def test_a_step_of_a_law_by_length_is_the_last_row_of_a_text_of_that_length(options: dict[str, Any]) -> None:
    model, ids = decoder(layers=1, **options), some_ids(2, LENGTH)
    cache = KVCache()
    for end in range(1, LENGTH + 1):
        with torch.no_grad():
            step, text = model(ids[:, end - 1 : end], cache=cache), model(ids[:, :end])
        close(step[:, 0], text[:, -1])


# ------------------------------------------------------------------------------------------------------ rolling caches


@pytest.mark.parametrize("window,sinks,position", [(1, 0, "alibi"), (3, 0, "rotary"), (4, 2, "shaw"), (2, 3, "rotary")])
@pytest.mark.parametrize("ends", [[5], list(range(1, 12)), [4, 8]], ids=str)
def test_a_rolling_cache_is_its_window_as_a_pattern(window: int, sinks: int, position: str, ends: list[int]) -> None:
    pattern: attnops.Pattern = SlidingWindow(window - 1)
    if sinks:
        pattern = pattern | FirstTokens(sinks)
    windowed, full = decoder(position=position, pattern=pattern), decoder(position=position)
    mixed = decoder(position=position, pattern=[pattern, None])
    ids = some_ids(2, 12)
    masks = [
        None,
        torch.tensor([[0] * 4 + [1] * 8, [0] + [1] * 11]),
        torch.tensor([[1] * 5 + [0] * 3 + [1] * 4, [1] * 12]),
    ]
    for mask in masks:
        real = None if mask is None else mask.bool()
        with torch.no_grad():
            wanted, wanted_mixed = windowed(ids, mask), mixed(ids, mask)
        for model in (windowed, full):
            close(in_steps(model, ids, RollingCache(window, sinks), ends, mask), wanted, real)
        close(in_steps(mixed, ids, RollingCache([window, None], sinks), ends, mask), wanted_mixed, real)


def test_memory_is_the_formula() -> None:
    model, ids = decoder(layers=3, head_dim=6), some_ids(2, 11)
    a_token = 2 * 3 * 2 * 2 * 6 * 8  # key and value, layers, rows, heads, D, bytes
    full, rolling = KVCache(), RollingCache(window=4, sinks=2)
    for cache in (full, rolling):
        in_steps(model, ids, cache, [7])
        assert cache.length == 11
    assert full.memory() == 11 * a_token
    assert rolling.memory() == (4 + 2) * a_token


@pytest.mark.parametrize("make", [KVCache, lambda: RollingCache(4, 1), lambda: RollingCache([3, None])])
def test_reordered_rows_go_on_from_others(make: Any) -> None:
    model, ids = decoder(), some_ids(3, LENGTH)
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    index = torch.tensor([2, 1, 1, 0])
    for m in (None, mask):
        cache, again = make(), make()
        in_steps(model, ids[:, :6], cache, [3], m)
        cache.reorder(index)
        in_steps(model, ids[index][:, :6], again, [3], None if m is None else m[index])
        with torch.no_grad():
            close(model(ids[index][:, 6:], cache=cache), model(ids[index][:, 6:], cache=again))


# ------------------------------------------------------------------------------------------------- what goes wrong once


@pytest.mark.parametrize("make", [KVCache, lambda: RollingCache(4, 1)])
@pytest.mark.parametrize("padded", [False, True])
def test_a_failed_step_leaves_no_trace(make: Any, padded: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model, ids = decoder(layers=3), some_ids(2, LENGTH)
    mask = torch.ones_like(ids)
    if padded:
        mask[0, :2] = 0
    cache, other = make(), make()
    with torch.no_grad():
        with monkeypatch.context() as patch:  # in the very first step, of other rows
            patch.setattr(model.blocks[1].feedforward, "forward", broken)
            with pytest.raises(RuntimeError, match="broken"):
                model(ids[:1], cache=cache)
        model(ids[:, :5], mask[:, :5], cache)
        model(ids[:, :5], mask[:, :5], other)
        before = (cache.length, cache.memory())
        with monkeypatch.context() as patch:
            patch.setattr(model.blocks[1].feedforward, "forward", broken)
            with pytest.raises(RuntimeError, match="broken"):
                model(ids[:, 1:4], mask[:, 1:4], cache)
        with pytest.raises(ValueError, match="ids holds 99"):
            model(torch.full((2, 1), 99), cache=cache)
        assert (cache.length, cache.memory()) == before
        close(model(ids[:, 5:], mask[:, 5:], cache), model(ids[:, 5:], mask[:, 5:], other))


def broken(*_: Any) -> Tensor:
    raise RuntimeError("broken")


def test_one_error_names_what_was_wrong() -> None:
    model, ids = decoder(position="learned", max_length=8), some_ids(2, 5)
    cache = KVCache()
    model(ids, cache=cache)
    for wrong, message in [
        (lambda: model(ids.float()), "ids is torch.float32; it must be an integer tensor"),
        (lambda: model(ids[0]), r"ids has shape \[5\]; it must be \[B, N\]"),
        (lambda: model(ids - 30), r"ids holds -\d+; an id must lie in 0 … 22"),
        (lambda: model(ids + 23), r"ids holds \d+; an id must lie in 0 … 22"),
        (lambda: model(ids, torch.ones(2, 4)), r"attention_mask has shape \[2, 4\]; it must be \[2, 5\]"),
        (lambda: model(ids, torch.ones(2, 5) / 2), "attention_mask holds values other than 0 and 1"),
        (lambda: model(ids, [1]), "attention_mask is list"),
        (lambda: model(ids[:1], cache=cache), "ids has 1 rows; this cache holds 2"),
        (lambda: model(ids, torch.ones(2, 7), cache), r"attention_mask has shape \[2, 7\]; .* \[2, 10\]"),
        (lambda: model(ids[:, :1], segments=ids), r"segments has shape \[2, 5\]; it must be \[2, 1\]"),
        (lambda: model(ids, cache=cache, segments=ids), "segments is given with a cache"),
        (lambda: model(some_ids(2, 9)), "position 8 lies past the learned table of max_length=8"),
        (lambda: model(ids, cache=cache), "position 9 lies past the learned table"),
        (
            lambda: decoder(head_dim=6)(ids, cache=cache),
            r"key has \[B, H, D\] = \[2, 2, 6\].*the cache holds \[2, 2, 8\]",
        ),
        (
            lambda: decoder(pattern=Mask(torch.ones(1, 1, dtype=torch.bool)))(ids[:, :1], cache=KVCache()),
            "Mask reads storage rows",
        ),
        (
            lambda: decoder(pattern=GlobalTokens(torch.tensor([0])))(ids, cache=KVCache()),
            "GlobalTokens reads storage rows",
        ),
        (lambda: LearnedPositions(4, 8)(torch.tensor([4])), "position 4 lies past"),
        (lambda: RollingCache(0), "window is 0"),
        (lambda: RollingCache(3, sinks=-1), "sinks is -1"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()
    assert cache.length == 5
    padded = KVCache()
    mask = torch.tensor([[0, 1, 1, 1, 1], [1] * 5])
    model(ids, mask, padded)
    with pytest.raises(ValueError, match="attention_mask differs from before"):
        model(ids[:, :1], torch.ones(2, 6), padded)


@pytest.mark.parametrize(
    "wrong,message",
    [
        ({"norm": "batch"}, "norm is 'batch'; it must be one of 'rms', 'layer'"),
        ({"norm_position": "between"}, "norm_position is 'between'"),
        ({"activation": "tanh"}, "activation is 'tanh'"),
        ({"position": "rope"}, "position is 'rope'"),
        ({"position": ["rotary"]}, "position lists 1 layers"),
        ({"kv_heads": 3}, "kv_heads is 3; it must divide the 4 heads"),
        ({"dim": 30}, "dim is 30; it must be a multiple of heads = 4"),
        ({"layers": 0}, "layers is 0"),
        ({"dropout": 1.0}, "dropout is 1.0"),
        ({"pattern": "causal"}, "pattern is str"),
        ({"qk_norm": "half"}, "qk_norm is 'half'"),
        ({"sinks": 1}, "sinks is 1"),
        ({"rotary_dim": 3}, "dim is 3"),
    ],
)
def test_a_bad_config_is_named(wrong: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        Decoder(TransformerConfig(**{"vocab_size": 9, "dim": 16, "layers": 2, "heads": 4, **wrong}))


def test_nothing_lays_out_a_mask_that_a_pattern_says() -> None:
    for options in DECODERS.values():
        model, ids = decoder(**options).float(), some_ids(1, LENGTH)
        with torch.no_grad(), attnops.trace() as plans:
            cache = KVCache()
            model(ids, cache=cache)
            model(ids[:, :1], cache=cache)
        for plan in plans:
            assert "Mask(" not in str(plan) and "tensor [" not in str(plan)
        if options == {}:
            assert [plan.problem.forbids for plan in plans] == [True, True, False, False]
            assert all(plan.backend == "sdpa" for plan in plans)


def test_a_norm_is_the_same_with_and_without_gradients() -> None:
    norm = RMSNorm(6, eps=1e-3).double()
    with torch.no_grad():
        norm.weight.copy_(torch.linspace(-1, 2, 6))  # type: ignore[union-attr]
    for x in (torch.randn(2, 3, 6).double(), torch.zeros(1, 6).double(), torch.full((1, 6), 1e-4).double()):
        with torch.no_grad():
            fast = norm(x)
        torch.testing.assert_close(fast, norm(x).detach(), rtol=1e-12, atol=1e-15)
        assert torch.equal(norm(x.bfloat16()), norm.float()(x.bfloat16()))
        norm.double()
