"""Tokenizers: text comes back as it was, ids are stable, and what Hugging Face has is read as ours."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given

pytest.importorskip("tokenizers")

from attnops.seq.tokenize import SPECIALS, Tokenizer

TEXT = "To be, or not to be:\n that is  the question! Über ☂ naïve 東京\t"
MAKERS = {"characters": Tokenizer.characters, "words": Tokenizer.words, "subwords": Tokenizer.subwords}


@pytest.mark.parametrize("maker", MAKERS)
def test_the_training_text_comes_back(maker: str) -> None:
    tokenizer = MAKERS[maker]([TEXT, "another line"])
    for text in (TEXT, "another line", ""):
        ids = tokenizer.encode(text)
        assert tokenizer.decode(ids) == text
        assert tokenizer.decode(torch.tensor(ids, dtype=torch.long)) == text
        assert tokenizer.unk_id not in ids
        assert all(0 <= i < tokenizer.vocab_size for i in ids)


@given(st.text(st.characters(codec="utf-8")))
def test_subwords_bring_any_text_back(text: str) -> None:
    assert SUBWORDS.decode(SUBWORDS.encode(text)) == text


SUBWORDS = Tokenizer.subwords(TEXT * 3, vocab_size=300)


def test_what_a_vocabulary_holds() -> None:
    letters = Tokenizer.characters("hello")
    assert letters.vocab_size == len(SPECIALS) + len("ehlo") == len(letters)
    assert letters.encode("hex") == [6, 5, letters.unk_id]
    words = Tokenizer.words("a rose is a rose is a rose", vocab_size=len(SPECIALS) + 2)
    assert words.vocab_size == len(SPECIALS) + 2
    assert words.encode(" rose a") == [len(SPECIALS), len(SPECIALS) + 1]  # the most frequent first
    assert SUBWORDS.vocab_size == 300
    assert len(SUBWORDS.encode("question")) < len("question")
    assert Tokenizer.subwords(TEXT * 3, vocab_size=300).backend.to_str() == SUBWORDS.backend.to_str()


def test_specials_are_put_around_and_left_out() -> None:
    ids = SUBWORDS.encode("to be", specials=True)
    assert ids[0] == SUBWORDS.bos_id and ids[-1] == SUBWORDS.eos_id
    assert ids[1:-1] == SUBWORDS.encode("to be")
    assert SUBWORDS.decode([*ids, SUBWORDS.pad_id, SUBWORDS.pad_id]) == "to be"
    for tokenizer in (SUBWORDS, Tokenizer.characters("<pad>")):  # text is text
        assert (
            tokenizer.pad_id not in tokenizer.encode("<pad>") and tokenizer.decode(tokenizer.encode("<pad>")) == "<pad>"
        )
    five = {SUBWORDS.pad_id, SUBWORDS.unk_id, SUBWORDS.bos_id, SUBWORDS.eos_id, SUBWORDS.mask_id}
    assert five == set(range(5))


@pytest.mark.parametrize("side", ["left", "right"])
def test_batches_are_padded(side: str) -> None:
    tokenizer = Tokenizer.characters("abc")
    ids, mask = tokenizer.batch(["abc", "", "a"], side=side)
    assert ids.dtype == torch.long and ids.shape == mask.shape == (3, 3)
    assert mask.sum(1).tolist() == [3, 0, 1]
    assert (ids[mask == 0] == tokenizer.pad_id).all()
    assert tokenizer.decode(ids[2][mask[2].bool()]) == "a"
    assert mask[2].tolist() == ([0, 0, 1] if side == "left" else [1, 0, 0])
    assert tokenizer.batch([])[0].shape == (0, 0)


@pytest.mark.parametrize("maker", MAKERS)
def test_save_and_load(maker: str, tmp_path: Path) -> None:
    tokenizer, path = MAKERS[maker](TEXT), tmp_path / "tokenizer.json"
    tokenizer.save(path)
    assert [file.name for file in tmp_path.iterdir()] == ["tokenizer.json"]
    again = Tokenizer.load(path)
    assert again.encode(TEXT, specials=True) == tokenizer.encode(TEXT, specials=True)
    assert (again.vocab_size, again.pad_id, again.eos_id) == (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.eos_id)
    path.write_text(path.read_text()[:100])
    with pytest.raises(ValueError, match="is no tokenizer file"):
        Tokenizer.load(path)


def test_hugging_face_tokenizers_are_ours(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    SUBWORDS.save(tmp_path / "tokenizer.json")
    fast = transformers.PreTrainedTokenizerFast(
        tokenizer_file=str(tmp_path / "tokenizer.json"), pad_token="<pad>", bos_token="<bos>", eos_token="<eos>"
    )
    for source in (SUBWORDS, SUBWORDS.backend, fast, tmp_path / "tokenizer.json", str(tmp_path / "tokenizer.json")):
        tokenizer = Tokenizer.of(source)
        assert tokenizer.encode("not to be", specials=True) == SUBWORDS.encode("not to be", specials=True)
        assert tokenizer.decode(SUBWORDS.encode(TEXT, specials=True)) == TEXT
        assert (tokenizer.vocab_size, tokenizer.pad_id, tokenizer.bos_id) == (300, SUBWORDS.pad_id, SUBWORDS.bos_id)
        ids, _ = tokenizer.batch(["to", "to be or"], side="left")
        assert torch.equal(ids, SUBWORDS.batch(["to", "to be or"], side="left")[0])
    Tokenizer.of(fast).save(tmp_path / "again.json")
    assert Tokenizer.load(tmp_path / "again.json").encode(TEXT) == SUBWORDS.encode(TEXT)


def test_a_file_that_pads_and_cuts_is_read_as_text(tmp_path: Path) -> None:
    """Some files on the Hub pad each text to 128 tokens, or cut it there; a text has the tokens that it has."""
    backend = Tokenizer.subwords(TEXT, vocab_size=300).backend
    backend.enable_padding(length=64, pad_id=0, pad_token="<pad>")
    assert Tokenizer.of(backend).encode(TEXT) == Tokenizer.subwords(TEXT, vocab_size=300).encode(TEXT)
    backend.enable_truncation(5)
    backend.save(str(tmp_path / "tokenizer.json"))
    assert Tokenizer.load(tmp_path / "tokenizer.json").encode(TEXT) == Tokenizer.subwords(TEXT, 300).encode(TEXT)


def test_berts_word_pieces(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    pieces = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "to", "be", "##er", "or"]
    (tmp_path / "vocab.txt").write_text("\n".join(pieces))
    tokenizer = Tokenizer.of(transformers.BertTokenizer(str(tmp_path / "vocab.txt")))
    assert tokenizer.encode("To beer", specials=True) == [2, 5, 6, 7, 3]
    assert (tokenizer.bos_id, tokenizer.eos_id, tokenizer.mask_id) == (2, 3, 4)


@pytest.mark.parametrize(
    ("run", "words"),
    [
        (lambda: SUBWORDS.decode([300]), "ids holds 300"),
        (lambda: SUBWORDS.decode([-1]), "ids holds -1"),
        (lambda: SUBWORDS.decode(torch.zeros(1, 2)), "more than one axis"),
        (lambda: Tokenizer.subwords("a", vocab_size=100), "vocab_size is 100; it must be at least 261"),
        (lambda: Tokenizer.words("a", vocab_size=0), "vocab_size"),
        (lambda: SUBWORDS.batch(["a"], side="middle"), "side is 'middle'"),
        (lambda: Tokenizer.of(7), "the tokenizer is a int"),
    ],
)
def test_bad_input_is_named(run: Any, words: str) -> None:
    with pytest.raises((ValueError, TypeError), match=words):
        run()


def test_a_vocabulary_with_a_gap() -> None:
    """The largest id decides how many rows a table of tokens needs."""
    import tokenizers

    backend = tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "<unk>": 1, "b": 7}, unk_token="<unk>"))
    tokenizer = Tokenizer(backend)
    assert tokenizer.vocab_size == 8 and tokenizer.encode("b") == [7] and tokenizer.decode([7]) == "b"
