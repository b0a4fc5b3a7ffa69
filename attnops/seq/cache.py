"""Caches: keys and values of the tokens before, so that a new token costs one step."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnops.checks import require_count
from attnops.coords import Coords
from attnops.patterns.segments import Padding
from attnops.seq.context import Keys


class Held(NamedTuple):
    """What a layer attends in this step: keys and values before and new, and where they stand."""

    key: Tensor
    value: Tensor
    keys: Keys


class Cache:
    """What every cache does: a step is begun, each layer adds to it, and it counts once it is committed.

        position = cache.begin(batch, count, real, device)   # checks; where the new tokens stand
        held = cache.update(layer, key, value)               # in every layer: what it may attend
        cache.commit()                                       # the step counts from now on

    A step that fails in between was never committed, so the next `begin` starts where the last commit ended.

    Attributes:
        length: tokens a row was given so far, padding included.
    """

    def __init__(self) -> None:
        self.length = 0
        self.batch: int | None = None
        self.real: Tensor | None = None  # [B, length], where some token was padding
        self._new = 0
        self._new_real: Tensor | None = None  # [B, length + new]
        self.cross: dict[int, tuple[Tensor, Tensor]] = {}  # keys and values of an encoder's output, a layer

    def begin(self, batch: int, count: int, real: Tensor | None, device: torch.device) -> Tensor:
        """Positions of `count` new tokens in each of `batch` rows, `[N]` or `[B, N]`.

        Args:
            real: bool `[B, N]`, or `[B, length + N]` with the tokens before; None where all are real.

        Raises:
            ValueError: another batch size than before; a mask that calls a token before something else.
        """
        if self.batch is not None and batch != self.batch:
            raise ValueError(f"ids has {batch} rows; this cache holds {self.batch} (cache.reorder changes rows)")
        self._new, self._rows = count, batch
        if real is None and self.real is None:
            self._new_real = None
            return torch.arange(self.length, self.length + count, device=device)
        past = self.real
        if past is None:
            past = torch.ones(batch, self.length, dtype=torch.bool, device=device)
        if real is None:
            real = torch.ones(batch, count, dtype=torch.bool, device=device)
        if real.shape[-1] == count:
            real = torch.cat((past, real), -1)
        elif not torch.equal(real[:, : self.length], past):
            raise ValueError("attention_mask differs from before in tokens that the cache holds already")
        self._new_real = real
        return (real.long().cumsum(-1) - 1).clamp(min=0)[:, -count:]

    def update(self, layer: int, key: Tensor, value: Tensor) -> Held:
        """Add this step's keys and values `[B, Hkv, N, D]` of a layer; all that it may attend now."""
        raise NotImplementedError

    @property
    def has_one_row(self) -> bool:
        """Whether `update_one_row` does anything of its own."""
        return type(self).update_one_row is not Cache.update_one_row

    def update_one_row(self, layer: int, key: Tensor, value: Tensor) -> Held:
        """The same for a layer that reads positions alone: a cache may lay the keys of all rows in one (pages do)."""
        return self.update(layer, key, value)

    def commit(self) -> None:
        """The step is done."""
        self.length += self._new
        self.batch, self.real = self._rows, self._new_real
        self._new = 0

    def reorder(self, index: Tensor) -> None:
        """Row r continues what row `index[r]` held: beams that fork and end; another number of rows is allowed.

        Raises:
            ValueError: a row that the cache does not hold.
        """
        for row in index.tolist():
            if not 0 <= row < (self.batch or 0):
                raise ValueError(f"index holds {row}; this cache holds {self.batch or 0} rows, counted from 0")
        self.cross = {n: (k.index_select(0, index), v.index_select(0, index)) for n, (k, v) in self.cross.items()}
        self.real = None if self.real is None else self.real.index_select(0, index)
        self.batch = len(index)

    def memory(self) -> int:
        """Bytes of the keys and values that are held."""
        raise NotImplementedError


