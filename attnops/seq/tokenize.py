"""Text as token ids and back: characters, words and trained subwords, over the `tokenizers` library."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnops.checks import require_positive

if TYPE_CHECKING:
    import tokenizers

SPECIALS = ("<pad>", "<unk>", "<bos>", "<eos>", "<mask>")

# The names that these five have in the files of others.
_NAMES = {
    "pad": ("<pad>", "[PAD]", "<|pad|>"),
    "unk": ("<unk>", "[UNK]"),
    "bos": ("<bos>", "<s>", "[CLS]", "<|begin_of_text|>", "<|endoftext|>"),
    "eos": ("<eos>", "</s>", "[SEP]", "<|end_of_text|>", "<|endoftext|>"),
    "mask": ("<mask>", "[MASK]"),
}


class Tokenizer:
    """A vocabulary, with text to ids and back; made by `characters`, `words`, `subwords`, `load` or `of`.

    `decode(encode(text)) == text` for subwords whatever the text, and for characters and words that were in the
    training text; others become `<unk>`. Text is text: "<pad>" in it is five characters, not the padding token (but one
    that came by `of` reads text as it always did).

    Attributes:
        vocab_size: V, one more than the largest id.
        pad_id, unk_id, bos_id, eos_id, mask_id: None where the vocabulary has no such token.

    Example:
        >>> from attnops.seq import Tokenizer
        >>> tokenizer = Tokenizer.characters("to be or not to be")
        >>> tokenizer.encode("to be")
        [11, 9, 5, 6, 7]
        >>> tokenizer.decode([11, 9, 5, 6, 7])
        'to be'
        >>> ids, mask = tokenizer.batch(["to", "be or"])
        >>> mask.tolist()
        [[1, 1, 0, 0, 0], [1, 1, 1, 1, 1]]
    """

    def __init__(self, backend: tokenizers.Tokenizer) -> None:
        self.backend: Any = backend
        self.vocab_size: int = 1 + max(backend.get_vocab(with_added_tokens=True).values(), default=-1)
        self.pad_id, self.unk_id, self.bos_id, self.eos_id, self.mask_id = (
            next((i for i in map(backend.token_to_id, names) if i is not None), None) for names in _NAMES.values()
        )

    # ------------------------------------------------------------------------------------------------ how one is made

    @classmethod
    def characters(cls, texts: str | Iterable[str]) -> Tokenizer:
        """One token for each character of the texts, in the order of their code points."""
        seen = sorted({character for text in _each(texts) for character in text})
        return cls(_from_list(seen, pattern=r"[\s\S]"))

    @classmethod
    def words(cls, texts: str | Iterable[str], vocab_size: int | None = None) -> Tokenizer:
        """One token for each word, run of punctuation or run of spaces; a word keeps the one space before it.

        Args:
            vocab_size: keep the most frequent ones, so that there are this many with the special tokens; None for all.
        """
        from tokenizers import Regex, pre_tokenizers

        pattern = r" ?\w+| ?[^\w\s]+|\s+"
        split = pre_tokenizers.Split(Regex(pattern), "isolated")
        count = Counter(word for text in _each(texts) for word, _ in split.pre_tokenize_str(text))
        ranked = sorted(count, key=lambda word: (-count[word], word))
        if vocab_size is not None:
            require_positive(vocab_size=vocab_size)
            ranked = ranked[: max(vocab_size - len(SPECIALS), 0)]
        return cls(_from_list(ranked, pattern))

    @classmethod
    def subwords(cls, texts: str | Iterable[str], vocab_size: int = 8192) -> Tokenizer:
        """Byte-level byte-pair encoding, trained on the texts: frequent pairs of tokens become tokens.

        Args:
            vocab_size: at most so many tokens; at least the 256 bytes and the special tokens.

        Raises:
            ValueError: a vocab_size that does not hold bytes and special tokens.

        Source: Sennrich, Haddow, Birch 2016, arXiv:1508.07909; on bytes: GPT-2.

        Example:
            >>> from attnops.seq import Tokenizer
            >>> tokenizer = Tokenizer.subwords("low lower lowest slow slower slowest " * 9, vocab_size=270)
            >>> text = "the slowest ☂"
            >>> tokenizer.decode(tokenizer.encode(text)) == text
            True
        """
        import tokenizers
        from tokenizers import decoders, models, pre_tokenizers, trainers

        alphabet = pre_tokenizers.ByteLevel.alphabet()
        least = len(alphabet) + len(SPECIALS)
        require_positive(vocab_size=vocab_size)
        if vocab_size < least:
            raise ValueError(f"vocab_size is {vocab_size}; it must be at least {least}, for bytes and special tokens")
        backend = tokenizers.Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        backend.decoder = decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=vocab_size, special_tokens=list(SPECIALS), initial_alphabet=sorted(alphabet), show_progress=False
        )
        backend.train_from_iterator(_each(texts), trainer)
        return cls(_with_template(backend))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Tokenizer:
        """Read a `tokenizer.json`, as `save` and Hugging Face's libraries write it.

        Raises:
            ValueError: a file that is no such thing, or is damaged.
        """
        import tokenizers

        text = Path(path).read_text(encoding="utf-8")
        try:
            backend = tokenizers.Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exceptions
            raise ValueError(f"{os.fspath(path)} is no tokenizer file: {error}") from error
        backend.encode_special_tokens = True
        backend.no_padding()  # `batch` pads; nothing is cut short unasked
        backend.no_truncation()
        return cls(backend)

    @staticmethod
    def of(source: Any) -> Tokenizer:
        """One of ours from one of ours, of the `tokenizers` library, of transformers, or a path to a `tokenizer.json`.

        Raises:
            TypeError: something else.
        """
        if isinstance(source, Tokenizer):
            return source
        if isinstance(source, str | os.PathLike):
            return Tokenizer.load(source)
        if callable(getattr(source, "convert_ids_to_tokens", None)):
            return HFTokenizer(source)
        if callable(getattr(source, "token_to_id", None)):
            return Tokenizer(source)
        raise TypeError(
            f"the tokenizer is a {type(source).__name__}; it must be one of attnops, tokenizers or transformers"
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a `tokenizer.json`, which `load`, tokenizers and transformers read."""
        target = Path(path)
        half_written = target.with_name(target.name + ".part")
        half_written.write_text(self.backend.to_str(), encoding="utf-8")
        half_written.replace(target)

    # -------------------------------------------------------------------------------------------------- text and ids

    def encode(self, text: str, specials: bool = False) -> list[int]:
        """The ids of a text; with `specials`, what the tokenizer puts around one is there (ours: <bos> and <eos>)."""
        if not isinstance(text, str):
            raise TypeError(f"text is {type(text).__name__}; it must be a str")
        encoded = self.backend.encode(text, add_special_tokens=specials)
        return [i for i, real in zip(encoded.ids, encoded.attention_mask, strict=True) if real]

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        """The text of ids; special tokens are left out.

        Raises:
            ValueError: an id that is not in the vocabulary.
        """
        return str(self.backend.decode(self._checked(ids), skip_special_tokens=True))

    def batch(self, texts: Sequence[str], side: str = "right", specials: bool = False) -> tuple[Tensor, Tensor]:
        """Ids `[B, N]` of the texts, padded on a side to the longest, and the attention mask `[B, N]`, 1 = real.

        Raises:
            ValueError: a side other than "left" and "right"; texts of different lengths without a padding token.
        """
        if isinstance(texts, str) or not isinstance(texts, Sequence):
            raise TypeError(f"texts is {type(texts).__name__}; it must be a list of str")
        if side not in ("left", "right"):
            raise ValueError(f"side is {side!r}; it must be 'left' or 'right'")
        rows = [self.encode(text, specials) for text in texts]
        longest = max(map(len, rows), default=0)
        if self.pad_id is None and any(len(row) < longest for row in rows):
            raise ValueError("the tokenizer has no padding token, which texts of different lengths need")
        ids = torch.full((len(rows), longest), self.pad_id or 0)
        mask = torch.zeros_like(ids)
        for b, row in enumerate(rows):
            where = slice(longest - len(row), longest) if side == "left" else slice(0, len(row))
            ids[b, where], mask[b, where] = torch.tensor(row, dtype=torch.long), 1
        return ids, mask

    def _checked(self, ids: Sequence[int] | Tensor) -> list[int]:
        if not isinstance(ids, Tensor | Sequence) or isinstance(ids, str) or (isinstance(ids, Tensor) and not ids.ndim):
            raise TypeError(f"ids is {ids!r}; it must be a tensor or a list of integers, [N]")
        listed = ids.tolist() if isinstance(ids, Tensor) else list(ids)
        for each in listed:
            if isinstance(each, list):
                raise ValueError("ids has more than one axis; decode takes one text, [N]")
            if isinstance(each, bool) or not isinstance(each, int):
                raise TypeError(f"ids holds {each!r}; an id must be an integer")
            if not 0 <= each < self.vocab_size:  # the library would leave it out without a word
                raise ValueError(f"ids holds {each}; an id must lie in 0 … {self.vocab_size - 1}")
        return listed

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"{type(self).__name__}(vocab_size={self.vocab_size})"


