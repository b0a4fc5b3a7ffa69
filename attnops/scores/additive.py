"""Additive scores: Bahdanau's and GATv2's, and GAT's separable one."""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.checks import require_number, require_positive
from attnops.pairs import Pairs
from attnops.scores.base import Score


class Additive(Score):
    """aᵀσ(q_i + k_j), with tanh (Bahdanau) or LeakyReLU (GATv2).

    Args:
        heads: H. dim: D of query and key.
        activation: σ. negative_slope: LeakyReLU's.

    Raises:
        ValueError: an unknown activation, heads or dim below 1.

    Parameter: `a [heads, dim]`, Glorot-uniform. The `scale` of `attend` does not apply to it.

    Source: Bahdanau et al. 2015, arXiv:1409.0473; Brody et al. 2022, arXiv:2105.14491.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(2, 5, 8)                                   # [H, N, D]
        >>> attnops.attend(x, x, x, score=attnops.Additive(2, 8, activation="leaky_relu")).shape
        torch.Size([2, 5, 8])
    """

    edge_term: str | None = None  # edge data [E, heads · dim] added inside σ

    def __init__(
        self, heads: int, dim: int, activation: Literal["tanh", "leaky_relu"] = "tanh", negative_slope: float = 0.2
    ) -> None:
        super().__init__()
        require_positive(heads=heads, dim=dim)
        require_number(negative_slope=negative_slope)
        if activation not in ("tanh", "leaky_relu"):
            raise ValueError(f"activation is {activation!r}; it must be 'tanh' or 'leaky_relu'")
        self.heads, self.dim, self.activation, self.negative_slope = heads, dim, activation, negative_slope
        self.a = nn.Parameter(torch.empty(heads, dim))
        nn.init.xavier_uniform_(self.a)

    @property
    def kernel(self) -> str | None:
        return self.activation if type(self).forward is Additive.forward else None

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        hidden = query + key
        if self.edge_term is not None:
            hidden = hidden + edge_vectors(pairs, self.edge_term, self.dim).to(hidden.dtype)
        hidden = hidden.tanh() if self.activation == "tanh" else F.leaky_relu(hidden, self.negative_slope)
        return (hidden * self.a.to(hidden.dtype)[pairs.head]).sum(-1)

    def check(self, dim: int) -> None:
        if dim != self.dim:
            raise ValueError(f"score has dim {self.dim}; query and key have D = {dim}")

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dim={self.dim}, activation={self.activation!r}"


class SeparableAdditive(Score):
    """LeakyReLU(a_q·q_i + a_k·k_j): GAT's score, two dot products a node and one sum a pair.

    Args:
        heads: H. dim: D of query and key. negative_slope: LeakyReLU's.

    Parameters: `a_q`, `a_k` `[heads, dim]`, Glorot-uniform. The `scale` of `attend` does not apply to it.

    Source: Veličković et al. 2018, arXiv:1710.10903.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(2, 5, 8)
        >>> attnops.attend(x, x, x, score=attnops.SeparableAdditive(2, 8)).shape
        torch.Size([2, 5, 8])
    """

    edge_term: str | None = None  # edge data [E, heads] added inside LeakyReLU

    def __init__(self, heads: int, dim: int, negative_slope: float = 0.2) -> None:
        super().__init__()
        require_positive(heads=heads, dim=dim)
        require_number(negative_slope=negative_slope)
        self.heads: int = heads
        self.dim, self.negative_slope = dim, negative_slope
        self.a_q = nn.Parameter(torch.empty(heads, dim))
        self.a_k = nn.Parameter(torch.empty(heads, dim))
        nn.init.xavier_uniform_(self.a_q)
        nn.init.xavier_uniform_(self.a_k)

    @property
    def kernel(self) -> str | None:
        own = type(self).forward is SeparableAdditive.forward and type(self).bind is SeparableAdditive.bind
        return "leaky_relu" if own else None

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        a_q, a_k = self.a_q.to(query.dtype)[pairs.head], self.a_k.to(key.dtype)[pairs.head]
        hidden = (query * a_q).sum(-1) + (key * a_k).sum(-1)
        if self.edge_term is not None:
            hidden = hidden + edge_vectors(pairs, self.edge_term, 1).squeeze(-1).to(hidden.dtype)
        return F.leaky_relu(hidden, self.negative_slope)

    def bind(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Score]:
        # products and sums, not matmul: its gradient of a is summed in an order that depends on the number of threads
        group = self.heads // key.shape[1]
        left = (query * self.a_q.to(query.dtype).unsqueeze(1)).sum(-1, keepdim=True)
        a_k = self.a_k.to(key.dtype).view(key.shape[1], group, 1, self.dim)
        # each head weighs its group's key by its own a_k
        right = (key.unsqueeze(2) * a_k).sum(-1, keepdim=True).flatten(1, 2)
        return left, right, LeakySum(self.negative_slope, self.edge_term)

    def check(self, dim: int) -> None:
        if dim != self.dim:
            raise ValueError(f"score has dim {self.dim}; query and key have D = {dim}")

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dim={self.dim}"


class LeakySum(Score):
    """LeakyReLU(s_i + t_j), or LeakyReLU(s_i + t_j + e_ij), over scalars that are already summed for each row.

    Args:
        negative_slope: LeakyReLU's. edge_term: the edge data `[E, heads]` that are added, by name.

    Example:
        >>> import torch, attnops
        >>> query, key, score = attnops.SeparableAdditive(2, 8).bind(torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8))
        >>> score, tuple(query.shape)
        (LeakySum(), (1, 2, 5, 1))
    """

    activation = "leaky_relu"

    def __init__(self, negative_slope: float, edge_term: str | None = None) -> None:
        super().__init__()
        self.negative_slope, self.edge_term = negative_slope, edge_term

    @property
    def kernel(self) -> str | None:
        return self.activation

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        hidden = query + key
        if self.edge_term is not None:
            hidden = hidden + edge_vectors(pairs, self.edge_term, 1).to(hidden.dtype)
        return F.leaky_relu(hidden.squeeze(-1), self.negative_slope)


def edge_vectors(pairs: Pairs, name: str, dim: int) -> Tensor:
    """Edge data `[E, H · dim]` at the pairs, heads where vectors have them: `[1, H, …pairs, dim]`."""
    data: Tensor = getattr(pairs.edge, name)  # [1, 1, …, H · dim] on a list or a grid, [H · dim] for one pair
    vectors = data.view(*data.shape[:-1], data.shape[-1] // dim, dim)
    return vectors.squeeze(1).movedim(-2, 1) if pairs.shape else vectors[pairs.head]
