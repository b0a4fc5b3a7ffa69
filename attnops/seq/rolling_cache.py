"""The rolling cache: the last tokens, and a few first ones, however long the text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from attnops.checks import require_count, require_positive
from attnops.coords import Coords
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern
from attnops.patterns.intervals import PositionPattern, SlidingWindow
from attnops.patterns.segments import Padding
from attnops.seq.cache import Cache, Held, check_same
from attnops.seq.context import Keys


class FirstTokens(PositionPattern):
    """p_j < count: the first tokens of a text, which attention leans on as sinks.

    Source: Xiao et al. 2024, arXiv:2309.17453.

    Example:
        >>> from attnops import SlidingWindow
        >>> from attnops.seq import FirstTokens
        >>> SlidingWindow(left=63) | FirstTokens(4)
        SlidingWindow(left=63, right=0) | FirstTokens(count=4)
    """

    def __init__(self, count: int) -> None:
        require_positive(count=count)
        self.count = count

    def allows(self, pairs: Pairs) -> Tensor:
        return pairs.key.position + 0 * pairs.query.position < self.count

    def reach(self, low: float, high: float) -> tuple[float, float]:
        return float("-inf"), self.count - 1

    def __repr__(self) -> str:
        return f"FirstTokens(count={self.count})"


class RollingCache(Cache):
    """A cache of the last `window` tokens of a row, and of its first `sinks`; positions stay those of the text.

    2 · layers · B · Hkv · (sinks + window) · D · bytes. A token attends the `window` last ones, itself among them, and
    the sinks: a model whose pattern is `SlidingWindow(window - 1) | FirstTokens(sinks)`, or narrower, gives the same
    with it as without a cache. Any other model sees less with it than without.

    Args:
        window: how many tokens; or one number a layer, None for a layer that holds all.
        sinks: how many first tokens.

    Raises:
        ValueError: a window below 1, or negative sinks.

    Source: Jiang et al. 2023, arXiv:2310.06825; with sinks: Xiao et al. 2024, arXiv:2309.17453.

    Example:
        >>> import torch
        >>> from attnops.seq import Decoder, RollingCache, TransformerConfig
        >>> model = Decoder(TransformerConfig(vocab_size=10, dim=8, layers=2, heads=2)).eval()
        >>> cache = RollingCache(window=3, sinks=1)
        >>> with torch.no_grad():
        ...     for token in range(9):
        ...         logits = model(torch.tensor([[token]]), cache=cache)
        >>> cache.length, cache.memory() == 2 * 2 * 1 * 2 * (1 + 3) * 4 * 4
        (9, True)
    """

    def __init__(self, window: int | Sequence[int | None], sinks: int = 0) -> None:
        super().__init__()
        self.windows: tuple[int | None, ...] = tuple(window) if isinstance(window, list | tuple) else (window,)  # type: ignore[assignment]
        if window is None or not self.windows:
            raise ValueError(f"window is {window!r}; it must be an integer, or one a layer (KVCache holds all)")
        for each in self.windows:
            if each is not None:
                require_positive(window=each)
        require_count(sinks=sinks)
        self.sinks = sinks
        self._tracks = {each: _Track(each, sinks) for each in self.windows}

    def begin(self, batch: int, count: int, real: Tensor | None, device: torch.device) -> Tensor:
        position = super().begin(batch, count, real, device)
        new_real = None if self._new_real is None else self._new_real[:, -count:]
        for track in self._tracks.values():
            track.begin(position.view(-1, count), new_real)
        return position

    def update(self, layer: int, key: Tensor, value: Tensor) -> Held:
        if len(self.windows) > 1 and layer >= len(self.windows):
            raise ValueError(f"window names {len(self.windows)} layers; the model has a layer {layer}")
        window = self.windows[layer] if len(self.windows) > 1 else self.windows[0]
        return self._tracks[window].update(layer, key, value)

    def commit(self) -> None:
        super().commit()
        for track in self._tracks.values():
            track.commit()

    def reorder(self, index: Tensor) -> None:
        super().reorder(index)
        for track in self._tracks.values():
            track.reorder(index)

    def memory(self) -> int:
        return sum(track.memory() for track in self._tracks.values())


class _Track:
    """The layers that share a window. A step changes no tensor, it makes new ones, so a failed one leaves no trace."""

    def __init__(self, window: int | None, sinks: int) -> None:
        self.window, self.sinks = window, sinks
        self.layers: dict[int, tuple[Tensor, Tensor]] = {}  # key and value, each [B, Hkv, held, D]
        self.position: Tensor | None = None  # [B or 1, held]
        self.real: Tensor | None = None  # [B, held], where some token was padding
        self.pattern: Pattern | None = None
        if window is not None:
            reach: Pattern = SlidingWindow(window - 1)
            self.pattern = reach | FirstTokens(sinks) if sinks else reach

    def begin(self, position: Tensor, real: Tensor | None) -> None:
        """Choose what is kept for new tokens at `position [B or 1, N]`, of which `real [B, N]` are no padding."""
        new = position.shape[-1]
        self.new_layers: dict[int, tuple[Tensor, Tensor]] = {}
        self.kept = self.choose(None if self.window is None else self.window - 1)
        self.new_position, self.new_real = position, real
        if self.position is not None:
            rows = max(self.position.shape[0], position.shape[0])
            before = self.kept.of(self.position.expand(rows, -1))
            self.new_position = torch.cat((before, position.expand(rows, -1)), -1)
            if real is not None:
                past = self.position.new_ones(rows, self.position.shape[-1]).bool() if self.real is None else self.real
                self.new_real = torch.cat((self.kept.of(past), real), -1)
        exact = new == 1 and real is None  # then nothing is held that lies before the window
        where = self.new_position if self.new_position.shape[0] > 1 else self.new_position[0]
        self.keys = Keys(
            Coords(position=where),
            None if self.new_real is None else Padding(self.new_real),
            None if exact else self.pattern,
            self.window if exact and not self.sinks else None,
        )

    def update(self, layer: int, key: Tensor, value: Tensor) -> Held:
        if layer in self.layers:
            held = self.layers[layer]
            check_same("key", held[0], key)
            check_same("value", held[1], value)
            key, value = (torch.cat((self.kept.of(x), new), 2) for x, new in zip(held, (key, value), strict=True))
        elif self.layers:
            raise ValueError(f"the cache holds no key of layer {layer}: another model filled it")
        self.new_layers[layer] = key, value
        return Held(key, value, self.keys)

    def commit(self) -> None:
        self.layers, self.position, self.real = self.new_layers, self.new_position, self.new_real
        kept = self.choose(self.window)
        if kept.start:  # after a long step
            self.position = kept.of(self.position)
            self.real = None if self.real is None else kept.of(self.real)
            self.layers = {n: (kept.of(k).contiguous(), kept.of(v).contiguous()) for n, (k, v) in self.layers.items()}

    def choose(self, window: int | None) -> _Kept:
        """The slots of the last `window` real tokens of each row, and of its first `sinks`."""
        if window is None or self.position is None:
            return _Kept()
        held, real = self.position.shape[-1], self.real
        if real is None:
            start = max(0, held - window)
        else:
            to_come = real.flip(-1).cumsum(-1).flip(-1)  # real tokens from a slot to the end
            needed = ((to_come <= window) & real).any(0).nonzero()
            start = int(needed[0]) if len(needed) else held
        if start <= self.sinks:
            return _Kept()
        if not self.sinks:
            return _Kept(start)
        wanted = self.position[:, :start] < self.sinks
        if real is not None:
            wanted = wanted & real[:, :start]
        return _Kept(start, (~wanted).long().argsort(dim=-1, stable=True)[:, : self.sinks])

    def reorder(self, index: Tensor) -> None:
        self.layers = {n: (k.index_select(0, index), v.index_select(0, index)) for n, (k, v) in self.layers.items()}
        if self.position is not None and self.position.shape[0] > 1:
            self.position = self.position.index_select(0, index)
        self.real = None if self.real is None else self.real.index_select(0, index)

    def memory(self) -> int:
        return sum(x.numel() * x.element_size() for pair in self.layers.values() for x in pair)


class _Kept(NamedTuple):
    """Slots from `start` on, and before them `sinks [B or 1, s]` of the others."""

    start: int = 0
    sinks: Tensor | None = None

    def of(self, x: Tensor) -> Tensor:
        """The kept slots of `x [B, held]` or `[B, Hkv, held, D]`."""
        if self.start == 0:
            return x
        axis = 1 if x.ndim == 2 else 2
        last = x.narrow(axis, self.start, x.shape[axis] - self.start)
        if self.sinks is None:
            return last
        index = self.sinks if x.ndim == 2 else self.sinks[:, None, :, None]
        return torch.cat((torch.take_along_dim(x.narrow(axis, 0, self.start), index, axis), last), axis)
