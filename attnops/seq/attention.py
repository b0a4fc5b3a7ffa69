"""Attention layers: project to heads, place, attend, project back."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnops.biases.alibi import ALiBi
from attnops.biases.base import Bias
from attnops.biases.relative import RelativeBias, RelativeKeys
from attnops.biases.rotary import Rotary, turn_by
from attnops.biases.sink import Sink
from attnops.operator import attend
from attnops.patterns.base import Pattern
from attnops.patterns.intervals import SlidingWindow
from attnops.scores.dot import DotProduct
from attnops.seq.context import CAUSAL, Context
from attnops.seq.linear import apply_linear
from attnops.seq.norms import RMSNorm
from attnops.seq.temperature import AttentionTemperature


class Attention(nn.Module):
    """Self-attention with H query heads on Hkv key heads: multi-head (Hkv = H), grouped-query, multi-query (Hkv = 1).

        q, k, v = x Wᵀ                       one product, `[(H + 2·Hkv)·D, dim]`
        out     = attend(turn(norm(q)), turn(norm(k)), v) W_oᵀ

    Args:
        dim, heads, kv_heads, head_dim: the width of the stream, H, Hkv (None: H), D (None: dim / heads).
        layer: which layer of a cache is this one's.
        pattern: who may attend whom; None for all.
        rotary: a `Rotary`; keys are turned before they enter a cache, unless its law depends on the length.
        bias: any other `Bias` (`ALiBi`, `RelativeKeys`, `Sink`); shared_bias: whether `context.bias` is added too.
        qk_norm: True, "full" or "unit", see `TransformerConfig`.
        scale, softcap, temperature: of the logits. dropout: of the weights, in training.
        bias_in, bias_out: whether the linear layers have one. clip: bound of queries, keys and values (MPT).

    `load_state_dict` reads `nn.MultiheadAttention`'s names too.

    Example:
        >>> import torch
        >>> from attnops import Causal, Rotary
        >>> from attnops.seq import Attention
        >>> attention = Attention(dim=32, heads=4, kv_heads=2, pattern=Causal(), rotary=Rotary(8))
        >>> attention(torch.randn(2, 5, 32)).shape
        torch.Size([2, 5, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        layer: int = 0,
        pattern: Pattern | None = None,
        rotary: Rotary | None = None,
        bias: Bias | None = None,
        shared_bias: bool = False,
        qk_norm: bool | str = False,
        norm_eps: float = 1e-5,
        scale: float | None = None,
        softcap: float | None = None,
        temperature: AttentionTemperature | None = None,
        dropout: float = 0.0,
        bias_in: bool = False,
        bias_out: bool = False,
        clip: float | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = head_dim or dim // heads
        self.clip = clip
        self.layer, self.pattern, self.rotary, self.bias, self.shared_bias = layer, pattern, rotary, bias, shared_bias
        self.scale, self.temperature, self.dropout = scale, temperature, dropout
        self.score = None if softcap is None else DotProduct(softcap)
        self.window: int | None = None
        if type(pattern) is SlidingWindow and pattern.right == 0 and not (rotary and rotary.depends_on_length):
            self.window = int(pattern.left) + 1
        self.qkv = nn.Linear(dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias_in)
        self.out = nn.Linear(self.heads * self.head_dim, dim, bias=bias_out)
        self.qk_norm = qk_norm
        self.query_norm = self.key_norm = None
        if qk_norm:
            full, weighted = qk_norm == "full", qk_norm != "unit"
            self.query_norm = RMSNorm(self.head_dim * (self.heads if full else 1), norm_eps, weighted)
            self.key_norm = RMSNorm(self.head_dim * (self.kv_heads if full else 1), norm_eps, weighted)
        self.register_load_state_dict_pre_hook(_read_torch_names)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor, context: Context | None = None) -> Tensor:
        """`x [B, N, dim]` to `[B, N, dim]`; `context` is what a model's layers share, None for a layer alone."""
        batch, count, _ = x.shape
        if context is None:
            context = Context(torch.arange(count, device=x.device))
        query, key, value = self.project(x, context)  # [B, H, N, D], [B, Hkv, N, D]
        keys, bias = context.keys, self.prior(context)
        if context.cache is not None:
            by_position = context.cache.has_one_row and reads_positions_alone(self.pattern, bias)
            update = context.cache.update_one_row if by_position else context.cache.update
            key, value, keys = update(self.layer, key, value)  # [B, Hkv, Nk, D]
        pattern = self.pattern
        if self.window is not None and count == 1 and context.cache is not None:
            if keys.coords is None:  # all of the window, and no more
                key, value, pattern = key[:, :, -self.window :], value[:, :, -self.window :], CAUSAL
            elif keys.window is not None and keys.window <= self.window:
                pattern = CAUSAL
        out = context.attend(
            query if keys.query_coords is None else as_one_row(query), key, value,
            pattern=context.allowed(pattern, keys),
            bias=bias,
            score=self.score,
            scale=self.scale,
            coords=None if keys.coords is None else (keys.query_coords or context.query_coords, keys.coords),
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return apply_linear(self.out, out.transpose(1, 2).reshape(batch, count, out.shape[1] * out.shape[3]))

    def project(self, x: Tensor, context: Context) -> tuple[Tensor, Tensor, Tensor]:
        """Query `[B, H, N, D]`, key and value `[B, Hkv, N, D]`, normed and turned."""
        projected = apply_linear(self.qkv, x)
        if self.clip is not None:
            projected = projected.clamp(-self.clip, self.clip)
        heads = torch.unflatten(projected, -1, (-1, self.head_dim))  # [B, N, H + 2·Hkv, D]
        turned = self.heads + self.kv_heads
        both, value = heads[:, :, :turned], heads[:, :, turned:]  # queries and keys together
        if self.query_norm is not None and self.qk_norm != "unit":
            both = self.norm_heads(both)
        if self.rotary is not None and not self.rotary.depends_on_length:
            both = turn_by(both, *context.waves(self.rotary, both.dtype), self.rotary.interleaved)
        if self.qk_norm == "unit":
            both = self.norm_heads(both)
        query, key = both[:, :, : self.heads], both[:, :, self.heads :]
        if self.temperature is not None:
            query = query * self.temperature.factor(context.position)[..., None, None].to(query.dtype)
        return query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2)

    def norm_heads(self, both: Tensor) -> Tensor:
        """Queries and keys `[B, N, H + Hkv, D]`, each normed by its own weight."""
        assert self.query_norm is not None and self.key_norm is not None
        query, key = both[:, :, : self.heads], both[:, :, self.heads :]
        if self.qk_norm == "full":
            query = self.query_norm(query.flatten(2)).view_as(query)
            key = self.key_norm(key.flatten(2)).view_as(key)
        else:
            query, key = self.query_norm(query), self.key_norm(key)
        return torch.cat((query, key), 2)

    def prior(self, context: Context) -> Bias | None:
        """The biases of this layer: its own, the shared one, and a rotation that a cache cannot hold."""
        priors = [self.bias, context.bias if self.shared_bias else None]
        if self.rotary is not None and self.rotary.depends_on_length:
            priors.append(self.rotary)
        total: Bias | None = None
        for prior in priors:
            if prior is not None:
                total = prior if total is None else total + prior
        return total


class CrossAttention(nn.Module):
    """Queries from one sequence, keys and values from another: a decoder that reads an encoder's output.

    With a cache, keys and values of the memory are computed in the first step and kept.

    Example:
        >>> import torch
        >>> from attnops.seq import CrossAttention
        >>> CrossAttention(32, 4)(torch.randn(2, 3, 32), memory=torch.randn(2, 7, 32)).shape
        torch.Size([2, 3, 32])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        layer: int = 0,
        scale: float | None = None,
        softcap: float | None = None,
        dropout: float = 0.0,
        bias_in: bool = False,
        bias_out: bool = False,
        memory_dim: int | None = None,
    ) -> None:
        super().__init__()
        self.heads, self.kv_heads = heads, kv_heads or heads
        self.head_dim = head_dim or dim // heads
        self.layer, self.scale, self.dropout = layer, scale, dropout
        self.score = None if softcap is None else DotProduct(softcap)
        self.query = nn.Linear(dim, self.heads * self.head_dim, bias=bias_in)
        self.key_value = nn.Linear(memory_dim or dim, 2 * self.kv_heads * self.head_dim, bias=bias_in)
        self.out = nn.Linear(self.heads * self.head_dim, dim, bias=bias_out)
        self.register_load_state_dict_pre_hook(_read_torch_names)  # type: ignore[no-untyped-call]

    def forward(self, x: Tensor, context: Context | None = None, memory: Tensor | None = None) -> Tensor:
        """`x [B, N, dim]` reads `context.memory [B, M, dim]`, or `memory`."""
        padding, cache = (None, None) if context is None else (context.memory_padding, context.cache)
        memory = memory if context is None else context.memory
        query = torch.unflatten(apply_linear(self.query, x), -1, (-1, self.head_dim)).transpose(1, 2)  # [B, H, N, D]
        if cache is not None and cache.length > 0:
            key, value = cache.cross[self.layer]
        else:
            assert memory is not None
            both = torch.unflatten(apply_linear(self.key_value, memory), -1, (-1, self.head_dim))  # [B, M, 2·Hkv, D]
            key, value = both.transpose(1, 2).chunk(2, 1)  # [B, Hkv, M, D]
            if cache is not None:
                cache.cross[self.layer] = key, value
        out = attend(
            query, key, value,
            pattern=padding,
            score=self.score,
            scale=self.scale,
            dropout=self.dropout if self.training else 0.0,
        )  # fmt: skip
        return apply_linear(self.out, out.transpose(1, 2).flatten(2))  # type: ignore[union-attr]


def reads_positions_alone(pattern: Pattern | None, bias: Bias | None) -> bool:
    """Whether pattern and bias are the same wherever a key is stored, and whichever rows stand beside it."""
    known = (ALiBi, RelativeBias, RelativeKeys, Sink)
    of_pattern = pattern is None or pattern.constants is not None
    return of_pattern and (bias is None or all(isinstance(term, known) for term in bias.terms))


def as_one_row(query: Tensor) -> Tensor:
    """`[B, H, N, D]` to `[1, H, B · N, D]`."""
    return query.transpose(0, 1).flatten(1, 2).unsqueeze(0)


def _read_torch_names(layer: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    """Rename what `nn.MultiheadAttention` calls its parameters to this layer's names."""
    for name in ("bias_k", "bias_v"):
        if prefix + name in state:
            raise ValueError(
                f"{prefix}{name}: a learned key or value that every query sees (add_bias_kv) has no counterpart"
            )
    apart = [state.pop(f"{prefix}{letter}_proj_weight", None) for letter in "qkv"]  # where key and value are narrower
    if isinstance(layer, CrossAttention) and all(part is not None for part in apart):
        state[prefix + "query.weight"], state[prefix + "key_value.weight"] = apart[0], torch.cat(apart[1:])
    for kind in ("weight", "bias"):
        joined = state.pop(f"{prefix}in_proj_{kind}", None)
        if joined is not None and isinstance(layer, CrossAttention):
            width = layer.query.out_features
            state[f"{prefix}query.{kind}"], state[f"{prefix}key_value.{kind}"] = joined[:width], joined[width:]
        elif joined is not None:
            state[f"{prefix}qkv.{kind}"] = joined
        if f"{prefix}out_proj.{kind}" in state:
            state[f"{prefix}out.{kind}"] = state.pop(f"{prefix}out_proj.{kind}")
