"""How similarity is computed: the `Score` protocol."""

from __future__ import annotations

from torch import Tensor, nn

from attnops.pairs import Pairs


class Score(nn.Module):
    """The similarity of a query and a key; write `forward` over vectors gathered at the pairs.

    `forward(query, key, pairs) -> logits`: vectors broadcast to `[…pairs, D]`, logits to `[…pairs]`. `bind`, optional,
    does work that is done once a row: it returns the vectors that pairs need and the score that takes them.

    Example:
        >>> import torch, attnops
        >>> class Negative(attnops.Score):
        ...     def forward(self, query, key, pairs):
        ...         return -(query - key).square().sum(-1)
        >>> x = torch.randn(1, 4, 3)
        >>> attnops.attend(x, x, x, score=Negative()).shape
        torch.Size([1, 4, 3])
    """

    heads: int | None = None

    @property
    def kernel(self) -> str | None:
        """What compiled kernels know this score by: "dot", "leaky_relu" or "tanh"; None where they do not."""
        return None

    @property
    def binds(self) -> bool:
        """Whether `bind` does work a row."""
        return type(self).bind is not Score.bind

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        """Logits of the pairs, before bias and pattern."""
        raise NotImplementedError(f"{type(self).__name__} must define forward(query, key, pairs) -> logits")

    def bind(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor, Score]:
        """Row-wise work done once: `[B, H, Nq, D]` and `[B, Hkv, Nk, D]` in, and what pairs need out."""
        return query, key, self

    def check(self, dim: int) -> None:
        """Raise `ValueError` where this score does not take vectors of `dim`."""
