"""A layer of a transformer: attention, then a feed-forward, each added to the stream."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.biases.base import Bias
from attnops.biases.relative import RelativeKeys
from attnops.biases.sink import Sink
from attnops.patterns.base import Full, Pattern
from attnops.patterns.intervals import Causal, SlidingWindow
from attnops.seq.alibi import make_alibi
from attnops.seq.attention import Attention, CrossAttention
from attnops.seq.config import TransformerConfig
from attnops.seq.context import CAUSAL, Context
from attnops.seq.feedforward import FeedForward
from attnops.seq.norms import make_norm


class Block(nn.Module):
    """x ← x + f(x) for f = attention, (cross-attention,) feed-forward, with norms where `norm_position` says.

        pre       x + f(norm(x))
        post      norm(x + f(x))
        both      x + norm(f(norm(x)))
        parallel  x + attention(norm(x)) + feedforward(norm(x))

    Args:
        attention, cross: modules that take (x, context). feedforward: a module that takes (x, context.real).

    Example:
        >>> import torch
        >>> from attnops.seq import Block, TransformerConfig
        >>> config = TransformerConfig(vocab_size=10, dim=16, layers=1, heads=2)
        >>> Block.of(config, layer=0)(torch.randn(2, 5, 16)).shape
        torch.Size([2, 5, 16])
    """

    def __init__(
        self, config: TransformerConfig, attention: nn.Module, feedforward: nn.Module, cross: nn.Module | None = None
    ) -> None:
        super().__init__()

        def norm() -> nn.Module:
            return make_norm(config.norm, config.dim, config.norm_eps, config.norm_bias)

        if cross is not None and config.norm_position == "parallel":
            raise ValueError("norm_position is 'parallel' with cross-attention; it must be 'pre', 'post' or 'both'")
        twice = config.norm_position == "both"
        self.norm_position = config.norm_position
        self.attention_norm = norm()
        self.attention = attention
        self.attention_norm2 = norm() if twice else None
        self.cross = cross
        self.cross_norm = norm() if cross is not None else None
        self.cross_norm2 = norm() if twice and cross is not None else None
        one_norm = config.norm_position == "parallel" and config.parallel_norms == 1
        self.feedforward_norm = None if one_norm else norm()
        self.feedforward = feedforward
        self.feedforward_norm2 = norm() if twice else None
        self.rate = config.dropout

    @staticmethod
    def of(config: TransformerConfig, layer: int, causal: bool = False, cross: bool = False) -> Block:
        """The block that a config describes for one of its layers; `cross` adds attention to an encoder's output."""
        attention = make_attention(config, layer, causal)
        crossing = make_cross_attention(config, layer) if cross else None
        block = Block(config, attention, make_feedforward(config, layer), crossing)
        if layer == 0 and not config.first_norm:
            block.attention_norm = nn.Identity()
        return block

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """`x [B, N, dim]` to `[B, N, dim]`."""
        if context is None:
            context = Context(torch.arange(x.shape[1], device=x.device))
        if self.norm_position == "parallel":
            normed = self.attention_norm(x)
            again = normed if self.feedforward_norm is None else self.feedforward_norm(x)
            attended = self.dropout(self.attention(normed, context))
            return x + attended + self.dropout(self.feedforward(again, context.real))
        assert self.feedforward_norm is not None

        if self.norm_position == "post":
            x = self.attention_norm(x + self.dropout(self.attention(x, context)))
            if self.cross is not None and self.cross_norm is not None:
                x = self.cross_norm(x + self.dropout(self.cross(x, context)))
            return self.feedforward_norm(x + self.dropout(self.feedforward(x, context.real)))  # type: ignore[no-any-return]

        out = self.attention(self.attention_norm(x), context)
        x = x + self.dropout(out if self.attention_norm2 is None else self.attention_norm2(out))
        if self.cross is not None and self.cross_norm is not None:
            out = self.cross(self.cross_norm(x), context)
            x = x + self.dropout(out if self.cross_norm2 is None else self.cross_norm2(out))
        out = self.feedforward(self.feedforward_norm(x), context.real)
        return x + self.dropout(out if self.feedforward_norm2 is None else self.feedforward_norm2(out))

    def dropout(self, x: Tensor) -> Tensor:
        """What a sublayer adds to the stream, in training with some of it left out."""
        return F.dropout(x, self.rate) if self.training and self.rate else x


def make_attention(config: TransformerConfig, layer: int, causal: bool) -> nn.Module:
    """The self-attention of a layer: latent where the config says so, else `Attention`."""
    pattern = config.at("pattern", layer)
    if causal and config.causal:
        pattern = causal_part(pattern)
    if config.latent is not None:
        from attnops.seq.mla import LatentAttention

        return LatentAttention(config, layer, pattern)
    position = config.at("position", layer)
    head_dim = config.head_dim or config.dim // config.heads
    biases: list[Bias] = []
    if position == "alibi":
        biases.append(make_alibi(config.heads, config.alibi_slopes))
    if position == "shaw":
        biases.append(RelativeKeys(config.heads, head_dim, config.shaw_distance))
    if config.sinks:
        biases.append(Sink(config.heads))
    return Attention(
        config.dim,
        config.heads,
        config.kv_heads,
        head_dim,
        layer=layer,
        pattern=pattern,
        rotary=config.rotary(layer) if position == "rotary" else None,
        bias=biases[0] if len(biases) == 1 else biases[0] + biases[1] if biases else None,
        shared_bias=position == "relative",
        qk_norm=config.at("qk_norm", layer),
        norm_eps=config.norm_eps,
        scale=config.scale,
        softcap=config.softcap,
        temperature=config.at("temperature", layer),
        dropout=config.dropout,
        bias_in=config.attention_bias,
        bias_out=config.output_bias,
        clip=config.qkv_clip,
    )


def make_cross_attention(config: TransformerConfig, layer: int) -> CrossAttention:
    """Attention to an encoder's output; positions, norms of heads, sinks and clips are self-attention's alone."""
    return CrossAttention(
        config.dim,
        config.heads,
        config.kv_heads,
        config.head_dim,
        layer=layer,
        scale=config.scale,
        softcap=config.softcap,
        dropout=config.dropout,
        bias_in=config.attention_bias,
        bias_out=config.output_bias,
    )


def make_feedforward(config: TransformerConfig, layer: int) -> nn.Module:
    """The feed-forward of a layer: a mixture of experts where the config says so."""
    experts = config.at("experts", layer)
    ff_dim = config.ff_dim or 4 * config.dim
    if experts is not None:
        from attnops.seq.moe import MixtureOfExperts

        return MixtureOfExperts(config.dim, experts, ff_dim, config.activation)
    return FeedForward(config.dim, ff_dim, config.activation, config.ff_bias)


def causal_part(pattern: Pattern | None) -> Pattern:
    """What of a pattern lies in the past."""
    if pattern is None or isinstance(pattern, Full | Causal):
        return CAUSAL
    if isinstance(pattern, SlidingWindow) and pattern.right == 0:
        return pattern
    return pattern & CAUSAL
