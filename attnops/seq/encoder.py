"""The encoder: every token may see every other (BERT)."""

from __future__ import annotations

from torch import Tensor, nn

from attnops.biases.relative import RelativeBias
from attnops.seq.block import Block
from attnops.seq.config import TransformerConfig
from attnops.seq.context import Context, read_context
from attnops.seq.embeddings import Embeddings
from attnops.seq.initialise import initialise
from attnops.seq.norms import make_final_norm


class Encoder(nn.Module):
    """Token ids to a hidden vector a token, seen from both sides.

    Args:
        config: what it is made of.

    Raises:
        ValueError: ids out of range; a mask of another shape.

    Source: Vaswani et al. 2017, arXiv:1706.03762; alone: BERT, Devlin et al. 2019, arXiv:1810.04805.

    Example:
        >>> import torch
        >>> from attnops.seq import Encoder, TransformerConfig
        >>> encoder = Encoder(TransformerConfig(vocab_size=10, dim=16, layers=2, heads=2))
        >>> encoder(torch.tensor([[1, 2, 3], [4, 5, 0]]), attention_mask=torch.tensor([[1, 1, 1], [1, 1, 0]])).shape
        torch.Size([2, 3, 16])
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.config = config
        self.embeddings = Embeddings(config)
        self.relative = None
        if config.has_position("relative"):
            self.relative = RelativeBias(config.heads, config.relative_buckets, config.relative_distance)
        self.blocks = nn.ModuleList(Block.of(config, layer) for layer in range(config.layers))
        self.norm = make_final_norm(config)
        initialise(self, config)

    def forward(
        self,
        ids: Tensor,
        attention_mask: Tensor | None = None,
        *,
        segments: Tensor | None = None,
        types: Tensor | None = None,
        context: Context | None = None,
    ) -> Tensor:
        """Hidden vectors `[B, N, dim]` of `ids [B, N]`.

        Args:
            attention_mask: `[B, N]`, 1 = real, 0 = padding, on either side.
            segments: `[B, N]`, the document of each token of a packed row; documents do not see one another.
            types: `[B, N]`, the sentence of each token, where the config has `token_types`.
            context: in place of mask and segments, where the tokens stand, as `attnops.distributed.shard_inputs` gives
                it.
        """
        if context is None:
            context = read_context(ids, attention_mask, segments=segments)
        context.bias = self.relative
        x = self.embeddings(ids, context.position, types)
        for block in self.blocks:
            x = block(x, context)
        return self.norm(x)  # type: ignore[no-any-return]
