"""What all layers of one forward pass share: where the tokens stand, which are real, and the cache."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnops.biases.base import Bias
from attnops.biases.rotary import Rotary
from attnops.coords import Coords, is_concrete
from attnops.operator import attend
from attnops.patterns.base import Pattern
from attnops.patterns.blocks import BlockMask, GlobalTokens, Mask
from attnops.patterns.edges import Edges
from attnops.patterns.intervals import Causal
from attnops.patterns.segments import Padding, SameSegment
from attnops.seq.embeddings import check_ids

if TYPE_CHECKING:
    from attnops.seq.cache import Cache

CAUSAL = Causal()
SAME_SEGMENT = SameSegment()


@dataclass(eq=False)
class Keys:
    """Where the keys of a layer stand.

    Attributes:
        coords: position (and segment) of each key; None where they stand at 0 … Nk-1 and the new tokens at the end.
        padding: which keys are real; None where all are.
        pattern: what a cache that forgets adds to the layer's pattern; None where it adds nothing.
        window: where one token is new, and all that is held lies within so many positions of it.
        query_coords: where the queries stand if the keys of all rows come as one row, `[1, Hkv, …]`: then so must they.
    """

    coords: Coords | None = None
    padding: Padding | None = None
    pattern: Pattern | None = None
    window: int | None = None
    query_coords: Coords | None = None


@dataclass(eq=False)
class Context:
    """What all layers of one forward pass share.

    Attributes:
        position: of the new tokens, `[N]` or `[B, N]`; real tokens alone are counted.
        coords: the same as `Coords` (with `segment`), where the keys have coords.
        keys: where the keys stand that come from the new tokens themselves (no cache).
        cache: keys and values of the tokens before, if there is one.
        real: which of the new tokens are no padding, bool `[B, N]`; None where all are.
        bias: the relative bias that layers share (T5).
        memory, memory_padding: an encoder's output, which cross-attention reads.
        attend: what self-attention calls; another one where the sequence is divided over processes.
    """

    position: Tensor
    coords: Coords | None = None
    keys: Keys = field(default_factory=Keys)
    cache: Cache | None = None
    real: Tensor | None = None
    bias: Bias | None = None
    memory: Tensor | None = None
    memory_padding: Padding | None = None
    attend: Callable[..., Any] = attend
    _waves: list[tuple[object, tuple[Tensor, Tensor]]] = field(default_factory=list)
    _allowed: list[tuple[Pattern | None, Keys, Pattern | None]] = field(default_factory=list)

    @property
    def query_coords(self) -> Coords:
        """Position (and segment) of the new tokens, as `attend` reads them."""
        if self.coords is None:
            self.coords = Coords(position=self.position)
        return self.coords

    def waves(self, rotary: Rotary, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """cos and ±sin of the new tokens' angles, `[(B), N, 1, dim]`, in float32 at least; once for all layers."""
        law = (rotary.dim, rotary.base, rotary.scaling, rotary.interleaved, dtype)
        for known, waves in self._waves:
            if known == law:
                return waves
        wide = torch.promote_types(dtype, torch.float32)
        cos, sin = rotary.turning_waves(self.position, dtype=wide)
        waves = cos.unsqueeze(-2).to(wide), sin.unsqueeze(-2).to(wide)
        self._waves.append((law, waves))
        return waves

    def allowed(self, pattern: Pattern | None, keys: Keys) -> Pattern | None:
        """The layer's pattern, cut by padding, segments and what the cache adds; once for all layers alike."""
        for known, where, kept in self._allowed:
            if known is pattern and where is keys:
                return kept
        if self.cache is not None and pattern is not None:
            _require_positions(pattern)
        if pattern is not None and any(isinstance(leaf, GlobalTokens) for leaf in pattern.leaves):
            self._require_text_in_rows()
        parts = [pattern, keys.pattern, keys.padding]
        if pattern is CAUSAL and self.position.shape[-1] == 1 and self.cache is not None:
            parts[0] = None  # one new token may see all that is held
        if keys.coords is not None and "segment" in keys.coords:
            parts.append(SAME_SEGMENT)
        allowed: Pattern | None = None
        for part in parts:
            if part is not None:
                allowed = part if allowed is None else allowed & part
        self._allowed.append((pattern, keys, allowed))
        return allowed

    def _require_text_in_rows(self) -> None:
        """Raise where a token's row in the batch is not its place in the text: `GlobalTokens` names rows."""
        if self.coords is not None and "segment" in self.coords:
            raise ValueError("pattern GlobalTokens names rows, which packed documents share; give it one at a time")
        real = self.real
        if real is not None and is_concrete(real) and bool((real[:, 1:] & ~real[:, :-1]).any()):
            raise ValueError("pattern GlobalTokens names rows, and attention_mask pads before a text; pad on the right")


