"""Local + global: attention over the edges beside attention over the whole graph, in one layer."""

from __future__ import annotations

from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from attnops.biases import Bias
from attnops.coords import Coords
from attnops.graph.node_attention import FeedForward, NodeAttention
from attnops.graph.packed import Packed, pad, read_batch
from attnops.linear import linear_attend
from attnops.patterns import Edges, SameSegment


class LocalGlobal(nn.Module):
    """A layer that hears from neighbours and from everyone (GPS).

        l   = norm(x + local(x, edges))            messages along the edges
        g   = norm(x + global(x))                  attention among all nodes of a graph
        out = norm(l + g + FFN(l + g))

    The global part is softmax attention, whose pattern is `SameSegment()` where several graphs are packed, or
    `linear_attend`, whose time and memory are linear in the number of nodes.

    Args:
        dim: of a node, a multiple of heads. heads: H.
        local: a module called with (x, edges); None is `NodeAttention` over the edges with `bias`.
        attention: "full" or "linear".
        bias: of the local part; it reads edge data by name.
        norm: "layer", "batch" (GPS's choice; in training the graphs of a batch then touch one another) or None.
        dropout: rate on what is added to x. attention_dropout: rate on the weights of softmax attention.
        activation: of the feed-forward part.

    Raises:
        ValueError, TypeError: a bad argument, by name.

    Source: Rampášek et al. 2022, arXiv:2205.12454.

    Example:
        >>> import torch, attnops
        >>> from attnops.graph import LocalGlobal
        >>> edges = attnops.Edges(torch.tensor([[0, 1, 3], [1, 2, 4]]), 5, 5)
        >>> layer = LocalGlobal(8, heads=2, attention="linear")
        >>> layer(torch.randn(5, 8), edges, batch=torch.tensor([0, 0, 0, 1, 1])).shape
        torch.Size([5, 8])
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        local: nn.Module | None = None,
        attention: Literal["full", "linear"] = "full",
        bias: Bias | None = None,
        norm: Literal["layer", "batch"] | None = "layer",
        dropout: float = 0.0,
        attention_dropout: float = 0.0,
        activation: type[nn.Module] = nn.ReLU,
    ) -> None:
        super().__init__()
        if attention not in ("full", "linear"):
            raise ValueError(f"attention is {attention!r}; it must be 'full' or 'linear'")
        if norm not in ("layer", "batch", None):
            raise ValueError(f"norm is {norm!r}; it must be 'layer', 'batch' or None")
        if local is not None and bias is not None:
            raise ValueError(
                "bias was given beside local; it is read by the local part that is made where local is None"
            )
        self.attention, self.dropout = attention, dropout
        self.local = NodeAttention(dim, heads, bias, attention_dropout) if local is None else local
        self.everyone = NodeAttention(dim, heads, dropout=attention_dropout)
        self.feed_forward = FeedForward(dim, dropout, activation)
        norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d, None: nn.Identity}
        self.local_norm, self.global_norm, self.norm = (norms[norm](dim) for _ in range(3))

    def forward(self, x: Tensor, edges: Edges, batch: Tensor | None = None, batch_size: int | None = None) -> Tensor:
        """`[N, dim]` to `[N, dim]`; `batch` is PyG's, ascending, None where all is one graph."""
        packed = read_batch(batch, x.shape[0], batch_size, x.device)
        near = self.local_norm(x + self._drop(self.local(x, edges)))
        far = self.global_norm(x + self._drop(self._global(x, packed)))
        out: Tensor = near + far
        out = self.norm(out + self.feed_forward(out))
        return out

    def _global(self, x: Tensor, packed: Packed) -> Tensor:
        one_graph = packed.sizes.shape[0] == 1
        if self.attention == "full":
            pattern, coords = (None, None) if one_graph else (SameSegment(), Coords(segment=packed.batch))
            return self.everyone(x, pattern, coords)  # type: ignore[no-any-return]
        if one_graph:
            return self.everyone.join(linear_attend(*self.everyone.project(x)))
        # linear attention knows no pattern: each graph is a row of a batch
        vectors = [pad(side.transpose(0, 1).flatten(1), packed) for side in self.everyone.project(x)]
        real = vectors[0][1]
        heads = self.everyone.heads
        query, key, value = (
            rows.view(*real.shape, heads, rows.shape[-1] // heads).transpose(1, 2) for rows, _ in vectors
        )
        out = linear_attend(query, key, value, key_mask=real)  # [G, H, M, D]
        return self.everyone.join(out.transpose(1, 2)[real].transpose(0, 1))

    def _drop(self, x: Tensor) -> Tensor:
        return F.dropout(x, self.dropout, self.training)
