"""Norms: bring each token's vector to one size."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from attnops.seq.config import TransformerConfig


class RMSNorm(nn.Module):
    """weight · x / √(mean(x²) + eps), over the last axis; the mean in float32 at least.

    Args:
        dim: the size of the last axis. eps: added under the root. weighted: whether there is a weight.

    Source: Zhang and Sennrich 2019, arXiv:1910.07467.

    Example:
        >>> import torch
        >>> from attnops.seq import RMSNorm
        >>> RMSNorm(2, eps=0.0)(torch.tensor([3.0, -4.0])).pow(2).mean().item()
        1.0
    """

    def __init__(self, dim: int, eps: float = 1e-5, weighted: bool = True) -> None:
        super().__init__()
        self.dim, self.eps = dim, eps
        self.weight = nn.Parameter(torch.ones(dim)) if weighted else None

    def forward(self, x: Tensor) -> Tensor:
        if x.dtype in (torch.float16, torch.bfloat16):
            weight = None if self.weight is None else self.weight.float()
            return F.rms_norm(x.float(), (self.dim,), weight, self.eps).to(x.dtype)
        if self.weight is not None and not torch.is_grad_enabled():
            return self.without_gradient(x, self.weight)
        return F.rms_norm(x, (self.dim,), self.weight, self.eps)

    def without_gradient(self, x: Tensor, weight: Tensor) -> Tensor:
        """The same in five operations where torch takes eight, which a step of decoding feels: √(a² + b²) is hypot."""
        root = torch.linalg.vector_norm(x, dim=-1, keepdim=True) / math.sqrt(self.dim)
        return x * weight / torch.hypot(root, root.new_full((), math.sqrt(self.eps)))

    def extra_repr(self) -> str:
        return f"{self.dim}, eps={self.eps}"


LayerNorm = nn.LayerNorm


def make_norm(kind: str, dim: int, eps: float, bias: bool = True) -> nn.Module:
    """The norm of that name: "rms" or "layer" (with `bias` or without)."""
    return RMSNorm(dim, eps) if kind == "rms" else nn.LayerNorm(dim, eps, bias=bias)


def make_final_norm(config: TransformerConfig) -> nn.Module:
    """The norm after the last block; none by default where each block ends in one ("post")."""
    final = config.norm_position != "post" if config.final_norm is None else config.final_norm
    return make_norm(config.norm, config.dim, config.norm_eps, config.norm_bias) if final else nn.Identity()
