"""Attention among the nodes of a graph, over any pattern and with any bias, and the block around it."""

from __future__ import annotations

from torch import Tensor, nn

from attnops.biases import Bias
from attnops.checks import require_number, require_positive
from attnops.coords import Coords
from attnops.operator import attend
from attnops.patterns import Pattern
from attnops.states import AttentionOutput


class NodeAttention(nn.Module):
    """Multi-head attention of nodes to nodes: who may attend whom is the pattern, what is preferred the bias.

        out = W_o · attend(W_q x, W_k x, W_v x; pattern, bias)

    The pattern makes it local (`Edges`), global (`Full`, `SameSegment`), Graphormer's (`all_pairs`) or Exphormer's
    (`exphormer_edges`); nothing else changes.

    Args:
        dim: of a node, a multiple of heads. heads: H.
        bias: any `Bias`; it reads edge data and coords by name.
        dropout: rate on the weights, in training.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Example:
        >>> import torch, attnops
        >>> from attnops.graph import NodeAttention
        >>> edges = attnops.Edges(torch.tensor([[0, 1], [1, 2]]), 3, 3, type=torch.tensor([0, 1]))
        >>> layer = NodeAttention(8, heads=2, bias=attnops.EdgeTypePrior(2, 2))
        >>> layer(torch.randn(3, 8), edges).shape
        torch.Size([3, 8])
    """

    def __init__(self, dim: int, heads: int, bias: Bias | None = None, dropout: float = 0.0) -> None:
        super().__init__()
        require_positive(dim=dim, heads=heads)
        require_number(dropout=dropout)
        if dim % heads:
            raise ValueError(f"dim is {dim}; it must be a multiple of heads = {heads}")
        self.dim, self.heads, self.dropout = dim, heads, dropout
        self.qkv = nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)
        self.bias = bias

    def project(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`[N, dim]` to query, key and value, `[H, N, dim / H]` each."""
        query, key, value = self.qkv(x).view(x.shape[0], 3, self.heads, self.dim // self.heads).unbind(1)
        return query.transpose(0, 1), key.transpose(0, 1), value.transpose(0, 1)

    def join(self, heads: Tensor) -> Tensor:
        """`[H, N, dim / H]` to `[N, dim]`."""
        out: Tensor = self.out(heads.transpose(0, 1).flatten(1))
        return out

    def forward(
        self, x: Tensor, pattern: Pattern | None = None, coords: Coords | None = None, bias: Bias | None = None
    ) -> Tensor:
        """`[N, dim]` to `[N, dim]`; a bias that is given, one for many layers, is used in place of the layer's own."""
        bias, dropout = self.bias if bias is None else bias, self.dropout if self.training else 0.0
        query, key, value = self.project(x)
        out = attend(query, key, value, pattern=pattern, bias=bias, coords=coords, dropout=dropout)
        assert not isinstance(out, AttentionOutput)
        return self.join(out)

    def extra_repr(self) -> str:
        return f"{self.dim}, heads={self.heads}"


class FeedForward(nn.Sequential):
    """W_2 dropout(act(W_1 x)), twice as wide in the middle as GPS has it."""

    def __init__(self, dim: int, dropout: float = 0.0, activation: type[nn.Module] = nn.GELU) -> None:
        wide, narrow = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        super().__init__(wide, activation(), nn.Dropout(dropout), narrow, nn.Dropout(dropout))


class NodeBlock(nn.Module):
    """A transformer block over nodes: x + attention(norm(x)), then x + feed-forward(norm(x)).

    Args:
        attention: `NodeAttention` or one of its kind; it is called with x and what the block is called with.
        dropout: rate on what is added to x.

    Source: the pre-norm block that Graphormer uses (Ying et al. 2021, arXiv:2106.05234).
    """

    def __init__(self, attention: NodeAttention, dropout: float = 0.0) -> None:
        super().__init__()
        self.attention_norm, self.attention = nn.LayerNorm(attention.dim), attention
        self.feed_forward_norm, self.feed_forward = nn.LayerNorm(attention.dim), FeedForward(attention.dim, dropout)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor, *where: object) -> Tensor:
        """`[N, dim]` to `[N, dim]`; `where` is the pattern, and what else the attention takes."""
        x = x + self.dropout(self.attention(self.attention_norm(x), *where))
        x = x + self.feed_forward(self.feed_forward_norm(x))
        return x
