"""A model as decoding sees it: logits of the next token, step by step, with a cache or without."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.checks import require_index
from attnops.patterns.intervals import Chunked, SlidingWindow
from attnops.seq.cache import Cache, KVCache
from attnops.seq.config import TransformerConfig
from attnops.seq.context import read_mask
from attnops.seq.decoder import Decoder
from attnops.seq.embeddings import check_ids
from attnops.seq.encoder_decoder import EncoderDecoder
from attnops.seq.rolling_cache import RollingCache
from attnops.seq.room import require_room

CACHES = ("full", "rolling", "paged", "none")
PAGE = 16


class Steps:
    """Logits `[B, V]` of the next token of each row: `first()`, then `next(tokens)` for each token that was chosen.

    Args:
        model: a `Decoder`, which continues `ids [B, N]`, or an `EncoderDecoder`, which reads them and writes from
            `start_id` on.
        more: how many tokens will follow. rows: how many rows there will be for each of B (beams).

    Attributes:
        ids: what was written so far, `[B, N]`.
    """

    def __init__(
        self,
        model: Decoder | EncoderDecoder,
        ids: Tensor,
        more: int,
        attention_mask: Tensor | None = None,
        cache: str | Cache = "full",
        start_id: int | None = None,
        rows: int = 1,
    ) -> None:
        if not isinstance(model, Decoder | EncoderDecoder):
            raise TypeError(f"model is {type(model).__name__}; it must be a Decoder or an EncoderDecoder")
        check_ids("ids", ids, model.config.vocab_size)
        if ids.shape[1] == 0:
            raise ValueError("ids has no tokens; there must be one to begin with")
        self.model, self.source, self.source_mask = model, ids, attention_mask
        self.ids, self.mask = ids, attention_mask
        if isinstance(model, EncoderDecoder):
            if start_id is None:
                raise ValueError("start_id is None; an EncoderDecoder needs the id that its output starts with")
            require_index(model.config.vocab_size, start_id=start_id)
            self.ids, self.mask = ids.new_full((ids.shape[0], 1), start_id), None
        elif start_id is not None:
            raise ValueError(f"start_id is {start_id}; a Decoder goes on from ids, so it must be None")
        else:
            real = read_mask(attention_mask, ids.shape[0], ids.shape[1])
            if real is not None and not bool(real.any(-1).all()):
                raise ValueError("attention_mask has a row of padding alone; each row must hold a token")
        length = self.ids.shape[1] + more
        if rows > 1:
            weight = model.embeddings.token.weight
            require_room(model.config, ids.shape[0], rows, more, cached(cache, model.config, length), weight)
        self.cache = make_cache(cache, model.config, rows * ids.shape[0], length)

    def first(self) -> Tensor:
        """Logits after the prompt: after the last real token of each row."""
        hidden = self._hidden(self.ids, self.mask)
        if self.mask is None:
            return self._logits(hidden[:, -1])
        last = (self.mask != 0).long().mul(torch.arange(1, self.mask.shape[1] + 1, device=self.mask.device)).argmax(-1)
        return self._logits(hidden[torch.arange(len(last), device=last.device), last])

    def next(self, tokens: Tensor) -> Tensor:
        """Logits after `tokens [B]`, which go behind `ids`."""
        self.ids = torch.cat((self.ids, tokens.unsqueeze(1)), 1)
        if self.mask is not None:
            self.mask = torch.cat((self.mask, self.mask.new_ones(len(tokens), 1)), 1)
        if self.cache is None:
            return self._logits(self._hidden(self.ids, self.mask)[:, -1])
        return self._logits(self._hidden(tokens.unsqueeze(1), None)[:, -1])

    def reorder(self, index: Tensor) -> None:
        """Row r goes on from what row `index[r]` was."""
        self.ids = self.ids.index_select(0, index)
        self.source = self.source.index_select(0, index)
        self.mask = None if self.mask is None else self.mask.index_select(0, index)
        self.source_mask = None if self.source_mask is None else self.source_mask.index_select(0, index)
        if self.cache is not None:
            self.cache.reorder(index)

    def _hidden(self, ids: Tensor, mask: Tensor | None) -> Tensor:
        if isinstance(self.model, EncoderDecoder):
            return self.model.hidden(self.source, ids, self.source_mask, self.cache)
        return self.model.hidden(ids, mask, self.cache)

    def _logits(self, hidden: Tensor) -> Tensor:
        return self.model.head(hidden, self.model.embeddings.token.weight)  # type: ignore[no-any-return]


def make_cache(cache: str | Cache, config: TransformerConfig, rows: int, length: int) -> Cache | None:
    """The cache of that name for `rows` texts of `length` tokens; None for "none".

    "rolling" rolls in the layers whose pattern reaches a fixed way back, and grows in the others.

    Raises:
        ValueError: an unknown name, or a cache that holds tokens already.
    """
    if isinstance(cache, Cache):
        if cache.length:
            raise ValueError(f"cache holds {cache.length} tokens; generate reads all of ids, so it must be empty")
        return cache
    if cache == "none":
        return None
    if cache == "full":
        return KVCache(length)
    if cache == "rolling":
        return RollingCache([reach(config, layer) for layer in range(config.layers)])
    if cache == "paged":
        from attnops.seq.paged_cache import PagedCache

        return PagedCache(pages=rows * -(-length // PAGE), page_size=PAGE)
    raise ValueError(f"cache is {cache!r}; it must be a Cache or one of {', '.join(map(repr, CACHES))}")


def cached(cache: str | Cache, config: TransformerConfig, length: int) -> list[int]:
    """How many of `length` tokens each layer will hold; none are counted in a cache of the caller's own."""
    if cache not in ("full", "paged", "rolling"):
        return []
    reaches = [reach(config, layer) if cache == "rolling" else None for layer in range(config.layers)]
    return [length if reached is None else min(length, reached) for reached in reaches]


def reach(config: TransformerConfig, layer: int) -> int | None:
    """How many tokens a layer of a decoder sees, its own among them; None where nothing limits it."""
    pattern = config.at("pattern", layer)
    if isinstance(pattern, SlidingWindow) and pattern.right == 0:
        return int(pattern.left) + 1
    return int(pattern.size) if isinstance(pattern, Chunked) else None
