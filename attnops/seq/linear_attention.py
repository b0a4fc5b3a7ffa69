"""A layer of linear attention: what was read is a state of fixed size, not a cache that grows."""

from __future__ import annotations

from typing import Literal, overload

import torch
from torch import Tensor, nn

from attnops.checks import require_positive
from attnops.linear import FeatureMap, LinearState, linear_attend
from attnops.seq.context import Context
from attnops.seq.linear import apply_linear


class LinearAttention(nn.Module):
    """Self-attention whose similarity is φ(q)·φ(k), in time linear in N; in place of `Attention` in a `Block`.

        q, k, v = x Wᵀ                                one product, `[(H + 2·Hkv)·D, dim]`
        out     = linear_attend(q, k, v) W_oᵀ

    Args:
        dim, heads, kv_heads, head_dim: the width of the stream, H, Hkv (None: H), D (None: dim / heads).
        causal, feature_map, decay: as `attnops.linear_attend` has them.
        bias_in, bias_out: whether the linear layers have one.

    Positions are not read: add them to the embeddings, or let `decay` forget.

    Source: Katharopoulos et al. 2020, arXiv:2006.16236.

    Example:
        >>> import torch
        >>> from attnops.seq import LinearAttention
        >>> attention, x = LinearAttention(dim=32, heads=4), torch.randn(2, 5, 32)
        >>> _, state = attention(x[:, :3], return_state=True)
        >>> rest, _ = attention(x[:, 3:], state=state, return_state=True)
        >>> torch.allclose(rest, attention(x)[:, 3:], atol=1e-6)
        True
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        kv_heads: int | None = None,
        head_dim: int | None = None,
        *,
        causal: bool = True,
        feature_map: str | FeatureMap | None = "elu",
        decay: float | None = None,
        bias_in: bool = False,
        bias_out: bool = False,
    ) -> None:
        super().__init__()
        require_positive(dim=dim, heads=heads)
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads or heads, head_dim or dim // heads
        self.causal, self.feature_map, self.decay = causal, feature_map, decay
        self.qkv = nn.Linear(dim, (self.heads + 2 * self.kv_heads) * self.head_dim, bias=bias_in)
        self.out = nn.Linear(self.heads * self.head_dim, dim, bias=bias_out)

    @overload
    def forward(
        self,
        x: Tensor,
        context: Context | None = None,
        *,
        state: LinearState | None = None,
        return_state: Literal[False] = False,
    ) -> Tensor: ...

    @overload
    def forward(
        self,
        x: Tensor,
        context: Context | None = None,
        *,
        state: LinearState | None = None,
        return_state: Literal[True],
    ) -> tuple[Tensor, LinearState]: ...

    def forward(
        self,
        x: Tensor,
        context: Context | None = None,
        *,
        state: LinearState | None = None,
        return_state: bool = False,
    ) -> Tensor | tuple[Tensor, LinearState]:
        """`x [B, N, dim]` to `[B, N, dim]`, and the state after it where asked for; `state` is that of the text before.

        Raises:
            ValueError: a context with a cache, which holds keys, or with segments.
        """
        if context is not None and context.cache is not None:
            raise ValueError("context has a cache of keys; linear attention carries a state, given as state=")
        if context is not None and context.coords is not None and "segment" in context.coords:
            raise ValueError("context has segments; a state knows no documents: give linear attention one at a time")
        heads = torch.unflatten(apply_linear(self.qkv, x), -1, (-1, self.head_dim)).transpose(1, 2)
        query, key, value = torch.split(heads, [self.heads, self.kv_heads, self.kv_heads], 1)  # [B, H | Hkv, N, D]
        out, after = linear_attend(
            query,
            key,
            value,
            self.feature_map,
            self.causal,
            self.decay,
            None if context is None else context.real,
            state,
            return_state=True,
        )
        joined = apply_linear(self.out, out.transpose(1, 2).flatten(2))
        return (joined, after) if return_state else joined