def _require_positions(pattern: Pattern) -> None:
    for leaf in pattern.leaves:
        if isinstance(leaf, GlobalTokens | Mask | BlockMask | Edges):
            raise ValueError(
                f"pattern {type(leaf).__name__} reads storage rows, and with a cache a token's row is not its place in "
                "the text; it must be a pattern of positions (FirstTokens for global tokens at the start)"
            )


def read_context(
    ids: Tensor,
    attention_mask: Tensor | None = None,
    cache: Cache | None = None,
    segments: Tensor | None = None,
    memory: Tensor | None = None,
    memory_padding: Padding | None = None,
) -> Context:
    """Check what came with the ids, and say where each token stands.

    Args:
        attention_mask: 1 = real, 0 = padding, `[B, N]`; with a cache also `[B, length + N]`, from the first token on.
        segments: `[B, N]`, which document of a packed row each token belongs to; positions count anew in each.

    Raises:
        ValueError: a mask or segments of another shape, both a cache and segments, a cache of another batch size.
    """
    check_ids("ids", ids)
    if cache is not None and not hasattr(cache, "begin"):
        raise TypeError(f"cache is {type(cache).__name__}; it must be a Cache (KVCache, RollingCache, PagedCache)")
    batch, count = ids.shape
    real = read_mask(attention_mask, batch, count, cache.length if cache is not None else 0)
    if segments is not None:
        if cache is not None:
            raise ValueError("segments is given with a cache; packed documents are for training, without a cache")
        if not isinstance(segments, Tensor):
            raise TypeError(f"segments is {type(segments).__name__}; it must be a tensor [B, N], as ids")
        if segments.shape != ids.shape:
            raise ValueError(f"segments has shape {list(segments.shape)}; it must be {list(ids.shape)}, as ids")
        position = _positions_in_segments(segments)
        coords = Coords(position=position, segment=segments)
        return Context(position, coords, Keys(coords, None if real is None else Padding(real)), None, real)
    if cache is not None:
        if real is None and attention_mask is not None and cache.real is not None and attention_mask.shape[-1] > count:
            real = attention_mask.bool()  # it calls all real, which the cache may know better
        position = cache.begin(batch, count, real, ids.device)
        new = None if real is None else real[:, -count:]
        return Context(position, None, Keys(), cache, new, None, memory, memory_padding)
    if real is None:
        return Context(torch.arange(count, device=ids.device), None, Keys(), None, None, None, memory, memory_padding)
    position = (real.long().cumsum(-1) - 1).clamp(min=0)
    coords = Coords(position=position)
    return Context(position, coords, Keys(coords, Padding(real)), None, real, None, memory, memory_padding)


def read_mask(mask: Tensor | None, batch: int, count: int, past: int = 0) -> Tensor | None:
    """The mask as bool, or None where every token is real.

    Raises:
        ValueError: a mask of another shape.
    """
    if mask is None:
        return None
    if not isinstance(mask, Tensor):
        raise TypeError(f"attention_mask is {type(mask).__name__}; it must be a tensor [B, N], 1 = real, 0 = padding")
    if mask.shape not in ((batch, count), (batch, past + count)):
        shapes = f"[{batch}, {count}]" + (
            f" or, with the {past} tokens of the cache, [{batch}, {past + count}]" if past else ""
        )
        raise ValueError(f"attention_mask has shape {list(mask.shape)}; it must be {shapes}, as ids")
    if is_concrete(mask) and mask.dtype != torch.bool and mask.numel() and bool(((mask != 0) & (mask != 1)).any()):
        raise ValueError("attention_mask holds values other than 0 and 1; it must be 1 = real, 0 = padding")
    real = mask.bool()
    if is_concrete(real) and bool(real.all()):
        return None
    return real


def _positions_in_segments(segments: Tensor) -> Tensor:
    """0, 1, 2 … anew wherever the segment changes."""
    index = torch.arange(segments.shape[-1], device=segments.device).expand_as(segments)
    starts = torch.ones_like(segments, dtype=torch.bool)
    starts[:, 1:] = segments[:, 1:] != segments[:, :-1]
    return index - torch.where(starts, index, 0).cummax(-1).values
