"""Encoders and encoder-decoders against torch's own, and their laws."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from attnops import Causal, GlobalTokens, SlidingWindow
from attnops.seq import (
    Attention,
    CrossAttention,
    Encoder,
    EncoderDecoder,
    KVCache,
    MaskedLanguageModel,
    RollingCache,
    SentenceEmbedder,
    SequenceClassifier,
    TokenClassifier,
    TransformerConfig,
    pack,
)
from tests.seq.variants import DECODERS, VOCABULARY, enlarge, some_ids

SIZES: dict[str, Any] = {"vocab_size": VOCABULARY, "dim": 32, "layers": 2, "heads": 4, "ff_dim": 40}
TORCH: dict[str, Any] = {
    **SIZES,
    "position": "none",
    "norm": "layer",
    "attention_bias": True,
    "output_bias": True,
    "ff_bias": True,
}


def encoder(**options: Any) -> Encoder:
    model = Encoder(TransformerConfig(**{**SIZES, **options})).double().eval()
    enlarge(model)
    return model


def encoder_decoder(**options: Any) -> EncoderDecoder:
    model = EncoderDecoder(TransformerConfig(**{**SIZES, **options})).double().eval()
    enlarge(model)
    return model


def close(got: Tensor, wanted: Tensor) -> None:
    torch.testing.assert_close(got, wanted, rtol=0, atol=1e-10 * float(wanted.detach().abs().max()))


def names_of_torch(name: str) -> str:
    for theirs, ours in [
        ("layers.", "blocks."),
        ("self_attn.", "attention."),
        ("multihead_attn.", "cross."),
        ("linear1", "feedforward.up"),
        ("linear2", "feedforward.down"),
    ]:
        name = name.replace(theirs, ours)
    return name


@pytest.mark.parametrize("first", [False, True], ids=["post", "pre"])
@pytest.mark.parametrize("activation", ["relu", "gelu"])
def test_an_encoder_is_that_of_torch(first: bool, activation: str) -> None:
    layer = nn.TransformerEncoderLayer(32, 4, 40, 0.0, activation, batch_first=True, norm_first=first)
    theirs = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).double().eval()
    enlarge(theirs)
    model = encoder(**TORCH, norm_position="pre" if first else "post", activation=activation, final_norm=False)
    renamed = {
        names_of_torch(name).replace("norm1", "attention_norm").replace("norm2", "feedforward_norm"): value
        for name, value in theirs.state_dict().items()
    }
    report = model.load_state_dict(renamed, strict=False)
    assert report.missing_keys == ["embeddings.token.weight"] and not report.unexpected_keys
    ids = some_ids(2, 7)
    mask = torch.tensor([[1] * 7, [1] * 5 + [0] * 2])
    wanted = theirs(model.embeddings.token(ids), src_key_padding_mask=mask == 0)
    close(model(ids, mask)[mask.bool()], wanted[mask.bool()])


def test_a_decoder_that_reads_an_encoder_is_that_of_torch() -> None:
    layer = nn.TransformerDecoderLayer(32, 4, 40, 0.0, "relu", batch_first=True)
    theirs = nn.TransformerDecoder(layer, 2).double().eval()
    enlarge(theirs)
    model = encoder_decoder(**TORCH, norm_position="post", activation="relu")
    renamed = {names_of_torch(name): value for name, value in theirs.state_dict().items()}
    for theirs_name, ours in (("norm1", "attention_norm"), ("norm2", "cross_norm"), ("norm3", "feedforward_norm")):
        renamed = {name.replace(theirs_name, ours): value for name, value in renamed.items()}
    report = model.load_state_dict(renamed, strict=False)
    assert not report.unexpected_keys
    assert all(name.startswith(("encoder.", "embeddings.")) for name in report.missing_keys)
    ids, target = some_ids(2, 7), some_ids(2, 5, seed=1)
    mask = torch.tensor([[1] * 7, [0] * 2 + [1] * 5])
    wanted = theirs(
        model.embeddings.token(target),
        model.encoder(ids, mask),
        tgt_mask=nn.Transformer.generate_square_subsequent_mask(5, dtype=torch.float64),
        memory_key_padding_mask=mask == 0,
    )
    close(model.hidden(ids, target, mask), wanted)


ENCODERS = {name: options for name, options in DECODERS.items() if options.get("causal", True)}


@pytest.mark.parametrize("options", ENCODERS.values(), ids=ENCODERS.keys())
def test_padding_and_packing_move_no_token(options: dict[str, Any]) -> None:
    model = encoder(**options)
    texts = [some_ids(1, length, seed=length)[0] for length in (9, 6)]
    filler = torch.full((3,), 7)
    for left in (False, True):
        padded = torch.cat((filler, texts[1]) if left else (texts[1], filler))
        real = [0] * 3 + [1] * 6 if left else [1] * 6 + [0] * 3
        mask = torch.tensor([[1] * 9, real])
        with torch.no_grad():
            hidden = model(torch.stack((texts[0], padded)), mask)
            close(hidden[0], model(texts[0].unsqueeze(0))[0])
            close(hidden[1][mask[1].bool()], model(texts[1].unsqueeze(0))[0])
    rows = pack(texts, length=20)
    with torch.no_grad():
        hidden = model(rows.ids, rows.attention_mask, segments=rows.segments)
        close(hidden[0, :9], model(texts[0].unsqueeze(0))[0])
        close(hidden[0, 9:15], model(texts[1].unsqueeze(0))[0])


def test_a_longformer_is_a_window_and_global_tokens() -> None:
    model = encoder(pattern=SlidingWindow(1, 1) | GlobalTokens(torch.tensor([0])), layers=1)
    heard: list[Tensor] = []
    model.embeddings.register_forward_hook(lambda module, args, x: heard.append(x.requires_grad_()) or x)
    hidden = model(some_ids(1, 6))
    for row, wanted in ((0, {0, 1, 2, 3, 4, 5}), (3, {0, 2, 3, 4}), (5, {0, 4, 5})):
        (gradient,) = torch.autograd.grad(hidden[0, row].square().sum(), heard[-1], retain_graph=True)
        assert set(gradient[0].abs().sum(-1).nonzero().flatten().tolist()) == wanted


def test_sentence_types_and_embedding_norm() -> None:
    model = encoder(token_types=2, embedding_norm=True, position="learned", norm_position="post", norm="layer")
    ids, types = some_ids(1, 5), torch.tensor([[0, 0, 1, 1, 1]])
    table = model.embeddings
    assert table.token_type is not None and table.norm is not None and table.position is not None
    wanted = table.norm(table.token(ids) + table.position(torch.arange(5)) + table.token_type(types))
    torch.testing.assert_close(table(ids, torch.arange(5), types), wanted)
    assert torch.equal(model(ids), model(ids, types=torch.zeros_like(types)))
    assert not torch.allclose(model(ids), model(ids, types=types))
    with pytest.raises(ValueError, match="types"):
        model(ids, types=types[:, :3])
    with pytest.raises(ValueError, match="types"):
        model(ids, types=types + 1)
    with pytest.raises(ValueError, match="token_types"):
        encoder()(ids, types=types)


# --------------------------------------------------------------------------------------------------- encoder-decoders
@pytest.mark.parametrize("position", ["rotary", "relative", "sinusoidal", "alibi"])
@pytest.mark.parametrize("make", [KVCache, lambda: RollingCache([None, None])])
def test_a_cached_translation_is_the_translation(position: str, make: Any) -> None:
    model = encoder_decoder(position=position, encoder_layers=3)
    ids, target = some_ids(2, 7), some_ids(2, 6, seed=1)
    mask = torch.tensor([[1] * 7, [0] * 2 + [1] * 5])
    with torch.no_grad():
        wanted = model(ids, target, mask)
        close(wanted[1:], model(ids[1:, 2:], target[1:]))
        cache = make()
        parts = [model(ids, target[:, a:b], mask, cache) for a, b in ((0, 2), (2, 3), (3, 6))]
        close(torch.cat(parts, 1), wanted)
        cache.reorder(torch.tensor([1, 1, 0]))
        more = some_ids(3, 1, seed=2)
        again = torch.cat((target[[1, 1, 0]], more), 1)
        close(
            model(ids[[1, 1, 0]], more, mask[[1, 1, 0]], cache)[:, 0],
            model(ids[[1, 1, 0]], again, mask[[1, 1, 0]])[:, -1],
        )


def test_the_source_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = encoder_decoder(), KVCache()
    model(some_ids(2, 7), some_ids(2, 2), cache=cache)
    monkeypatch.setattr(model.encoder, "forward", None)
    model(some_ids(2, 7), some_ids(2, 1), cache=cache)
    with pytest.raises(ValueError, match="decoder_ids has 3 rows; it must have 2"):
        model(some_ids(2, 7), some_ids(3, 1), cache=cache)
    with pytest.raises(ValueError, match=r"attention_mask has shape \[2, 6\]"):
        model(some_ids(2, 7), some_ids(2, 1), torch.ones(2, 6), cache)
    with pytest.raises(ValueError, match="decoder_ids holds 99"):
        model(some_ids(2, 7), torch.full((2, 1), 99), cache=cache)


def test_a_failed_first_step_leaves_no_source_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    model, cache = encoder_decoder(), KVCache()

    def broken(*_: Any) -> Tensor:
        raise RuntimeError("broken")

    with torch.no_grad():
        with monkeypatch.context() as patch:
            patch.setattr(model.blocks[1].feedforward, "forward", broken)
            with pytest.raises(RuntimeError, match="broken"):
                model(some_ids(3, 4, seed=5), some_ids(3, 2), cache=cache)
        ids, target = some_ids(2, 7), some_ids(2, 3)
        close(model(ids, target, cache=cache), model(ids, target))


# -------------------------------------------------------------------------------------------------------------- heads
def test_heads_read_real_tokens_alone() -> None:
    model, ids = encoder(), some_ids(2, 6)
    mask = torch.tensor([[1] * 6, [0, 0, 1, 1, 1, 1]])
    heads = [
        SentenceEmbedder(model, normalize=False),
        SequenceClassifier(model, 3),
        SequenceClassifier(model, 3, pool="first"),
    ]
    for head in heads:
        head.double().eval()
        out = head(ids, mask)
        close(out[1:], head(ids[1:, 2:]))
        close(out[:1], head(ids[:1]))
    close(heads[0](ids[:1])[0], model(ids[:1])[0].mean(0))
    tokens = TokenClassifier(model, 5).double().eval()
    assert tokens(ids, mask).shape == (2, 6, 5)
    masked = MaskedLanguageModel(model).double().eval()
    assert masked(ids, mask).shape == (2, 6, VOCABULARY)
    with pytest.raises(ValueError, match="pool is 'last'"):
        SequenceClassifier(model, 3, pool="last")


# ------------------------------------------------------------------------------------------------- MultiheadAttention
@pytest.mark.parametrize("bias", [True, False])
def test_weights_of_multihead_attention_load(bias: bool) -> None:
    theirs = nn.MultiheadAttention(32, 4, bias=bias, batch_first=True).double()
    enlarge(theirs)
    ours = Attention(32, 4, bias_in=bias, bias_out=bias).double()
    ours.load_state_dict(theirs.state_dict())
    x, memory = torch.randn(2, 5, 32, dtype=torch.float64), torch.randn(2, 7, 32, dtype=torch.float64)
    close(ours(x), theirs(x, x, x)[0])
    crossing = CrossAttention(32, 4, bias_in=bias, bias_out=bias).double()
    crossing.load_state_dict(theirs.state_dict())
    close(crossing(x, memory=memory), theirs(x, memory, memory)[0])
    other = nn.MultiheadAttention(32, 4, bias=bias, kdim=24, vdim=24, batch_first=True).double()
    enlarge(other)
    narrow = CrossAttention(32, 4, bias_in=bias, bias_out=bias, memory_dim=24).double()
    narrow.load_state_dict(other.state_dict())
    close(narrow(x, memory=memory[..., :24]), other(x, memory[..., :24], memory[..., :24])[0])


def test_what_has_no_counterpart_is_named() -> None:
    theirs = nn.MultiheadAttention(32, 4, add_bias_kv=True)
    with pytest.raises(ValueError, match="bias_k: a learned key"):
        Attention(32, 4, bias_in=True, bias_out=True).load_state_dict(theirs.state_dict())


def test_an_encoder_of_another_depth_is_listed_first() -> None:
    patterns = [SlidingWindow(1, 1), None, SlidingWindow(2), None, SlidingWindow(3)]
    config = TransformerConfig(20, 16, layers=3, heads=2, encoder_layers=2, pattern=patterns, position=["none"] * 5)
    model = EncoderDecoder(config)
    assert [block.attention.pattern for block in model.encoder.blocks] == patterns[:2]
    decoder = [block.attention.pattern for block in model.blocks]
    assert decoder[0] is patterns[2] and isinstance(decoder[1], Causal) and decoder[2] is patterns[4]
    assert model(torch.tensor([[1, 2, 3]]), torch.tensor([[4, 5]])).shape == (1, 2, 20)


def test_a_list_serves_both_sides_of_one_depth() -> None:
    config = TransformerConfig(20, 16, layers=2, heads=2, encoder_layers=2, pattern=[SlidingWindow(1), None])
    model = EncoderDecoder(config)
    assert model.encoder.blocks[0].attention.pattern is model.blocks[0].attention.pattern is config.at("pattern", 0)


@pytest.mark.parametrize("listed", [2, 3])
def test_a_list_that_leaves_open_whose_layers_it_means(listed: int) -> None:
    with pytest.raises(
        ValueError, match=rf"pattern lists {listed} layers; it must be one value or list 5 \(encoder_lay"
    ):
        TransformerConfig(20, 16, layers=3, heads=2, encoder_layers=2, pattern=[None] * listed)


def test_global_tokens_are_rows_so_that_padding_must_come_last() -> None:
    torch.manual_seed(0)
    pattern = SlidingWindow(1, 1) | GlobalTokens([0])
    model = Encoder(TransformerConfig(20, 16, layers=2, heads=2, pattern=pattern)).eval()
    ids, mask = torch.tensor([[1, 2, 3, 4, 0, 0]]), torch.tensor([[1, 1, 1, 1, 0, 0]])
    with torch.no_grad():
        torch.testing.assert_close(model(ids, mask)[:, :4], model(ids[:, :4]))
        with pytest.raises(ValueError, match=r"GlobalTokens names rows, .* pad on the right"):
            model(ids.flip(1), mask.flip(1))
        with pytest.raises(ValueError, match="GlobalTokens names rows, which packed documents share"):
            model(ids, segments=torch.tensor([[0, 0, 0, 1, 1, 1]]))


def test_cross_attention_stands_behind_attention_not_beside_it() -> None:
    with pytest.raises(ValueError, match="norm_position is 'parallel' with cross-attention"):
        encoder_decoder(norm_position="parallel")


@pytest.mark.parametrize("head", [MaskedLanguageModel, SentenceEmbedder, SequenceClassifier, TokenClassifier])
def test_heads_hand_on_which_sentence_a_token_is_of(head: Any) -> None:
    torch.manual_seed(0)
    encoder = Encoder(TransformerConfig(20, 16, layers=1, heads=2, token_types=2))
    with torch.no_grad():
        encoder.embeddings.token_type.weight.normal_()  # type: ignore[union-attr, operator]
    model = head(encoder, 3) if head in (SequenceClassifier, TokenClassifier) else head(encoder)
    ids, types = torch.tensor([[1, 2, 3]]), torch.tensor([[0, 1, 1]])
    with torch.no_grad():
        given, none = model.eval()(ids, types=types), model(ids)
        assert (given - none).abs().max() > 1e-3
        torch.testing.assert_close(model(ids, types=torch.zeros_like(ids)), none)
