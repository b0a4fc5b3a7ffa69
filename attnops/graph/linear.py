"""torch-geometric's linear layer: its names, its initialisations, and input sizes read off the first input."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.parameter import UninitializedParameter

from attnops.graph.hetero_metadata import name_of


class Linear(nn.Module):
    """x Wᵀ + b, with `weight [out_channels, in_channels]` and `bias [out_channels]`.

    Args:
        in_channels: -1 reads it off the first input. out_channels: of the output. bias: whether to add b.
        weight_initializer: "glorot", or None for that of `torch.nn.Linear`.

    Source: the parameters, their names and their first values are those of `torch_geometric.nn.Linear`.

    Example:
        >>> import torch, attnops.graph.linear
        >>> attnops.graph.linear.Linear(-1, 3)(torch.randn(5, 2)).shape
        torch.Size([5, 3])
    """

    def __init__(
        self,
        in_channels: int,
        out_channels: int,
        bias: bool = True,
        weight_initializer: Literal["glorot"] | None = None,
    ) -> None:
        super().__init__()
        self.in_channels, self.out_channels, self.weight_initializer = in_channels, out_channels, weight_initializer
        self.weight: nn.Parameter
        if in_channels > 0:
            self.weight = nn.Parameter(torch.empty(out_channels, in_channels))
        else:
            self.weight = UninitializedParameter()  # type: ignore[assignment]
        self.bias = nn.Parameter(torch.empty(out_channels)) if bias else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draw the parameters anew, where their sizes are known."""
        if self.in_channels <= 0:
            return
        with torch.no_grad():
            if self.weight_initializer == "glorot":
                glorot(self.weight)
            else:
                kaiming_uniform(self.weight, self.in_channels)
            if self.bias is not None:
                bound = 1 / math.sqrt(self.in_channels)
                self.bias.uniform_(-bound, bound)

    def materialize(self, in_channels: int) -> None:
        """Give a weight of yet unknown size its size and first values."""
        if isinstance(self.weight, UninitializedParameter):
            self.in_channels = in_channels
            self.weight.materialize((self.out_channels, in_channels))
            self.reset_parameters()

    def forward(self, x: Tensor) -> Tensor:
        """`[…, in_channels]` to `[…, out_channels]`; `[N, in_channels]` may be sparse COO or CSR."""
        self.materialize(x.shape[-1])
        if x.layout == torch.strided:
            return F.linear(x, self.weight, self.bias)
        mapped: Tensor = torch.sparse.mm(x, self.weight.t())
        return mapped if self.bias is None else mapped + self.bias

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        if isinstance(self.weight, UninitializedParameter):  # it cannot be detached
            destination[prefix + "weight"] = self.weight
            if self.bias is not None:
                destination[prefix + "bias"] = self.bias if keep_vars else self.bias.detach()
        else:
            super()._save_to_state_dict(destination, prefix, keep_vars)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        weight = state_dict.get(prefix + "weight")
        if isinstance(weight, UninitializedParameter):
            self.in_channels = -1
            self.weight = UninitializedParameter()  # type: ignore[assignment]
        elif weight is not None and isinstance(self.weight, UninitializedParameter):
            self.in_channels = weight.shape[-1]
            self.weight.materialize((self.out_channels, self.in_channels))
        super()._load_from_state_dict(state_dict, prefix, *args)

    def extra_repr(self) -> str:
        return f"{self.in_channels}, {self.out_channels}, bias={self.bias is not None}"


def glorot(tensor: Tensor) -> None:
    """Uniform in ±√(6 / (rows + columns)) of the last two axes."""
    bound = math.sqrt(6 / (tensor.shape[-2] + tensor.shape[-1]))
    with torch.no_grad():
        tensor.uniform_(-bound, bound)


def kaiming_uniform(tensor: Tensor, fan: int) -> None:
    """Uniform in ±√(6 / ((1 + a²) fan)) with a = √5, as `torch.nn.Linear`."""
    bound = math.sqrt(6 / ((1 + math.sqrt(5) ** 2) * fan))
    with torch.no_grad():
        tensor.uniform_(-bound, bound)


class TypedLinear(nn.Module):
    """A `Linear` a node type: torch-geometric's `HeteroDictLinear`, its names, first values and lazy sizes.

    Args:
        in_channels: by type, whose order is that of the results; -1 reads it off the first input.
        out_channels: of every type.
    """

    def __init__(self, in_channels: Mapping[str, int], out_channels: int) -> None:
        super().__init__()
        self.kinds, self.out_channels = list(in_channels), out_channels
        self.lins = nn.ModuleDict({name_of(kind): Linear(size, out_channels) for kind, size in in_channels.items()})
        self.lazy = any(size == -1 for size in in_channels.values())
        self.reset_parameters()

    def channels(self, kind: str) -> int:
        """The input size of a type, -1 where it is not known yet."""
        return self.lins[name_of(kind)].in_channels  # type: ignore[return-value]

    def reset_parameters(self) -> None:
        """Draw the parameters anew, where their sizes are known."""
        for linear in self.lins.values():
            linear.reset_parameters()  # type: ignore[operator]

    def forward(self, x: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """`[N_t, F_t]` by type to `[N_t, out_channels]` by type."""
        if self.lazy:
            for kind, features in x.items():
                linear = self.lins[name_of(kind)]
                if isinstance(linear.weight, UninitializedParameter):
                    linear.materialize(features.shape[-1])  # type: ignore[operator]
                    linear.reset_parameters()  # type: ignore[operator]  # theirs draws a second time, too
            self.lazy = False
        return {kind: self.lins[name_of(kind)](x[kind]) for kind in self.kinds if kind in x}