class HFTokenizer(Tokenizer):
    """A tokenizer of transformers, fast or slow, under the names of ours."""

    def __init__(self, backend: Any) -> None:
        self.backend = backend
        self.vocab_size = 1 + max(backend.get_vocab().values(), default=-1)
        self.pad_id, self.unk_id = backend.pad_token_id, backend.unk_token_id
        self.bos_id = backend.bos_token_id if backend.bos_token_id is not None else backend.cls_token_id
        self.eos_id = backend.eos_token_id if backend.eos_token_id is not None else backend.sep_token_id
        self.mask_id = backend.mask_token_id

    def encode(self, text: str, specials: bool = False) -> list[int]:
        return list(self.backend.encode(text, add_special_tokens=specials))

    def decode(self, ids: Sequence[int] | Tensor) -> str:
        return str(self.backend.decode(self._checked(ids), skip_special_tokens=True))

    def save(self, path: str | os.PathLike[str]) -> None:
        fast = getattr(self.backend, "backend_tokenizer", None)
        if fast is None:
            raise ValueError(f"{type(self.backend).__name__} has no tokenizer.json; save it by its own save_pretrained")
        Tokenizer(fast).save(path)


def _each(texts: str | Iterable[str]) -> Iterable[str]:
    if isinstance(texts, bytes) or not isinstance(texts, Iterable):
        raise TypeError(f"texts is {type(texts).__name__}; it must be a str, or several")
    for text in [texts] if isinstance(texts, str) else texts:
        if not isinstance(text, str):
            raise TypeError(f"texts holds {type(text).__name__}; it must hold str")
        yield text


def _from_list(pieces: Sequence[str], pattern: str) -> tokenizers.Tokenizer:
    """A tokenizer that splits by a pattern and looks each piece up."""
    import tokenizers
    from tokenizers import Regex, decoders, models, pre_tokenizers

    listed = [*SPECIALS, *(piece for piece in pieces if piece not in SPECIALS)]
    vocabulary = {piece: i for i, piece in enumerate(listed)}
    backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens(list(SPECIALS))
    return _with_template(backend)


def _with_template(backend: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    """<bos> text <eos>, where special tokens are asked for; their names inside a text are text."""
    from tokenizers import processors

    backend.encode_special_tokens = True
    ids = [(name, backend.token_to_id(name)) for name in ("<bos>", "<eos>")]
    backend.post_processor = processors.TemplateProcessing(single="<bos> $A <eos>", special_tokens=ids)
    return backend