class KVCache(Cache):
    """A cache that grows: every key and value, in one buffer a layer.

    2 · layers · B · Hkv · length · D · bytes.

    Args:
        capacity: tokens to make room for at once; the buffers grow by themselves past it.

    Raises:
        ValueError: a capacity below 0; another batch size, or keys of another shape or dtype, than it holds.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, KVCache, TransformerConfig
        >>> model = Decoder(TransformerConfig(vocab_size=10, dim=8, layers=2, heads=2)).eval()
        >>> cache, ids = KVCache(), torch.tensor([[1, 2, 3, 4]])
        >>> with torch.no_grad():
        ...     steps = torch.cat([model(ids[:, :3], cache=cache), model(ids[:, 3:], cache=cache)], 1)
        ...     print(torch.allclose(steps, model(ids), atol=1e-6), cache.length, cache.memory())
        True 4 512
    """

    def __init__(self, capacity: int = 0) -> None:
        require_count(capacity=capacity)
        super().__init__()
        self.capacity = capacity
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}
        self._keys = Keys()

    def begin(self, batch: int, count: int, real: Tensor | None, device: torch.device) -> Tensor:
        position = super().begin(batch, count, real, device)
        self._keys = Keys()
        if self._new_real is not None:
            everywhere = (self._new_real.long().cumsum(-1) - 1).clamp(min=0)
            self._keys = Keys(Coords(position=everywhere), Padding(self._new_real))
        return position

    def update(self, layer: int, key: Tensor, value: Tensor) -> Held:
        end = self.length + self._new
        keys, values = self._layers.get(layer, (None, None))
        keys = append("key", keys, key, self.length, self.capacity)
        values = append("value", values, value, self.length, self.capacity)
        self._layers[layer] = keys, values
        return Held(keys[:, :, :end], values[:, :, :end], self._keys)

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        self._layers = {n: (k.index_select(0, index), v.index_select(0, index)) for n, (k, v) in self._layers.items()}

    def memory(self) -> int:
        return sum(
            tensor[:, :, : self.length].numel() * tensor.element_size()
            for pair in self._layers.values()
            for tensor in pair
        )


def append(name: str, buffer: Tensor | None, new: Tensor, start: int, capacity: int) -> Tensor:
    """`buffer [B, H, capacity, D]` with `new [B, H, N, D]` at `start`; a larger one where it does not fit.

    Raises:
        ValueError: vectors of another shape or dtype than the buffer holds.
    """
    end = start + new.shape[2]
    if start > 0 and buffer is None:
        raise ValueError(f"the cache holds {start} tokens, but no {name} of this layer: another model filled it")
    if start == 0 and buffer is not None and not are_alike(buffer, new):
        buffer = None  # left by a step that was never committed
    if buffer is not None:
        check_same(name, buffer, new)
    if new.requires_grad:  # a gradient must find each step's tensors as they were
        return new if buffer is None or start == 0 else torch.cat((buffer[:, :, :start], new), 2)
    if buffer is None or buffer.shape[2] < end:
        room = max(capacity, end if buffer is None else 2 * end)
        larger = new.new_empty(*new.shape[:2], room, new.shape[3])
        if buffer is not None:
            larger[:, :, :start] = buffer[:, :, :start]
        buffer = larger
    buffer[:, :, start:end] = new
    return buffer


def check_same(name: str, held: Tensor, new: Tensor) -> None:
    """Raise `ValueError` unless `new [B, H, N, D]` may stand behind what a cache holds of a layer."""
    if not are_alike(held, new):
        wanted, given = (*held.shape[:2], held.shape[3]), (*new.shape[:2], new.shape[3])
        raise ValueError(
            f"this step's {name} has [B, H, D] = {list(given)}, {new.dtype}, {new.device}; the cache holds "
            f"{list(wanted)}, {held.dtype}, {held.device}"
        )


def are_alike(held: Tensor, new: Tensor) -> bool:
    """Whether two `[B, H, N, D]` may stand one behind the other."""
    shapes = held.shape[:2] == new.shape[:2] and held.shape[3] == new.shape[3]
    return shapes and held.dtype == new.dtype and held.device == new.device
