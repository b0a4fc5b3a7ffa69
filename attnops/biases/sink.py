"""An attention sink: one learned logit a head that takes weight and gives nothing."""

from __future__ import annotations

from attnops.biases.base import Bias
from attnops.biases.tables import zeros
from attnops.checks import require_positive


class Sink(Bias):
    """w_ij = exp(l_ij) / (exp(weight_h) + Σ_k exp(l_ik)): one more logit in the denominator, with no value.

    No sum over pairs expresses it, so the operator applies it to (out, lse) itself: out · σ(lse - weight_h), and
    lse = logaddexp(lse, weight_h) where the row has an allowed key. A row without one stays zeros and -inf.

    Args:
        heads: H.

    Parameter: `weight [heads]`, 0 at the start (softmax with one more 1 in the denominator).

    Source: Xiao et al. 2024, arXiv:2309.17453; as a logit a head, gpt-oss 2025.

    Example:
        >>> import torch, attnops
        >>> zeros, ones = torch.zeros(1, 3, 2), torch.ones(1, 3, 1)               # three keys alike, and the sink
        >>> attnops.attend(zeros, zeros, ones, bias=attnops.Sink(1)).detach()[0, 0]
        tensor([0.7500])
    """

    def __init__(self, heads: int) -> None:
        super().__init__()
        require_positive(heads=heads)
        self.heads: int = heads
        self.weight = zeros(heads)

    def extra_repr(self) -> str:
        return f"heads={self.heads}"
