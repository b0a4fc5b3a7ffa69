"""Learned tables: rows chosen by an integer that tokens, edges or distances carry, one column a head."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from attnops.pairs import Pairs


def read_table(table: Tensor, index: Tensor, pairs: Pairs) -> Tensor:
    """Rows of `table [rows, heads]` at `index` over the pairs (`[B|1, 1, …]`): `[B|1, heads, …]`, 0-d for one pair.

    `F.embedding` reads a row for all heads at once; indexing by `[index, head]` is ten times slower on a CPU.
    """
    index, table = index.long().clamp(0, table.shape[0] - 1), table.to(pairs.dtype)
    if not pairs.shape:
        return table[index, pairs.head]
    return F.embedding(index.squeeze(1), table).movedim(-1, 1)


def edge_data(pairs: Pairs, name: str) -> Tensor:
    """`edge.NAME` with as many axes as the pairs, and the data's own after them."""
    data: Tensor = getattr(pairs.edge, name)
    axes = len(pairs.shape) if pairs.edge.ids is None else pairs.edge.ids.ndim  # [Nq, Nk] ids may lack the first two
    return data.view((1,) * (len(pairs.shape) - axes) + data.shape)


def edge_scalar(pairs: Pairs, name: str, reader: str) -> Tensor:
    """`edge.NAME`, which must hold one value an edge."""
    data = edge_data(pairs, name)
    if data.ndim != len(pairs.shape):
        axes = 1 + data.ndim - len(pairs.shape)
        raise ValueError(f"edge.{name} has {axes} axes; {reader} reads one value an edge, [E]")
    return data


def require_integer(data: Tensor, name: str, reader: str) -> Tensor:
    """`data`, which must be integer or boolean to choose a row."""
    if data.is_floating_point():
        raise TypeError(f"{name} is {data.dtype}; {reader} reads integers")
    return data


def require_in_range(bounds: tuple[float, float] | None, low: int, high: int | None, name: str, meaning: str) -> None:
    """Raise where known bounds leave low … high; `meaning` says what has that many rows."""
    if bounds is None:
        return
    if not bounds[0] >= low:  # also a NaN
        raise ValueError(f"{name} holds {bounds[0]}; {meaning}")
    if high is not None and bounds[1] > high:
        raise ValueError(f"{name} holds {bounds[1]}; {meaning}")


def zeros(*shape: int) -> torch.nn.Parameter:
    """A learned table, 0 at the start."""
    return torch.nn.Parameter(torch.zeros(*shape))
