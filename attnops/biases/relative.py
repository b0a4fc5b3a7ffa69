"""Learned relative positions: T5's buckets, and Shaw's keys."""

from __future__ import annotations

import math
from bisect import bisect_left

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.gaps import clipped_gap
from attnops.biases.precision import accumulation_dtype, no_autocast
from attnops.biases.tables import read_table, zeros
from attnops.biases.terms import Term, by_difference
from attnops.checks import require_flag, require_positive
from attnops.coords import Coords
from attnops.pairs import Pairs


class RelativeBias(Bias):
    """b_ij = weight[bucket(p_j - p_i), h]: T5's buckets, exact when near and logarithmic when far.

    Args:
        heads: H.
        buckets: how many rows the table has. max_distance: from here on, all share the last bucket.
        bidirectional: half of the buckets for keys ahead (encoders); else keys ahead share bucket 0 (decoders).

    Parameter: `weight [buckets, heads]`, 0 at the start. Real positions: the difference is cut toward 0.

    Raises:
        ValueError: too few buckets (4, or 2 in one direction), or a max_distance that the exact buckets already reach.

    Source: Raffel et al. 2020, arXiv:1910.10683; buckets equal those of transformers' T5.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(2, 5, 8)                                              # [H, N, D]
        >>> attnops.attend(x, x, x, bias=attnops.RelativeBias(2)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, heads: int, buckets: int = 32, max_distance: int = 128, bidirectional: bool = True) -> None:
        super().__init__()
        require_positive(heads=heads, buckets=buckets, max_distance=max_distance)
        require_flag(bidirectional=bidirectional)
        least = 4 if bidirectional else 2
        if buckets < least:
            raise ValueError(f"buckets is {buckets}; it must be {least} or more with bidirectional={bidirectional}")
        self.side = buckets // 2 if bidirectional else buckets  # buckets in one direction
        self.exact = self.side // 2
        if max_distance <= self.exact:
            raise ValueError(f"max_distance is {max_distance}; it must exceed {self.exact}, where exact buckets end")
        self.heads: int = heads
        self.buckets, self.max_distance, self.bidirectional = buckets, max_distance, bidirectional
        self.starts = self._starts()
        self.weight = zeros(buckets, heads)

    @property
    def reach(self) -> float | None:
        return self.max_distance

    def _starts(self) -> tuple[int, ...]:
        """The least distance of each logarithmic bucket but the first: T5's float32 formula, evaluated once.

        A logarithm in `forward` could fall on either side of a bucket's edge from one backend to the next.
        """

        def bucket(distance: int) -> int:
            share = torch.log(torch.tensor([float(distance)], device="cpu") / self.exact) / math.log(
                self.max_distance / self.exact
            )
            return self.exact + int((share * (self.side - self.exact)).to(torch.long))

        distances = range(self.exact, self.max_distance)
        return tuple(
            distances.start + bisect_left(distances, row, key=bucket) for row in range(self.exact + 1, self.side)
        )

    def bucket(self, query_position: Tensor, key_position: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
        """The row of the table for each pair of positions, int64."""
        ahead = clipped_gap(key_position, query_position, self.max_distance, dtype)
        distance = ahead.abs() if self.bidirectional else -ahead.clamp(max=0)
        bucket = distance.clamp(max=self.exact)
        for start in self.starts:
            bucket = bucket + (distance >= start)
        return bucket + self.side * (ahead > 0) if self.bidirectional else bucket

    def forward(self, pairs: Pairs) -> Tensor:
        return read_table(self.weight, self.bucket(pairs.query.position, pairs.key.position, pairs.dtype), pairs)

    def extra_repr(self) -> str:
        sizes = f"heads={self.heads}, buckets={self.buckets}, max_distance={self.max_distance}"
        return f"{sizes}, bidirectional={self.bidirectional}"


class RelativeKeys(Bias):
    """b_ij = q_i · weight[h, clip(p_j - p_i, -m, m) + m] / √dim: Shaw's relative keys, m = max_distance.

    It needs the query's content: `bind` multiplies each query with all 2m + 1 rows once, `forward` reads the products.

    Args:
        heads: H. dim: D of query and key. max_distance: m.

    Parameter: `weight [heads, 2·max_distance + 1, dim]`, 0 at the start. Real positions: the difference is cut toward
    0.

    Raises:
        ValueError: a query of other heads or dim than declared.

    Source: Shaw, Uszkoreit, Vaswani 2018, arXiv:1803.02155.

    Example:
        >>> import torch, attnops
        >>> x = torch.randn(2, 5, 8)                                              # [H, N, D]
        >>> attnops.attend(x, x, x, bias=attnops.RelativeKeys(2, dim=8, max_distance=3)).shape
        torch.Size([2, 5, 8])
    """

    def __init__(self, heads: int, dim: int, max_distance: int) -> None:
        super().__init__()
        require_positive(heads=heads, dim=dim, max_distance=max_distance)
        self.heads: int = heads
        self.dim, self.max_distance = dim, max_distance
        self.weight = zeros(heads, 2 * max_distance + 1, dim)

    def bind(self, query: Tensor, key: Tensor) -> Bias:
        """The bias of these queries, `query [B, H, Nq, D]`."""
        if query.shape[-1] != self.dim or query.shape[-3] != self.heads:
            raise ValueError(
                f"query has {query.shape[-3]} heads and D = {query.shape[-1]}; RelativeKeys has heads={self.heads}, "
                f"dim={self.dim}"
            )
        dtype = accumulation_dtype(query)
        usable = torch.isfinite(query.detach()).all(
            -1, keepdim=True
        )  # garbage in a row must not reach the weight's gradient
        with no_autocast(query.device):
            products = query.where(usable, 0).to(dtype) @ (self.weight.to(dtype) / math.sqrt(self.dim)).transpose(
                -1, -2
            )
        table = products.where(usable, math.nan)
        return BoundRelativeKeys(table, self.max_distance)

    def forward(self, pairs: Pairs) -> Tensor:
        raise RuntimeError("RelativeKeys adds q·r, so it must be bound to the query first: bias.bind(query, key)")

    def extra_repr(self) -> str:
        return f"heads={self.heads}, dim={self.dim}, max_distance={self.max_distance}"


class BoundRelativeKeys(Bias):
    """b_ij = table[b, h, i, clip(p_j - p_i) + m]: what `RelativeKeys` adds for one call's queries.

    `table [B, H, Nq, 2m + 1]` is an attribute, so that a backend can pass it on.
    """

    table: Tensor

    def __init__(self, table: Tensor, max_distance: int) -> None:
        super().__init__()
        self.table, self.max_distance = table, max_distance

    def forward(self, pairs: Pairs) -> Tensor:
        most, table = self.max_distance, self.table.to(pairs.dtype)
        column = clipped_gap(pairs.key.position, pairs.query.position, most, pairs.dtype) + most
        if not pairs.shape:
            return table[pairs.batch, pairs.head, pairs.query.index, column]
        # torch.gather walks along one row; indexing by four tensors looks each number up anew, and is slower.
        if len(pairs.shape) == 4:
            return table[:, :, pairs.queries].gather(-1, column.expand(pairs.shape))
        cell = pairs.query.index * (2 * most + 1) + column
        return table.flatten(2).gather(-1, cell.expand(pairs.shape))

    def term(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Term | None:
        return by_difference(self.table, self.max_distance, coords, num_queries, num_keys)
