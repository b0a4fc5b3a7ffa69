"""The decoder: each token sees those before it and predicts the next (GPT)."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from attnops.biases.relative import RelativeBias
from attnops.seq.block import Block
from attnops.seq.cache import Cache
from attnops.seq.config import TransformerConfig
from attnops.seq.context import Context, read_context
from attnops.seq.embeddings import Embeddings
from attnops.seq.initialise import initialise
from attnops.seq.linear import linear
from attnops.seq.norms import make_final_norm


class Decoder(nn.Module):
    """Token ids to logits of the next token.

    Args:
        config: what it is made of.

    Raises:
        ValueError: ids out of range; a mask of another shape; a cache that holds another number of rows.

    Source: Radford et al. 2018 and after; the original: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, TransformerConfig
        >>> decoder = Decoder(TransformerConfig(vocab_size=10, dim=16, layers=2, heads=2))
        >>> decoder(torch.tensor([[1, 2, 3]])).shape                            # [B, N] to [B, N, V]
        torch.Size([1, 3, 10])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.relative = None
        if config.has_position("relative"):
            self.relative = RelativeBias(config.heads, config.relative_buckets, config.relative_distance, False)
        self.blocks = nn.ModuleList(Block.of(config, layer, causal=True) for layer in range(config.layers))
        self.norm = make_final_norm(config)
        self.head = Head(config)
        initialise(self, config)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        segments: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Logits `[B, N, V]` of the token after each of `ids [B, N]`.

        Args:
            attention_mask: `[B, N]`, 1 = real, 0 = padding, on either side; with a cache also `[B, length + N]`.
            cache: keys and values of the tokens before `ids`; it takes in those of `ids`.
            segments: `[B, N]`, the document of each token of a packed row; documents do not see one another.
            context: in place of all these, where the tokens stand, as `attnops.distributed.shard_inputs` gives it.
        """
        x = self._hidden(ids, attention_mask, cache, segments, context)
        logits: Tensor = self.head(x, self.embeddings.token.weight)
        if cache is not None:
            cache.commit()
        return logits

    def hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        cache: Cache | None = None,
        *,
        segments: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """What the head reads, `[B, N, dim]`."""
        x = self._hidden(ids, attention_mask, cache, segments, context)
        if cache is not None:
            cache.commit()
        return x

    def _hidden(
        self,
        ids: Tensor,
        attention_mask: Tensor | None,
        cache: Cache | None,
        segments: Tensor | None,
        context: Context | None,
    ) -> Tensor:
        """The same, not yet committed to the cache: the step counts when all of it is done."""
        if context is None:
            context = read_context(ids, attention_mask, cache, segments)
        context.bias = self.relative
        x = self.embeddings(ids, context.position)
        for block in self.blocks:
            x = block(x, context)
        return self.norm(x)  # type: ignore[no-any-return]


class Head(nn.Module):
    """Hidden vectors to logits over the vocabulary, by the token table itself where embeddings are tied."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.scale, self.softcap = config.logit_scale, config.final_softcap
        self.weight = None if config.tie_embeddings else nn.Parameter(torch.empty(config.vocab_size, config.dim))
        self.bias = nn.Parameter(torch.zeros(config.vocab_size)) if config.head_bias else None

    def forward(self, x: Tensor, tokens: Tensor) -> Tensor:
        """`x [B, N, dim]`; `tokens [V, dim]`, the token table."""
        if self.scale is not None:
            x = x * self.scale
        logits = linear(x, tokens if self.weight is None else self.weight, self.bias)
        if self.softcap is not None:
            logits = self.softcap * torch.tanh(logits / self.softcap)
        return logits
