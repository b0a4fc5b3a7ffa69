"""Multi-head latent attention: keys and values of all heads come from one small vector a token, and that is cached."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from attnops.biases.base import Bias
from attnops.biases.rotary import turn_by
from attnops.biases.sink import Sink
from attnops.checks import require_positive
from attnops.patterns.base import Pattern
from attnops.scores.dot import DotProduct
from attnops.seq.alibi import make_alibi
from attnops.seq.attention import as_one_row, reads_positions_alone
from attnops.seq.context import Context, Keys
from attnops.seq.linear import apply_linear
from attnops.seq.norms import RMSNorm

if TYPE_CHECKING:
    from attnops.seq.config import TransformerConfig


@dataclass(frozen=True)
class LatentConfig:
    """Sizes of multi-head latent attention. DeepSeek-V3: `LatentConfig(512, 1536, head_dim=128, rotary_dim=64)`.

    Attributes:
        rank: of the latent that keys and values are made of. query_rank: of the queries' own; None: none.
        head_dim: P, channels of a head without position; None: the model's head_dim.
        rotary_dim: R, channels that turn, whose key all heads share; None: head_dim / 2.
        value_dim: channels of a head's value; None: head_dim.
        norm_eps: of the norms of the latents.

    Raises:
        ValueError: a size that is not positive; an odd rotary_dim.
    """

    rank: int
    query_rank: int | None = None
    head_dim: int | None = None
    rotary_dim: int | None = None
    value_dim: int | None = None
    norm_eps: float = 1e-6

    def __post_init__(self) -> None:
        given = ("rank", "query_rank", "head_dim", "rotary_dim", "value_dim")
        require_positive(**{name: getattr(self, name) for name in given if getattr(self, name) is not None})
        if self.rotary_dim is not None and self.rotary_dim % 2:
            raise ValueError(f"rotary_dim is {self.rotary_dim}; it must be even, for channels turn in pairs")


class LatentAttention(nn.Module):
    """Attention whose keys and values are linear maps of one latent c_j a token.

        c_j = norm(W_c x_j)    r_j = turn(W_r x_j)          cached: rank + R numbers a token, whatever H is
        logits_ijh = (q_ih · K_h c_j + turn(p_ih) · r_j) / √(P + R)         v_jh = V_h c_j

    Two forms of the same numbers. Expanded, K_h c_j and V_h c_j are laid out: for many queries at once, as in training.
    Absorbed, K_h goes to the query and V_h to the output, so that all heads attend the latents themselves, as one key
    head: for few queries over many keys, as in decoding. The form with fewer products is taken.

    Args:
        config: a `TransformerConfig` with `latent`. layer: which layer of the model and of a cache this is.
        pattern: who may attend whom.

    Raises:
        ValueError: what latents cannot have: other counts of key heads, norms a head, positions in a table of keys.

    Source: DeepSeek-AI 2024, arXiv:2405.04434.

    Example:
        >>> import torch
        >>> from attnops.seq import LatentAttention, LatentConfig, TransformerConfig
        >>> config = TransformerConfig(vocab_size=8, dim=32, layers=1, heads=4, latent=LatentConfig(rank=16))
        >>> LatentAttention(config)(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    def __init__(self, config: TransformerConfig, layer: int = 0, pattern: Pattern | None = None) -> None:
        super().__init__()
        latent = config.latent
        if latent is None:
            raise ValueError("latent is None in the config; it must be a LatentConfig")
        _refuse(config, layer)
        self.heads, self.layer, self.pattern, self.rank = config.heads, layer, pattern, latent.rank
        self.head_dim = latent.head_dim or config.head_dim or config.dim // config.heads
        self.rotary_dim = latent.rotary_dim or self.head_dim // 2
        self.value_dim = latent.value_dim or self.head_dim
        self.scale = config.scale or (self.head_dim + self.rotary_dim) ** -0.5
        self.score = None if config.softcap is None else DotProduct(config.softcap)
        self.dropout = config.dropout
        self.absorb: bool | None = None  # None: whichever form takes fewer products

        position = config.at("position", layer)
        self.rotary = config.rotary(layer, self.rotary_dim) if position == "rotary" else None
        self.alibi = make_alibi(config.heads, config.alibi_slopes) if position == "alibi" else None
        self.sink = Sink(config.heads) if config.sinks else None
        self.shared_bias = position == "relative"

        query_width, bias = self.heads * (self.head_dim + self.rotary_dim), config.attention_bias
        self.query_down = self.query_norm = None
        if latent.query_rank is not None:
            self.query_down = nn.Linear(config.dim, latent.query_rank, bias=bias)
            self.query_norm = RMSNorm(latent.query_rank, latent.norm_eps)
        self.query_up = nn.Linear(latent.query_rank or config.dim, query_width, bias=False)
        self.latent_down = nn.Linear(config.dim, self.rank + self.rotary_dim, bias=bias)
        self.latent_norm = RMSNorm(self.rank, latent.norm_eps)
        self.latent_up = nn.Linear(self.rank, self.heads * (self.head_dim + self.value_dim), bias=False)
        self.out = nn.Linear(self.heads * self.value_dim, config.dim, bias=config.output_bias)

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """`x [B, N, dim]` to `[B, N, dim]`; `context` is what a model's layers share, None for a layer alone."""
        batch, count, _ = x.shape
        if context is None:
            context = Context(torch.arange(count, device=x.device))
        turning, plain = self.queries(x, context)  # [B, H, N, R], [B, H, N, P]
        latents, keys = self.latents(x, context), context.keys  # [B, 1, N, R + rank]
        if context.cache is not None:
            by_position = reads_positions_alone(self.pattern, self._prior(context))
            update = context.cache.update_one_row if by_position else context.cache.update
            latents, _, keys = update(self.layer, latents, latents[..., :0])
            if keys.query_coords is not None:
                turning, plain = as_one_row(turning), as_one_row(plain)
        form = self.absorbed if self._absorbs(turning.shape[2], latents.shape[2]) else self.expanded
        out = form(turning, plain, latents, keys, context)  # [B, H, N, value_dim]
        return apply_linear(self.out, out.transpose(1, 2).reshape(batch, count, out.shape[1] * out.shape[3]))

    def queries(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor]:
        """The part that turns, turned, and the part that does not."""
        if self.query_down is not None and self.query_norm is not None:
            x = self.query_norm(apply_linear(self.query_down, x))
        heads = torch.unflatten(apply_linear(self.query_up, x), -1, (self.heads, -1))  # [B, N, H, P + R]
        plain, turning = torch.split(heads, [self.head_dim, self.rotary_dim], -1)
        return self._turned(turning, context).transpose(1, 2), plain.transpose(1, 2)

    def latents(self, x: Tensor, context: Context) -> Tensor:
        """What a token leaves behind `[B, 1, N, R + rank]`: the key that turns, then the latent."""
        joined = apply_linear(self.latent_down, x).unsqueeze(2)
        latent, turning = torch.split(joined, [self.rank, self.rotary_dim], -1)
        return torch.cat((self._turned(turning, context), self.latent_norm(latent)), -1).transpose(1, 2)

    def expanded(self, turning: Tensor, plain: Tensor, latents: Tensor, keys: Keys, context: Context) -> Tensor:
        """Keys and values laid out for each head."""
        wide = apply_linear(self.latent_up, latents[:, 0, :, self.rotary_dim :])
        heads = torch.unflatten(wide, -1, (self.heads, -1)).transpose(1, 2)
        plain_key, value = torch.split(heads, [self.head_dim, self.value_dim], -1)
        shared = latents[..., : self.rotary_dim].expand(-1, self.heads, -1, -1)
        key = torch.cat((shared, plain_key), -1)
        return self._attend(torch.cat((turning, plain), -1), key, value, keys, context)

    def absorbed(self, turning: Tensor, plain: Tensor, latents: Tensor, keys: Keys, context: Context) -> Tensor:
        """The latents are the one key head of all heads, and the values too."""
        up = self.latent_up.weight.view(self.heads, -1, self.rank)  # [H, P + value_dim, rank]
        of_key, of_value = up[:, : self.head_dim], up[:, self.head_dim :]
        query = torch.cat((turning, plain @ of_key), -1)
        # The whole of `latents` as value, its turning part cut off after: one tensor, read once, and no copy of a part.
        out = self._attend(query, latents, latents, keys, context)
        return torch.matmul(out[..., self.rotary_dim :], of_value.transpose(1, 2))

    def _absorbs(self, count: int, num_keys: int) -> bool:
        """Whether the absorbed form takes fewer products, a head."""
        if self.absorb is not None:
            return self.absorb
        up = self.rank * (self.head_dim + self.value_dim)
        absorbed = count * up + count * num_keys * 2 * (self.rank + self.rotary_dim)
        expanded = num_keys * up + count * num_keys * (self.head_dim + self.rotary_dim + self.value_dim)
        return absorbed < expanded

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, keys: Keys, context: Context) -> Tensor:
        return context.attend(  # type: ignore[no-any-return]
            query, key, value,
            pattern=context.allowed(self.pattern, keys),
            bias=self._prior(context),
            score=self.score,
            scale=self.scale,
            coords=None if keys.coords is None else (keys.query_coords or context.query_coords, keys.coords),
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip

    def _prior(self, context: Context) -> Bias | None:
        late = self.rotary if self.rotary is not None and self.rotary.depends_on_length else None
        total: Bias | None = None
        for prior in (self.alibi, self.sink, context.bias if self.shared_bias else None, late):
            if prior is not None:
                total = prior if total is None else total + prior
        return total

    def _turned(self, x: Tensor, context: Context) -> Tensor:
        """`x [B, N, h, R]` turned, unless the angles depend on the length: then `attend` turns the first R channels."""
        if self.rotary is None or self.rotary.depends_on_length:
            return x
        return turn_by(x, *context.waves(self.rotary, x.dtype), self.rotary.interleaved)


def _refuse(config: TransformerConfig, layer: int) -> None:
    """Raise `ValueError` for what a config asks and latents cannot have."""
    if config.kv_heads not in (None, config.heads):
        raise ValueError(f"kv_heads is {config.kv_heads} with latent; latents serve all {config.heads} heads alike")
    if config.at("qk_norm", layer):
        raise ValueError(f"qk_norm is {config.at('qk_norm', layer)!r} with latent; keys of a head are never laid out")
    if config.at("temperature", layer) is not None:
        raise ValueError("temperature is given with latent; it is for layers without positions")
    for name in ("qkv_clip", "rotary_dim"):
        if getattr(config, name) is not None:
            raise ValueError(f"{name} is {getattr(config, name)} with latent; a LatentConfig has widths of its own")
    if config.at("position", layer) == "shaw":
        raise ValueError("position is 'shaw' with latent; Shaw's table needs the queries as they meet plain keys")
