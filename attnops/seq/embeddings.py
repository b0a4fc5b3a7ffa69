"""Tokens as vectors, and absolute positions added to them."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.coords import is_concrete
from attnops.seq.config import TransformerConfig
from attnops.seq.norms import make_norm


class SinusoidalPositions(nn.Module):
    """Channel 2j of position p is sin(p / 10000^(2j/dim)), channel 2j+1 the cosine.

    Source: Vaswani et al. 2017, arXiv:1706.03762.

    Example:
        >>> import torch
        >>> from attnops.seq import SinusoidalPositions
        >>> SinusoidalPositions(4)(torch.tensor([0]))
        tensor([[0., 1., 0., 1.]])
    """

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.dim = dim

    def forward(self, position: Tensor) -> Tensor:
        """`[…, N]` positions, integer or real, to `[…, N, dim]`."""
        channel = torch.arange(0, self.dim, 2, device=position.device, dtype=torch.float32)
        angle = position.float().unsqueeze(-1) * torch.exp(channel * (-math.log(10000.0) / self.dim))
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., : self.dim]


class LearnedPositions(nn.Module):
    """A learned vector for each position 0 … max_length - 1; there is none for a position past the table.

    Args:
        offset: rows of the table before that of position 0 (RoBERTa and OPT keep 2).

    Raises:
        ValueError: a position past the table.

    Example:
        >>> import torch
        >>> from attnops.seq import LearnedPositions
        >>> LearnedPositions(16, 8)(torch.arange(5)).shape
        torch.Size([5, 8])
    """

    def __init__(self, max_length: int, dim: int, offset: int = 0) -> None:
        super().__init__()
        self.max_length, self.offset = max_length, offset
        self.weight = nn.Parameter(torch.empty(max_length + offset, dim).normal_(std=0.02))

    def forward(self, position: Tensor) -> Tensor:
        if is_concrete(position) and position.numel() and int(position.max()) >= self.max_length:
            raise ValueError(
                f"position {int(position.max())} lies past the learned table of max_length={self.max_length}; "
                "a longer text needs a longer table, or positions that extrapolate (rotary, ALiBi)"
            )
        return F.embedding(position + self.offset if self.offset else position, self.weight)


class Embeddings(nn.Module):
    """token[id] · scale + position + type, normed where a model does so: the stream that the first layer reads.

    Raises:
        ValueError: an id that is negative or not below vocab_size.
        TypeError: ids that are not integers.
    """

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__()
        self.vocab_size, self.scale = config.vocab_size, config.embedding_scale
        self.token = nn.Embedding(config.vocab_size, config.dim)
        self.position: nn.Module | None = None
        if config.has_position("learned"):
            self.position = LearnedPositions(config.max_length, config.dim, config.learned_offset)
        elif config.has_position("sinusoidal"):
            self.position = SinusoidalPositions(config.dim)
        self.token_type = nn.Embedding(config.token_types, config.dim) if config.token_types else None
        self.norm = (
            make_norm(config.norm, config.dim, config.norm_eps, config.norm_bias) if config.embedding_norm else None
        )
        self.rate = config.dropout

    def forward(self, ids: Tensor, position: Tensor, types: Tensor | None = None) -> Tensor:
        """`ids [B, N]`, `position [N]` or `[B, N]`, `types [B, N]` (0 where not given) to `[B, N, dim]`."""
        check_ids("ids", ids, self.vocab_size)
        x = self.token(ids)
        if self.scale is not None:
            x = x * self.scale
        if self.position is not None:
            x = x + self.position(position).to(x.dtype)
        if types is not None:
            self._check_types(types, ids)
        if self.token_type is not None:
            x = x + (self.token_type.weight[0] if types is None else self.token_type(types))
        if self.norm is not None:
            x = self.norm(x)
        return F.dropout(x, self.rate) if self.training and self.rate else x

    def _check_types(self, types: Tensor, ids: Tensor) -> None:
        if self.token_type is None:
            raise ValueError("types is given, but the config has no token_types")
        check_ids("types", types, self.token_type.num_embeddings)
        if types.shape != ids.shape:
            raise ValueError(f"types has shape {list(types.shape)}; it must be {list(ids.shape)}, as ids")


def check_ids(name: str, ids: Tensor, vocab_size: int | None = None) -> None:
    """Raise unless `ids` are integers `[B, N]`, and lie in 0 … vocab_size - 1 where that is given."""
    if not isinstance(ids, Tensor) or ids.dtype not in (torch.int32, torch.int64):
        kind = str(ids.dtype) if isinstance(ids, Tensor) else type(ids).__name__
        raise TypeError(f"{name} is {kind}; it must be an integer tensor [B, N]")
    if ids.ndim != 2:
        raise ValueError(f"{name} has shape {list(ids.shape)}; it must be [B, N]")
    if vocab_size is not None and is_concrete(ids) and ids.numel():
        low, high = torch.aminmax(ids)
        if low < 0 or high >= vocab_size:
            worst = int(low) if low < 0 else int(high)
            raise ValueError(f"{name} holds {worst}; an id must lie in 0 … {vocab_size - 1}")
