"""An argument of a wrong kind or out of range: one error that names it, and never a silent other number."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnops.seq import (
    Cache,
    Decoder,
    Encoder,
    EncoderDecoder,
    ExpertsConfig,
    FeedForward,
    KVCache,
    RollingCache,
    SentenceEmbedder,
    SequenceClassifier,
    TokenClassifier,
    TransformerConfig,
    causal_lm_loss,
    generate,
    mask_tokens,
    masked_lm_loss,
    pack,
    perplexity,
    sequence_loss,
    stream,
)
from attnops.seq.decoding import choose

SIZES: dict[str, Any] = {"vocab_size": 20, "dim": 16, "layers": 2, "heads": 2}
IDS, LOGITS = torch.tensor([[1, 2, 3]]), torch.zeros(1, 3, 20)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"experts": 3}, "experts is int; it must be an ExpertsConfig"),
        ({"latent": 3}, "latent is int; it must be a LatentConfig"),
        ({"temperature": [None, 2.0]}, "temperature is float; it must be an AttentionTemperature"),
        ({"final_softcap": 0.0}, r"final_softcap is 0\.0; it must be positive"),
        ({"softcap": -1.0}, r"softcap is -1\.0; it must be positive"),
        ({"qkv_clip": "a"}, "qkv_clip is 'a'; it must be a real number"),
        ({"embedding_scale": float("nan")}, "embedding_scale is nan; it must be finite"),
        ({"logit_scale": "a"}, "logit_scale is 'a'; it must be a real number"),
        ({"rotary_dim": 32}, "rotary_dim is 32; it must be even, and at most head_dim = 8"),
        ({"rotary_dim": 3}, "rotary_dim is 3; it must be even"),
        ({"norm_eps": -1.0}, r"norm_eps is -1\.0; it must be 0 or more"),
        ({"learned_offset": -5}, "learned_offset is -5; it must be an integer of 0 or more"),
        ({"token_types": "a"}, "token_types is 'a'; it must be an integer of 0 or more"),
        ({"position": ["learned", "sinusoidal"]}, "position lists 'learned' and 'sinusoidal'"),
        ({"encoder_layers": 0}, "encoder_layers is 0; it must be an integer of 1 or more"),
        ({"alibi_slopes": [1.0]}, "alibi_slopes holds 1 slopes; it must hold 2"),
        ({"alibi_slopes": [1.0, float("nan")]}, r"alibi_slopes\[1\] is nan"),
        ({"final_norm": "x"}, "final_norm is 'x'; it must be True or False"),
        ({"embedding_norm": 1}, "embedding_norm is 1; it must be True or False"),
    ],
)
def test_a_config(change: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        TransformerConfig(**SIZES, **change)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"activation": "foo"}, "activation is 'foo'; it must be one of"),
        ({"normalize": "x"}, "normalize is 'x'; it must be True or False"),
        ({"shared": 1.5}, r"shared is 1\.5; it must be an integer of 0 or more"),
        ({"shared": 1, "activation": "clamped_swiglu"}, "shared is given with 'clamped_swiglu'"),
        ({"capacity_factor": float("inf")}, "capacity_factor is inf; it must be finite"),
        ({"limit": -1.0}, r"limit is -1\.0; it must be above 0"),
    ],
)
def test_experts(change: dict[str, Any], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        ExpertsConfig(4, **change)


ENCODER = Encoder(TransformerConfig(**SIZES))
DECODER = Decoder(TransformerConfig(**SIZES)).eval()


def filled(cache: Cache) -> Cache:
    """Two rows of three tokens."""
    with torch.no_grad():
        DECODER(torch.tensor([[1, 2, 3], [4, 5, 6]]), cache=cache)
    return cache


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: KVCache(-1), "capacity is -1; it must be an integer of 0 or more"),
        (lambda: KVCache("a"), "capacity is 'a'; it must be an integer of 0 or more"),
        (lambda: DECODER(IDS, segments=[[0, 0, 1]]), "segments is list; it must be a tensor"),
        (lambda: FeedForward(8, 16, "foo"), "activation is 'foo'; it must be one of"),
        (lambda: FeedForward(8, 0), "ff_dim is 0; it must be an integer of 1 or more"),
        (lambda: SequenceClassifier(ENCODER, 0), "classes is 0; it must be an integer of 1 or more"),
        (lambda: TokenClassifier(ENCODER, "a"), "classes is 'a'; it must be an integer of 1 or more"),
        (lambda: SentenceEmbedder(3), "encoder is int; it must be an Encoder"),
        (lambda: RollingCache([]), r"window is \[\]; it must be an integer"),
        (lambda: pack([[1.5, 2]], 4), r"documents\[0\] holds torch\.float32; its tokens must be integers"),
        (lambda: pack(["abc"], 4), r"documents\[0\] is a str"),
        (lambda: pack([[1]], 4, pad_id=1.5), r"pad_id is 1\.5; it must be an integer"),
        (lambda: mask_tokens(IDS.float(), 3, 20), r"ids is torch\.float32; it must be an integer tensor"),
        (lambda: mask_tokens(IDS, 3.5, 20), r"mask_id is 3\.5; it must be an integer"),
        (lambda: mask_tokens(IDS, 20, 20), "mask_id is 20; it must be from 0 to 19"),
        (lambda: mask_tokens(IDS + 30, 3, 20), "ids holds 33; an id must lie in 0 … 19"),
        (lambda: DECODER(IDS, cache="full"), "cache is str; it must be a Cache"),
        (lambda: filled(KVCache()).reorder(torch.tensor([5])), "index holds 5; this cache holds 2 rows"),
        (lambda: filled(RollingCache(4)).reorder(torch.tensor([-1])), "index holds -1; this cache holds 2 rows"),
        (lambda: perplexity(DECODER, [1, 2]), "ids is list; it must be an integer tensor"),
        (lambda: perplexity(ENCODER, IDS), "model is Encoder; it must be a Decoder"),
        (lambda: perplexity(DECODER, IDS[:0]), "ids has no rows"),
    ],
)
def test_a_call(call: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        call()


@pytest.mark.parametrize("loss", [causal_lm_loss, masked_lm_loss, sequence_loss])
def test_a_loss(loss: Callable[..., torch.Tensor]) -> None:
    for wrong, message in (
        (None, "is NoneType; it must be a tensor"),
        (IDS.float(), r"is torch\.float32; it must be an integer tensor"),
        (IDS + 18, "holds 20; a label must lie in 0 … 19, or be -100"),
        (IDS - 4, "holds -3; a label must lie in 0 … 19, or be -100"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            loss(LOGITS, wrong)
    with pytest.raises(TypeError, match="logits is NoneType"):
        loss(None, IDS)
    assert torch.equal(loss(LOGITS, IDS.int()), loss(LOGITS, IDS))


def test_a_perplexity_beyond_numbers_is_infinite() -> None:
    model = Decoder(TransformerConfig(**SIZES, tie_embeddings=False)).double().eval()
    with torch.no_grad():
        model.head.weight.mul_(1e9)
    assert perplexity(model, IDS) == float("inf")


def test_a_perplexity_leaves_dropout_out_and_the_model_as_it_was() -> None:
    model = Decoder(TransformerConfig(**SIZES, dropout=0.5))
    wanted = perplexity(model.eval(), IDS)
    model.train()
    model.blocks[0].eval()
    assert perplexity(model, IDS) == wanted
    assert model.training and not model.blocks[0].training and model.blocks[1].training


# ------------------------------------------------------------------------------------------------------------- writing
BOTH = EncoderDecoder(TransformerConfig(**SIZES)).eval()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eos_id": torch.tensor(3)}, "eos_id is Tensor; it must be an id or a list of ids"),
        ({"eos_id": 1.5}, "eos_id is float; it must be an id or a list of ids"),
        ({"eos_id": "3"}, "eos_id is str; it must be an id or a list of ids"),
        ({"eos_id": 2**70}, "eos_id is 1180591620717411303424; it must be from 0 to 19"),
        ({"eos_id": [3, 20], "num_beams": 2}, "eos_id is 20; it must be from 0 to 19"),
        ({"pad_id": "a"}, "pad_id is 'a'; it must be an integer"),
        ({"pad_id": 1.5}, r"pad_id is 1\.5; it must be an integer"),
        ({"pad_id": True}, "pad_id is True; it must be an integer"),
        ({"pad_id": -1}, "pad_id is -1; it must be from 0 to 19"),
        ({"pad_id": 20, "num_beams": 2}, "pad_id is 20; it must be from 0 to 19"),
        ({"temperature": 1e-40}, "temperature is 1e-40; it must be 0 .*, or 1.18e-38 or more"),
        ({"temperature": float("nan")}, "temperature is nan; it must be finite"),
        ({"temperature": None}, "temperature is None; it must be a real number"),
        ({"temperature": None, "num_beams": 2}, "temperature is None; it must be a real number"),
        ({"top_k": 1.5}, r"top_k is 1\.5; it must be an integer of 1 or more"),
        ({"top_k": 0, "num_beams": 2}, "top_k is 0; it must be an integer of 1 or more"),
        ({"top_k": 3, "num_beams": 2}, "top_k is 3 with num_beams=2; beams do not sample, so it must be None"),
        ({"top_p": "a"}, "top_p is 'a'; it must be a real number"),
        ({"top_p": 0.5, "num_beams": 2}, r"top_p is 0\.5 with num_beams=2; beams do not sample"),
        ({"seed": 1.5}, r"seed is 1\.5; it must be an integer"),
        ({"seed": True}, "seed is True; it must be an integer"),
        ({"seed": 2**64}, r"seed is 18446744073709551616; it must be from -2\^63"),
        ({"seed": 1, "num_beams": 2}, "seed is 1 with num_beams=2; beams do not sample, so it must be None"),
        ({"num_beams": 1.5}, r"num_beams is 1\.5; it must be an integer of 1 or more"),
        ({"num_beams": 10**7}, r"num_beams is 10000000; it must be at most 20\^3 = 8000, the number of texts"),
        ({"num_beams": 2**61, "max_new_tokens": 2**50}, "num_beams is 2305843009213693952; it must be at most"),
        ({"length_penalty": "a"}, "length_penalty is 'a'; it must be a real number"),
        ({"length_penalty": 1e300, "num_beams": 2}, r"length_penalty is 1e\+300; it must be from -16 to 16"),
        ({"ids": None}, "ids is NoneType; it must be an integer tensor"),
        ({"ids": [[1, 2]], "num_beams": 2}, "ids is list; it must be an integer tensor"),
        ({"model": BOTH, "start_id": 20}, "start_id is 20; it must be from 0 to 19"),
        ({"model": BOTH, "start_id": 1.5}, r"start_id is 1\.5; it must be an integer"),
        ({"model": BOTH, "start_id": "a", "num_beams": 2}, "start_id is 'a'; it must be an integer"),
    ],
)
def test_what_writes(options: dict[str, Any], message: str) -> None:
    settings = {"model": DECODER, "ids": IDS, "max_new_tokens": 3, **options}
    with pytest.raises((TypeError, ValueError), match=message):
        generate(**settings)
    if not {"num_beams", "length_penalty"} & set(options):
        with pytest.raises((TypeError, ValueError), match=message):
            list(stream(**settings))


@pytest.mark.parametrize("cache", ["full", "rolling", "paged", "none"])
def test_beams_beyond_memory_are_refused_before_they_are_made(cache: str) -> None:
    beams = 2**50  # 2^50 · 20 logits
    with pytest.raises(
        ValueError, match=rf"num_beams is {beams}; it must be at most \d+, for a beam needs [\d,]+ bytes"
    ):
        generate(DECODER, IDS, 100, num_beams=beams, cache=cache)


def test_the_smallest_temperature_and_share_take_the_likeliest() -> None:
    far = torch.tensor([[50.0, 90.0, -float("inf")], [-90.0, -50.0, -70.0]])  # divided, they are beyond float32
    assert choose(far, 1.2e-38, None, None, None).tolist() == [1, 1]
    likeliest = generate(DECODER, IDS, 5)
    assert torch.equal(generate(DECODER, IDS, 5, temperature=1.2e-38, seed=0), likeliest)
    assert torch.equal(generate(DECODER, IDS, 5, temperature=1.0, top_p=1e-300, seed=0), likeliest)


def test_no_rows_are_written_as_beams_too() -> None:
    ids = torch.zeros(0, 3, dtype=torch.long)
    assert generate(DECODER, ids, 2, num_beams=3).shape == generate(DECODER, ids, 2).shape == (0, 5)
