"""The encoder-decoder: one sequence is read from both sides, another is written (translation, T5)."""

from __future__ import annotations

from torch import Tensor, nn

from attnops.biases.relative import RelativeBias
from attnops.patterns.segments import Padding
from attnops.seq.block import Block
from attnops.seq.cache import Cache
from attnops.seq.config import TransformerConfig
from attnops.seq.context import read_context, read_mask
from attnops.seq.decoder import Head
from attnops.seq.embeddings import Embeddings, check_ids
from attnops.seq.encoder import Encoder
from attnops.seq.initialise import initialise
from attnops.seq.norms import make_final_norm


class EncoderDecoder(nn.Module):
    """Source ids and the target so far, to logits of the target's next token.

    Encoder and decoder share the token table. `config.encoder_layers` is the encoder's depth (None: as the decoder's).

    Raises:
        ValueError: ids out of range; a mask of another shape; a cache that holds another number of rows.

    Source: Vaswani et al. 2017, arXiv:1706.03762; with relative biases: T5, Raffel et al. 2020, arXiv:1910.10683.

    Example:
        >>> import torch
        >>> from attnops.seq import EncoderDecoder, TransformerConfig
        >>> model = EncoderDecoder(TransformerConfig(vocab_size=10, dim=16, layers=2, heads=2, position="sinusoidal"))
        >>> model(torch.tensor([[4, 5, 6, 7]]), torch.tensor([[1, 2]])).shape   # [B, N], [B, M] to [B, M, V]
        torch.Size([1, 2, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = Encoder(config.of_encoder())
        self.embeddings = Embeddings(config)
        self.embeddings.token = self.encoder.embeddings.token
        self.relative = None
        if config.has_position("relative"):
            self.relative = RelativeBias(config.heads, config.relative_buckets, config.relative_distance, False)
        self.blocks = nn.ModuleList(Block.of(config, layer, causal=True, cross=True) for layer in range(config.layers))
        self.norm = make_final_norm(config)
        self.head = Head(config)
        initialise(self, config)

    def forward(
        self, ids: Tensor, decoder_ids: Tensor, attention_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """Logits `[B, M, V]` of the token after each of `decoder_ids [B, M]`, given `ids [B, N]`.

        Args:
            attention_mask: `[B, N]` of the source, 1 = real, 0 = padding.
            cache: keys and values of the target before `decoder_ids`, and of the source, which is read in the first
                step alone.
        """
        hidden = self._hidden(ids, decoder_ids, attention_mask, cache)
        logits: Tensor = self.head(hidden, self.embeddings.token.weight)
        if cache is not None:
            cache.commit()
        return logits

    def hidden(
        self, ids: Tensor, decoder_ids: Tensor, attention_mask: Tensor | None = None, cache: Cache | None = None
    ) -> Tensor:
        """What the head reads, `[B, M, dim]`."""
        hidden = self._hidden(ids, decoder_ids, attention_mask, cache)
        if cache is not None:
            cache.commit()
        return hidden

    def _hidden(self, ids: Tensor, decoder_ids: Tensor, attention_mask: Tensor | None, cache: Cache | None) -> Tensor:
        """The same, not yet committed to the cache."""
        check_ids("ids", ids)
        check_ids("decoder_ids", decoder_ids, self.config.vocab_size)
        if ids.shape[0] != decoder_ids.shape[0]:
            raise ValueError(f"decoder_ids has {decoder_ids.shape[0]} rows; it must have {ids.shape[0]}, as ids")
        real = read_mask(attention_mask, ids.shape[0], ids.shape[1])
        memory = None
        if cache is None or cache.length == 0:
            memory = self.encoder(ids, attention_mask)
        padding = None if real is None else Padding(real)
        context = read_context(decoder_ids, None, cache, memory=memory, memory_padding=padding)
        context.bias = self.relative
        x = self.embeddings(decoder_ids, context.position)
        for block in self.blocks:
            x = block(x, context)
        return self.norm(x)  # type: ignore[no-any-return]
