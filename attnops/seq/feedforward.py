"""The feed-forward layer: each token alone, through a wider space."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from attnops.checks import require_positive
from attnops.seq.linear import apply_linear

ACTIVATIONS = ("relu", "gelu", "gelu_tanh", "silu", "swiglu", "geglu", "geglu_tanh", "reglu")


class FeedForward(nn.Module):
    """W₂ σ(W₁ x), or with a gate W₂ (σ(W₁ x) ⊙ W₃ x).

    `up` holds W₁, or W₁ above W₃ (`[2·ff_dim, dim]`), so that both are one product.

    Args:
        activation: "relu", "gelu", "gelu_tanh", "silu"; gated: "swiglu" (silu), "geglu" (gelu), "geglu_tanh", "reglu".
        bias: whether the linear layers have one.

    Raises:
        ValueError: an unknown activation; a width below 1.

    Source: gates: Shazeer 2020, arXiv:2002.05202.

    Example:
        >>> import torch
        >>> from attnops.seq import FeedForward
        >>> FeedForward(8, 32, "swiglu")(torch.randn(2, 5, 8)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, dim: int, ff_dim: int, activation: str = "swiglu", bias: bool = False) -> None:
        super().__init__()
        require_positive(dim=dim, ff_dim=ff_dim)
        check_activation(activation)
        self.activation = activation
        self.gated = "glu" in activation
        self.up = nn.Linear(dim, 2 * ff_dim if self.gated else ff_dim, bias=bias)
        self.down = nn.Linear(ff_dim, dim, bias=bias)

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        """`x [B, N, dim]`; `real [B, N]`, which tokens are no padding, matters to mixtures of experts alone."""
        wide = apply_linear(self.up, x)
        if self.gated:
            gate, value = wide.chunk(2, dim=-1)
            return apply_linear(self.down, activate(gate, self.activation) * value)
        return apply_linear(self.down, activate(wide, self.activation))

    def extra_repr(self) -> str:
        return self.activation


def activate(x: Tensor, activation: str) -> Tensor:
    """σ(x), by the name of the layer that it stands in."""
    if activation in ("relu", "reglu"):
        return F.relu(x)
    if activation in ("gelu", "geglu"):
        return F.gelu(x)
    if activation in ("gelu_tanh", "geglu_tanh"):
        return F.gelu(x, approximate="tanh")
    return F.silu(x)  # "silu", "swiglu"


def check_activation(activation: object, *more: str) -> None:
    """Raise `ValueError` for a name that is not in `ACTIVATIONS`, nor among `more`."""
    known = (*ACTIVATIONS, *more)
    if activation not in known:
        raise ValueError(f"activation is {activation!r}; it must be one of {', '.join(map(repr, known))}")
