"""Patterns given as tables: a mask, a mask of blocks, a set of global tokens."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from attnops.checks import require_positive
from attnops.coords import Coords, is_concrete
from attnops.pairs import Pairs, as_four_axes
from attnops.patterns.base import Pattern, Ranges, unite_ranges
from attnops.patterns.rows import MOST_RANGES, runs
from attnops.patterns.segments import check_broadcast


class Mask(Pattern):
    """A bool tensor that broadcasts to `[*B, H, Nq, Nk]`: True = may attend.

    Raises:
        TypeError: a tensor that is not bool (a float mask is a bias: pass it as `bias=`).
        ValueError: a shape that does not broadcast.

    Example:
        >>> import torch, attnops
        >>> attnops.Mask(torch.ones(4, 4).tril().bool())
        Mask([4, 4])
    """

    def __init__(self, mask: Tensor) -> None:
        if not isinstance(mask, Tensor) or mask.dtype != torch.bool:
            kind = mask.dtype if isinstance(mask, Tensor) else type(mask).__name__
            raise TypeError(
                f"mask is {kind}; it must be a bool tensor, True = may attend (give an additive mask as bias=)"
            )
        self.mask = mask

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.read(self.mask)

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        check_broadcast("mask", self.mask, (*batch_shape, heads, num_queries, num_keys), device)

    def __repr__(self) -> str:
        return f"Mask({list(self.mask.shape)})"


class BlockMask(Pattern):
    """A bool per block of pairs: query i may attend key j where `blocks[⌊i / block_size⌋, ⌊j / block_size⌋]`.

    Args:
        blocks: bool, broadcasts to `[*B, H, ⌈Nq / block_size⌉, ⌈Nk / block_size⌉]`.
        block_size: rows (and columns) of one block.

    Raises:
        TypeError: blocks that are not bool.
        ValueError: a table made for other lengths, a block size below 1.

    Example:
        >>> import torch, attnops
        >>> attnops.BlockMask(torch.eye(2).bool(), block_size=64)
        BlockMask([2, 2], block_size=64)
    """

    def __init__(self, blocks: Tensor, block_size: int) -> None:
        if not isinstance(blocks, Tensor) or blocks.dtype != torch.bool or blocks.ndim < 2:
            kind = f"{blocks.dtype} {list(blocks.shape)}" if isinstance(blocks, Tensor) else type(blocks).__name__
            raise TypeError(f"blocks is {kind}; it must be a bool tensor [..., query blocks, key blocks]")
        require_positive(block_size=block_size)
        self.blocks, self.block_size = blocks, block_size

    def allows(self, pairs: Pairs) -> Tensor:
        blocks = as_four_axes(self.blocks, pairs.batch_shape)
        query, key = pairs.query.index // self.block_size, pairs.key.index // self.block_size
        if len(pairs.shape) == 4:
            return blocks[:, :, query.flatten()][:, :, :, key.flatten()]
        batch = pairs.batch if blocks.shape[0] > 1 else torch.zeros_like(pairs.batch)
        head = pairs.head if blocks.shape[1] > 1 else torch.zeros_like(pairs.head)
        return blocks[batch, head, query, key]

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        blocks = as_four_axes(self.blocks, batch_shape)
        ranges = runs(blocks[:, 0]) if blocks.shape[1] == 1 else None
        if ranges is None:
            return None
        rows = (ranges * self.block_size).clamp(max=num_keys)
        return rows.repeat_interleave(self.block_size, 1)[:, :num_queries]

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        if not is_concrete(self.blocks) or queries.start >= queries.stop:
            return [(0, num_keys)]
        size = self.block_size
        rows = self.blocks[..., queries.start // size : (queries.stop - 1) // size + 1, :]
        columns = rows.reshape(-1, rows.shape[-1]).any(0).nonzero().flatten().tolist()
        return unite_ranges([], [(column * size, min(num_keys, column * size + size)) for column in columns])

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        query_blocks, key_blocks = -(-num_queries // self.block_size), -(-num_keys // self.block_size)
        if tuple(self.blocks.shape[-2:]) != (query_blocks, key_blocks):
            raise ValueError(
                f"BlockMask has {list(self.blocks.shape[-2:])} blocks of {self.block_size}; {num_queries} queries and "
                f"{num_keys} keys need [{query_blocks}, {key_blocks}]"
            )
        check_broadcast("BlockMask", self.blocks, (*batch_shape, heads, query_blocks, key_blocks), device)

    def __repr__(self) -> str:
        return f"BlockMask({list(self.blocks.shape)}, block_size={self.block_size})"


class GlobalTokens(Pattern):
    """Rows that see everything and that everything sees: i ∈ index or j ∈ index (Longformer, with a window by `|`).

    Args:
        index: storage rows, a sequence of ints or an integer tensor `[G]`.

    Raises:
        TypeError: an index that is not of integers.
        ValueError: a negative row, or one past both queries and keys.

    Example:
        >>> import attnops
        >>> attnops.SlidingWindow(2, 2) | attnops.GlobalTokens([0])
        SlidingWindow(left=2, right=2) | GlobalTokens([0])
    """

    def __init__(self, index: Tensor | Sequence[int]) -> None:
        if not isinstance(index, Tensor | Sequence) or isinstance(index, str):
            raise TypeError(f"index is {index!r}; it must be a sequence of ints or an integer tensor [G]")
        rows = index if isinstance(index, Tensor) else torch.tensor(list(index))
        rows = rows.long() if rows.numel() == 0 else rows
        if rows.is_floating_point() or rows.is_complex() or rows.dtype == torch.bool or rows.ndim != 1:
            raise TypeError(f"index is {rows.dtype} {list(rows.shape)}; it must be integers [G]")
        if not is_concrete(rows):
            raise ValueError("index must hold values that can be read: build GlobalTokens outside the traced function")
        self.index = sorted(set(rows.tolist()))
        if self.index and self.index[0] < 0:
            raise ValueError(f"index holds {self.index[0]}; a storage row must be 0 or more")
        table = torch.zeros(self.index[-1] + 1 if self.index else 1, dtype=torch.bool)
        table[self.index] = True
        self._is_global = table.to(rows.device)

    def _contains(self, rows: Tensor) -> Tensor:
        last = self._is_global.shape[0] - 1
        return self._is_global.to(rows.device)[rows.clamp(max=last)] & (rows <= last)

    def allows(self, pairs: Pairs) -> Tensor:
        return self._contains(pairs.query.index) | self._contains(pairs.key.index)

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        columns = unite_ranges([], [(row, row + 1) for row in self.index if row < num_keys])
        if len(columns) > MOST_RANGES:
            return None
        ranges = torch.tensor(columns or [(0, 0)]).expand(num_queries, -1, -1).clone()
        rows = [row for row in self.index if row < num_queries]
        ranges[rows, 0] = torch.tensor([0, num_keys])
        return ranges.unsqueeze(0)

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        if any(queries.start <= row < queries.stop for row in self.index):
            return [(0, num_keys)]
        return unite_ranges([], [(row, row + 1) for row in self.index if row < num_keys])

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        return min(num_queries * num_keys, len(self.index) * (num_queries + num_keys))

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        if self.index and self.index[-1] >= max(num_queries, num_keys):
            raise ValueError(
                f"GlobalTokens index holds {self.index[-1]}; it must be below {max(num_queries, num_keys)} "
                f"({num_queries} queries, {num_keys} keys)"
            )

    def __repr__(self) -> str:
        return f"GlobalTokens({self.index})"
