"""Writing: greedy, sampled, by beams, with every cache, padded, streamed."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops import SlidingWindow
from attnops.seq import Decoder, EncoderDecoder, KVCache, TransformerConfig, from_pretrained, generate, stream
from attnops.seq.decoding import choose
from tests.seq.tiny import DECODERS as ARCHITECTURES
from tests.seq.tiny import tiny
from tests.seq.variants import BY_LENGTH, DECODERS, VOCABULARY, decoder, enlarge, some_ids

CACHES = ("full", "rolling", "paged", "none")


@torch.no_grad()
def written_by_hand(model: Decoder, ids: Tensor, count: int) -> Tensor:
    for _ in range(count):
        ids = torch.cat((ids, model(ids)[:, -1:].argmax(-1)), 1)
    return ids


@pytest.mark.parametrize("options", DECODERS.values(), ids=DECODERS.keys())
@pytest.mark.parametrize("cache", CACHES)
def test_greedy_is_the_likeliest_token_after_another(options: dict[str, Any], cache: str) -> None:
    model = decoder(**options)
    texts = [some_ids(1, length, seed=length) for length in (6, 3)]
    ids = torch.cat((texts[0], torch.cat((torch.full((1, 3), 7), texts[1]), 1)))
    mask = torch.tensor([[1] * 6, [0] * 3 + [1] * 3])
    out = generate(model, ids, 7, mask, cache=cache)
    assert out.shape == (2, 13)
    for row, text in enumerate(texts):
        assert torch.equal(out[row, 6:], written_by_hand(model, text, 7)[0, text.shape[1] :])


@pytest.mark.parametrize("options", BY_LENGTH.values(), ids=BY_LENGTH.keys())
def test_greedy_under_a_law_by_length(options: dict[str, Any]) -> None:
    model, ids = decoder(layers=1, **options), some_ids(2, 3)
    for cache in CACHES:
        assert torch.equal(generate(model, ids, 7, cache=cache), written_by_hand(model, ids, 7))


def test_right_padding_goes_on_after_the_last_real_token() -> None:
    model, ids = decoder(), some_ids(1, 5)
    padded, mask = torch.cat((ids, torch.full((1, 2), 7)), 1), torch.tensor([[1] * 5 + [0] * 2])
    assert torch.equal(generate(model, padded, 4, mask)[:, 7:], generate(model, ids, 4)[:, 5:])


def test_it_streams_what_it_writes() -> None:
    model, ids = decoder(), some_ids(2, 4)
    tokens = list(stream(model, ids, 5, temperature=1.0, seed=3))
    assert torch.equal(torch.stack(tokens, 1), generate(model, ids, 5, temperature=1.0, seed=3)[:, 4:])
    first = next(iter(stream(model, ids, 5)))
    assert torch.equal(first, generate(model, ids, 1)[:, -1])


def test_an_end_id_ends_a_row_and_all_ends_the_text() -> None:
    model, ids = decoder(), some_ids(3, 4)
    free = generate(model, ids, 12)
    new = free[:, 4:]
    end = int(new[0, 2])
    out = generate(model, ids, 12, eos_id=end, pad_id=1)
    for row in range(3):
        stops = (new[row] == end).nonzero()
        stop = int(stops[0]) + 1 if len(stops) else 12
        assert torch.equal(out[row, 4 : 4 + stop], new[row, :stop])
        assert (out[row, 4 + stop :] == 1).all()
    alone = generate(model, ids[:1], 12, eos_id=[end, VOCABULARY - 1])
    assert alone.shape[1] <= 4 + 3
    assert alone[0, -1] == end or alone[0, -1] == VOCABULARY - 1


def test_a_seed_gives_the_same_draws_and_the_model_is_left_as_it_was() -> None:
    model, ids = decoder(dropout=0.5), some_ids(2, 4)
    model.train()
    model.blocks[0].eval()
    draw = {seed: generate(model, ids, 8, temperature=2.0, seed=seed) for seed in (0, 1)}
    assert torch.equal(draw[0], generate(model, ids, 8, temperature=2.0, seed=0, cache="none"))
    assert not torch.equal(draw[0], draw[1])
    assert model.training and not model.blocks[0].training and model.blocks[1].training
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_draws_follow_temperature_top_k_and_top_p() -> None:
    logits = torch.tensor([[3.0, 2.0, 1.0, 0.0, -1.0]])
    many = logits.expand(20000, -1)
    draws = torch.Generator().manual_seed(0)

    def shares(**options: Any) -> Tensor:
        settings = {"temperature": 1.0, "top_k": None, "top_p": None, **options}
        return choose(many, draws=draws, **settings).bincount(minlength=5) / len(many)

    def close(got: Tensor, wanted: Tensor) -> None:
        assert torch.equal(got > 0, wanted > 0)
        torch.testing.assert_close(got, wanted, rtol=0, atol=0.012)

    close(shares(), logits[0].softmax(0))
    close(shares(temperature=2.0), (logits[0] / 2).softmax(0))
    first = lambda k: torch.cat((logits[0, :k].softmax(0), torch.zeros(5 - k)))  # noqa: E731
    close(shares(top_k=2), first(2))
    close(shares(top_k=9), first(5))
    reached = logits[0].softmax(0).cumsum(0)
    close(shares(top_p=float(reached[0]) - 0.01), first(1))
    close(shares(top_p=float(reached[0]) + 0.01), first(2))
    close(shares(top_p=1.0), first(5))
    close(shares(top_k=3, top_p=0.7), first(2))


# -------------------------------------------------------------------------------------------------------------- beams
@pytest.mark.parametrize("cache", CACHES)
def test_enough_beams_find_the_likeliest_text(cache: str) -> None:
    vocab, new = 4, 3
    model = decoder(vocab_size=vocab)
    ids = some_ids(2, 4) % vocab
    out = generate(model, ids, new, num_beams=vocab**2, cache=cache)
    for row in range(2):
        texts = torch.tensor([[*ids[row].tolist(), *rest] for rest in itertools.product(range(vocab), repeat=new)])
        with torch.no_grad():
            likely = model(texts).log_softmax(-1)
        score = likely[:, 3:-1].gather(-1, texts[:, 4:, None]).sum((1, 2))
        assert torch.equal(out[row], texts[score.argmax()])


def test_enough_beams_find_the_likeliest_text_that_ends() -> None:
    vocab, new, end = 4, 3, 2
    model = decoder(vocab_size=vocab)
    ids = torch.tensor([[1, 0, 3]])
    for penalty in (0.0, 1.0, 2.0):
        best, winner = -float("inf"), None
        for length in range(1, new + 1):
            for rest in itertools.product(range(vocab), repeat=length):
                ends = end in rest
                if (ends and rest.index(end) != length - 1) or (not ends and length < new):
                    continue
                text = torch.tensor([[*ids[0].tolist(), *rest]])
                with torch.no_grad():
                    likely = model(text).log_softmax(-1)[0, 2:-1]
                score = float(likely.gather(-1, text[0, 3:, None]).sum()) / length**penalty
                if score > best:
                    best, winner = score, text[0]
        assert winner is not None
        out = generate(model, ids, new, num_beams=vocab**3, eos_id=end, length_penalty=penalty)
        assert torch.equal(out[0], winner)


@pytest.mark.parametrize("beams", [2, 3])
@pytest.mark.parametrize("ends", [False, True])
def test_beams_are_those_of_transformers(beams: int, ends: bool) -> None:
    theirs = tiny("llama")
    model = from_pretrained(theirs)
    ids = torch.randint(2, 60, (3, 5), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    eos = int(generate(model, ids, 4, mask, num_beams=beams)[0, -1]) if ends else None
    wanted = theirs.generate(
        ids, attention_mask=mask, max_new_tokens=8, num_beams=beams, do_sample=False, eos_token_id=eos, pad_token_id=1
    )
    for cache in ("full", "paged", "none"):
        assert torch.equal(generate(model, ids, 8, mask, num_beams=beams, eos_id=eos, pad_id=1, cache=cache), wanted)


@pytest.mark.parametrize("name", ["llama", "mistral"])
def test_greedy_is_that_of_transformers(name: str) -> None:
    assert name in ARCHITECTURES
    theirs = tiny(name)
    model = from_pretrained(theirs)
    ids = torch.randint(2, 60, (3, 5), generator=torch.Generator().manual_seed(4))
    mask = torch.ones_like(ids)
    mask[1, :2] = 0
    wanted = theirs.generate(ids, attention_mask=mask, max_new_tokens=12, do_sample=False, pad_token_id=0)
    for cache in CACHES:
        assert torch.equal(generate(model, ids, 12, mask, cache=cache), wanted)


# --------------------------------------------------------------------------------------------------- encoder-decoders
@pytest.mark.parametrize("beams", [1, 2])
def test_an_encoder_decoder_writes_from_its_start(beams: int) -> None:
    config = TransformerConfig(VOCABULARY, 32, 2, 4, position="sinusoidal")
    model = EncoderDecoder(config).double().eval()
    enlarge(model)
    ids = some_ids(2, 6)
    mask = torch.tensor([[1] * 6, [1] * 4 + [0] * 2])
    out = generate(model, ids, 5, mask, num_beams=beams, start_id=1)
    assert out.shape == (2, 6) and (out[:, 0] == 1).all()
    for cache in CACHES:
        assert torch.equal(generate(model, ids, 5, mask, num_beams=beams, start_id=1, cache=cache), out)
    assert torch.equal(generate(model, ids[1:, :4], 5, num_beams=beams, start_id=1), out[1:])
    if beams == 1:
        text = out[:, :1]
        for _ in range(5):
            with torch.no_grad():
                text = torch.cat((text, model(ids, text, mask)[:, -1:].argmax(-1)), 1)
        assert torch.equal(text, out)


# ------------------------------------------------------------------------------------------------------ what is wrong
def test_one_error_names_what_was_wrong() -> None:
    model, ids = decoder(pattern=SlidingWindow(3)), some_ids(2, 4)
    used = KVCache()
    with torch.no_grad():
        model(ids, cache=used)
    both = EncoderDecoder(TransformerConfig(VOCABULARY, 32, 1, 4))
    for wrong, message in [
        (lambda: generate(model, ids, 0), "max_new_tokens is 0"),
        (lambda: generate(model, ids, 3, temperature=-1.0), "temperature is -1.0"),
        (lambda: generate(model, ids, 3, top_k=0), "top_k is 0"),
        (lambda: generate(model, ids, 3, top_p=0.0), "top_p is 0.0"),
        (lambda: generate(model, ids, 3, top_p=1.5), "top_p is 1.5"),
        (lambda: generate(model, ids, 3, num_beams=0), "num_beams is 0"),
        (lambda: generate(model, ids, 3, num_beams=2, temperature=1.0), "temperature is 1.0 with num_beams=2"),
        (lambda: generate(model, ids, 3, eos_id=-1), "eos_id is -1"),
        (lambda: generate(model, ids, 3, cache="ring"), "cache is 'ring'"),
        (lambda: generate(model, ids, 3, cache=used), "cache holds 4 tokens"),
        (lambda: generate(model, ids[:, :0], 3), "ids has no tokens"),
        (
            lambda: generate(model, ids, 3, torch.tensor([[1] * 4, [0] * 4])),
            "attention_mask has a row of padding alone",
        ),
        (lambda: generate(model, ids, 3, torch.ones(2, 3)), r"attention_mask has shape \[2, 3\]"),
        (lambda: generate(model, ids + 40, 3), "ids holds"),
        (lambda: generate(model, ids, 3, start_id=1), "start_id is 1"),
        (lambda: generate(both, ids, 3), "start_id is None"),
        (lambda: generate(torch.nn.Linear(1, 1), ids, 3), "model is Linear"),  # type: ignore[arg-type]
        (lambda: list(stream(model, ids, 3, eos_id=[1, True])), "eos_id is True"),
    ]:
        with pytest.raises((ValueError, TypeError), match=message):
            wrong()
