"""Named data that tokens and nodes carry: positions, segments, types, and any name of the user's own."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.autograd import forward_ad

INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
COORD_DTYPES = (*INTEGERS, torch.bool, torch.float16, torch.bfloat16, torch.float32, torch.float64)


_PROXY, _FAKE = torch._C._TorchDispatchModeKey.PROXY, torch._C._TorchDispatchModeKey.FAKE


def is_traced() -> bool:
    """Whether a tracer watches: compile, export, torch.jit.trace, make_fx, a fake mode."""
    return (
        torch.compiler.is_compiling()
        or torch._C._get_tracing_state() is not None
        or torch._C._get_dispatch_mode(_PROXY) is not None
        or torch._C._get_dispatch_mode(_FAKE) is not None
    )


def is_transformed(device: str) -> bool:
    """Whether autocast, a transform of torch.func or forward mode stands between a call and its numbers."""
    return (
        torch.is_autocast_enabled(device)
        or torch._C._functorch.maybe_current_level() is not None
        or forward_ad._current_level >= 0
    )


def is_concrete(tensor: Tensor) -> bool:
    """Whether the values of `tensor` can be read now: not under a tracer or vmap."""
    if is_traced():
        return False
    if torch._C._functorch.maybe_current_level() is not None and torch._C._functorch.is_functorch_wrapped_tensor(
        tensor
    ):
        return False
    return type(tensor) in (Tensor, torch.nn.Parameter) and tensor.device.type != "meta"


def _widened(tensor: Tensor) -> Tensor:
    """int64 for integers, float32 at least for reals: a difference of two uint8 wraps, one of two bfloat16 rounds."""
    if tensor.is_floating_point():
        return tensor.float() if tensor.dtype in (torch.float16, torch.bfloat16) else tensor
    return tensor if tensor.dtype in (torch.bool, torch.int64) else tensor.long()


class Coords:
    """Named tensors that tokens or nodes carry, one value per token.

    Every tensor is `[N]` or `[*B, N]`, integer or real; integers are held as int64 and halves as float32, so that
    differences neither wrap nor round. `index` (the storage row, 0 … N-1) and `position` are always
    there; a position that is not given is the end-aligned index: keys 0 … Nk-1, queries Nk-Nq … Nk-1.

    Args:
        **data: tensors by name. `position` is read by most patterns and biases, `segment` by `SameSegment`, `type` by
            `TypePrior`, `time` by `TimeGap`; other names serve patterns and biases of your own.

    Raises:
        ValueError: a NaN position, lengths that differ, a tensor without a token axis, the reserved name `index`.
        TypeError: a value that is not an integer, boolean or real tensor.

    Example:
        >>> import torch, attnops
        >>> tokens = attnops.Coords(position=torch.tensor([0, 1, 0]), segment=torch.tensor([0, 0, 1]))
        >>> tokens.names
        ('position', 'segment')
        >>> tokens.segment
        tensor([0, 0, 1])
    """

    def __init__(self, **data: Tensor) -> None:
        self.data: dict[str, Tensor] = {}
        self.offset = 0  # position - index, where no position is given
        self._bounds: dict[str, tuple[float, float]] = {}
        self._finite: dict[str, bool] = {}
        length: int | None = None
        for name, tensor in data.items():
            if not isinstance(tensor, Tensor):
                raise TypeError(f"coords.{name} is a {type(tensor).__name__}; it must be a tensor [N] or [*B, N]")
            if name == "index":
                raise ValueError("coords.index is the storage row and cannot be given; name yours otherwise")
            if tensor.layout != torch.strided:
                raise TypeError(f"coords.{name} is {tensor.layout}; it must be a strided tensor")
            if tensor.dtype not in COORD_DTYPES or (name == "position" and tensor.dtype == torch.bool):
                kinds = "integer or real" if name == "position" else "integer, boolean or real"
                raise TypeError(f"coords.{name} is {tensor.dtype}; it must be {kinds}, of 16 bits or more if real")
            if tensor.ndim == 0:
                raise ValueError(f"coords.{name} is a scalar; it must be [N] or [*B, N]")
            if length is not None and tensor.shape[-1] != length:
                raise ValueError(f"coords.{name} has {tensor.shape[-1]} tokens; the other coords have {length}")
            length = tensor.shape[-1]
            self._inspect(name, tensor)
            self.data[name] = _widened(tensor)
        self.length = length

    def _inspect(self, name: str, tensor: Tensor) -> None:
        """Read values once, when they can be read, so that no call needs to read them again."""
        if not is_concrete(tensor) or tensor.numel() == 0:
            return
        if tensor.is_floating_point():
            self._finite[name] = bool(torch.isfinite(tensor).all())
            if name == "position" and not self._finite[name] and bool(torch.isnan(tensor).any()):
                raise ValueError("coords.position holds a NaN; every position must be a number")
        elif tensor.dtype != torch.bool:
            low, high = torch.aminmax(tensor)
            self._bounds[name] = (int(low), int(high))

    @property
    def names(self) -> tuple[str, ...]:
        """The names given, in order."""
        return tuple(self.data)

    def __getattr__(self, name: str) -> Tensor:
        data = self.__dict__.get("data", {})
        if name in data:
            tensor: Tensor = data[name]
            return tensor
        raise AttributeError(f"coords carry no {name!r}; they carry {', '.join(data) or 'nothing'}")

    def __contains__(self, name: str) -> bool:
        return name in self.data

    def __repr__(self) -> str:
        return f"Coords({', '.join(f'{name}={list(t.shape)}' for name, t in self.data.items())})"

    def bounds(self, name: str) -> tuple[float, float] | None:
        """The least and the largest value of an integer coord, or None where they could not be read."""
        return self._bounds.get(name)

    def finite(self, name: str) -> bool:
        """Whether a coord is known to hold no NaN and no infinity (an integer never does)."""
        return name not in self.data or not self.data[name].is_floating_point() or self._finite.get(name, False)

    def to(self, device: torch.device | str) -> Coords:
        """The same coords on another device."""
        return self._replace({name: tensor.to(device) for name, tensor in self.data.items()})

    def _replace(self, data: dict[str, Tensor]) -> Coords:
        """A copy with other tensors that hold the same values, so nothing is inspected again."""
        copy = Coords()
        copy.data, copy.offset, copy.length = data, self.offset, self.length
        copy._bounds, copy._finite = self._bounds, self._finite
        return copy

    def with_position(self, length: int, device: torch.device) -> Coords:
        """A copy whose `position` is a tensor, whether or not it was given."""
        if "position" in self.data:
            return self
        position = torch.arange(self.offset, self.offset + length, device=device)
        return self._replace({**self.data, "position": position})


def resolve_coords(
    coords: Coords | tuple[Coords, Coords] | None,
    batch_shape: tuple[int, ...],
    num_queries: int,
    num_keys: int,
    device: torch.device,
) -> tuple[Coords, Coords]:
    """The coords of queries and of keys, checked: tensors `[1, N]` or `[B, N]`, B flat, positions end-aligned."""
    if coords is None:
        query, key = Coords(), Coords()
        query.offset = num_keys - num_queries
        return query, key
    query, key = as_pair(coords)
    if isinstance(coords, Coords) and num_queries != num_keys:
        raise ValueError(
            f"coords is one Coords for {num_queries} queries and {num_keys} keys; where counts differ it must be a "
            "pair (query coords, key coords)"
        )
    flat_query = _flatten(query, "query", batch_shape, num_queries, device)
    flat_key = flat_query if query is key else _flatten(key, "key", batch_shape, num_keys, device)
    if num_queries != num_keys and "position" not in flat_query:
        flat_query.offset = num_keys - num_queries
    return flat_query, flat_key


def as_pair(coords: Coords | tuple[Coords, Coords]) -> tuple[Coords, Coords]:
    """The coords of queries and of keys, as a caller gives them; raises `TypeError` for anything else."""
    if isinstance(coords, Coords):
        return coords, coords
    if isinstance(coords, tuple) and len(coords) == 2 and all(isinstance(side, Coords) for side in coords):
        return coords
    raise TypeError(f"coords is {type(coords).__name__}; it must be a Coords or a pair (Coords, Coords)")


def _flatten(coords: Coords, side: str, batch_shape: tuple[int, ...], length: int, device: torch.device) -> Coords:
    data = {}
    for name, tensor in coords.data.items():
        if tensor.shape[-1] != length:
            raise ValueError(f"coords.{name} of the {side} side has {tensor.shape[-1]} tokens; it must have {length}")
        if tensor.device != device:
            raise ValueError(f"coords.{name} lies on {tensor.device}; query, key and value lie on {device}")
        lead = tuple(tensor.shape[:-1])
        if all(size == 1 for size in lead):
            data[name] = tensor.reshape(1, length)
            continue
        if len(lead) > len(batch_shape) or any(
            a not in (1, b) for a, b in zip(reversed(lead), reversed(batch_shape), strict=False)
        ):
            raise ValueError(
                f"coords.{name} of the {side} side has batch shape {list(lead)}; it must be [N] or broadcast to the "
                f"batch {list(batch_shape)} of the query"
            )
        data[name] = tensor.expand(*batch_shape, length).reshape(math.prod(batch_shape), length)
    return coords._replace(data)
