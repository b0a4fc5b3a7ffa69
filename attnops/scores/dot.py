"""The scaled dot product."""

from __future__ import annotations

from torch import Tensor

from attnops.checks import require_number
from attnops.pairs import Pairs
from attnops.scores.base import Score


class DotProduct(Score):
    """q_i·k_j · scale, with `attend`'s scale (1/√D); with a softcap c, c·tanh(q_i·k_j · scale / c).

    Args:
        softcap: None for none, or a positive bound on the logits (Gemma 2).

    Raises:
        ValueError: a softcap that is not positive (0 does not mean "none").

    Source: Vaswani et al. 2017, arXiv:1706.03762; softcap: Gemma 2, arXiv:2408.00118.

    Example:
        >>> import attnops
        >>> attnops.DotProduct(softcap=50.0)
        DotProduct(softcap=50.0)
    """

    def __init__(self, softcap: float | None = None) -> None:
        super().__init__()
        if softcap is not None:
            require_number(softcap=softcap)
        if softcap is not None and not softcap > 0:
            raise ValueError(f"softcap is {softcap}; it must be positive, or None for no softcap")
        self.softcap = softcap

    @property
    def kernel(self) -> str | None:
        return "dot" if type(self).forward is DotProduct.forward else None

    def forward(self, query: Tensor, key: Tensor, pairs: Pairs) -> Tensor:
        return self.cap((query * key).sum(-1))

    def cap(self, logits: Tensor) -> Tensor:
        """The softcap, applied to scaled logits."""
        return logits if self.softcap is None else self.softcap * (logits / self.softcap).tanh()

    def extra_repr(self) -> str:
        return "" if self.softcap is None else f"softcap={self.softcap}"
