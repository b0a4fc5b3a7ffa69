"""Patterns over what a token belongs to: its segment, its real or padded row."""

from __future__ import annotations

import torch
from torch import Tensor

from attnops.coords import Coords, is_concrete
from attnops.pairs import Pairs, as_axes
from attnops.patterns.base import Pattern, Ranges
from attnops.patterns.intervals import hull
from attnops.patterns.rows import SortedKeys, one_range, runs


class SameSegment(Pattern):
    """segment_i = segment_j: packed documents, or graphs batched into one, do not see one another.

    Reads the coord `segment`.

    Example:
        >>> import attnops
        >>> attnops.SameSegment() & attnops.Causal()
        SameSegment() & Causal()
    """

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.query.segment == pairs.key.segment

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        query, key = (side.data.get("segment") for side in coords)
        keys = None if query is None or key is None else SortedKeys.of(key)
        if query is None or keys is None:
            return None
        return one_range(keys.below(query, or_at=False), keys.below(query, or_at=True))

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        query, key = (side.data.get("segment") for side in coords)
        if query is None or key is None or query.shape[0] == 0 or not (is_concrete(query) and is_concrete(key)):
            return [(0, num_keys)]
        low, high = torch.aminmax(query[:, queries])
        return hull(((key >= low) & (key <= high)).any(0))


class Padding(Pattern):
    """Keys that are real: j < key_lengths[b], or a bool `[*B, Nk]` that is True where a key is real.

    Reads the key's storage row; a padded row may hold garbage, NaN included.

    Args:
        key_lengths: integer `[*B]`, how many keys of each batch row are real, or bool `[*B, Nk]`.

    Raises:
        TypeError: neither integers nor booleans.
        ValueError: a negative length, or one past Nk; a shape that does not fit the batch.

    Example:
        >>> import torch, attnops
        >>> x = torch.zeros(2, 1, 3, 1)
        >>> value = torch.tensor([1.0, 2.0, float("nan")]).view(1, 1, 3, 1).expand(2, 1, 3, 1)
        >>> attnops.attend(x, x, value, pattern=attnops.Padding(torch.tensor([2, 1])))[:, 0, 0, 0]
        tensor([1.5000, 1.0000])
    """

    def __init__(self, key_lengths: Tensor) -> None:
        if not isinstance(key_lengths, Tensor) or key_lengths.is_floating_point() or key_lengths.is_complex():
            raise TypeError(f"key_lengths is {_kind(key_lengths)}; it must be integer [*B] or bool [*B, Nk]")
        self.key_lengths = key_lengths
        self.longest: int | None = None
        if key_lengths.dtype != torch.bool and key_lengths.numel() and is_concrete(key_lengths):
            low, high = torch.aminmax(key_lengths)
            if low < 0:
                raise ValueError(f"key_lengths holds {int(low)}; a length must be 0 or more")
            self.longest = int(high)

    def allows(self, pairs: Pairs) -> Tensor:
        if self.key_lengths.dtype == torch.bool:
            return pairs.read(self.key_lengths.unsqueeze(-2).unsqueeze(-2))
        lengths = as_axes(self.key_lengths, pairs.batch_shape, 0)
        return pairs.key.index < (lengths[pairs.batch] if lengths.shape[0] > 1 else lengths[0])

    def row_ranges(
        self, coords: tuple[Coords, Coords], batch_shape: tuple[int, ...], num_queries: int, num_keys: int
    ) -> Tensor | None:
        if self.key_lengths.dtype == torch.bool:
            return runs(as_axes(self.key_lengths, batch_shape, 1).unsqueeze(1))
        return one_range(0, as_axes(self.key_lengths, batch_shape, 0).long().unsqueeze(1))

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        if self.key_lengths.dtype == torch.bool and is_concrete(self.key_lengths):
            return hull(self.key_lengths.reshape(-1, num_keys).any(0))
        return [(0, num_keys if self.longest is None else min(num_keys, self.longest))]

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        want: tuple[int, ...] = batch_shape
        if self.key_lengths.dtype == torch.bool:
            want = (*batch_shape, num_keys)
            if self.key_lengths.ndim == 0 or self.key_lengths.shape[-1] != num_keys:
                raise ValueError(
                    f"Padding has shape {list(self.key_lengths.shape)}; a bool padding must be [*B, Nk] = {list(want)}"
                )
        elif self.longest is not None and self.longest > num_keys:
            raise ValueError(f"key_lengths holds {self.longest}; a length must be at most Nk = {num_keys}")
        check_broadcast("Padding", self.key_lengths, want, device)

    def __repr__(self) -> str:
        return (
            f"Padding({'bool' if self.key_lengths.dtype == torch.bool else 'lengths'} {list(self.key_lengths.shape)})"
        )


def check_broadcast(name: str, tensor: Tensor, shape: tuple[int, ...], device: torch.device) -> None:
    """Raise `ValueError` unless `tensor` lies on `device` and broadcasts to `shape` without enlarging it."""
    sizes = tuple(tensor.shape)
    fits = len(sizes) <= len(shape) and all(a in (1, b) for a, b in zip(reversed(sizes), reversed(shape), strict=False))
    if not fits:
        raise ValueError(f"{name} has shape {list(sizes)}; it must broadcast to {list(shape)}")
    if tensor.device != device:
        raise ValueError(f"{name} lies on {tensor.device}; it must lie on {device}, as query, key and value do")


def _kind(value: object) -> str:
    return str(value.dtype) if isinstance(value, Tensor) else type(value).__name__
