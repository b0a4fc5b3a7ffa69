"""Edge lists kept between calls: a graph that layers are called on again is read, rewritten and sorted once.

What is kept belongs to the very tensor that the caller gave, not to its values. It is found by identity, released with
the tensor, and made anew once torch's version counter says that the tensor was edited in place. All layers share it.
An edit in place that goes around the counter (through numpy or `.data`) is not noticed; `forget` drops what is kept.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from attnops.coords import is_concrete
from attnops.patterns import Edges

Made = TypeVar("Made")
ALTERNATIVES = 4  # what is kept of one tensor together with others: a model trains on some and is tested on some


State = tuple[int, Hashable, torch.Size]


def _state(tensor: Tensor) -> State:
    """What changes with an edit: torch's version counter; and, where `.data` is set, where the numbers lie."""
    return tensor._version, tensor.data_ptr() if tensor.layout == torch.strided else None, tensor.shape


class _Kept:
    """What was made from one tensor at one version."""

    def __init__(self, version: State) -> None:
        self.version = version
        self.made: dict[Hashable, Any] = {}
        self.lock = threading.RLock()


_kept: Any = WeakTensorKeyDictionary()
_lock = threading.Lock()


def keeps(tensor: object) -> bool:
    """Whether anything may be kept for a tensor: one whose values and version can be read, outside any transform."""
    if torch.compiler.is_compiling() or not isinstance(tensor, Tensor):
        return False
    if torch._C._functorch.maybe_current_level() is not None:
        return False
    return is_concrete(tensor) and not tensor.is_inference()


def keep(tensor: Any, name: Hashable, make: Callable[[], Made]) -> Made:
    """`make()`, or what it gave before under that name for this very tensor, unedited since.

    What is made must hold no reference to the tensor, or it would never be released.
    """
    if not keeps(tensor):
        return make()
    with _lock:
        kept = _kept.get(tensor)
        if kept is None or kept.version != _state(tensor):
            kept = _kept[tensor] = _Kept(_state(tensor))
    with kept.lock:  # two threads that meet the same new graph sort it once
        if name not in kept.made:
            with torch.inference_mode(False):  # a graph first seen in inference serves training too
                kept.made[name] = make()
        return cast(Made, kept.made[name])


class _Together(NamedTuple):
    """What was made from one tensor and others."""

    others: list[weakref.ref[Tensor]]
    versions: list[State]
    made: Any

    def from_these(self, others: Sequence[Tensor]) -> bool:
        """Whether it was made from these very tensors, unedited since."""
        return len(others) == len(self.others) and all(
            ref() is tensor and version == _state(tensor)
            for ref, version, tensor in zip(self.others, self.versions, others, strict=True)
        )


class _Lists(list[_Together]):
    """What was made from one tensor and several others; a list that can be referred to weakly."""

    def prune(self) -> None:
        self[:] = [each for each in self if all(ref() is not None for ref in each.others)]


def keep_together(tensors: Sequence[Any], name: Hashable, make: Callable[[], Made]) -> Made:
    """As `keep`, of several tensors at once: released with any of them, made anew where any was edited."""
    if not tensors or not all(keeps(tensor) for tensor in tensors):
        return make()
    first, *others = tensors
    lists = keep(first, (name, "together"), _Lists)
    found = next((each for each in lists if each.from_these(others)), None)
    if found is None:
        with torch.inference_mode(False):
            made = make()
        held = weakref.ref(lists)

        def release(_: object) -> None:
            if (kept := held()) is not None:
                kept.prune()

        references = [weakref.ref(tensor, release) for tensor in others]
        found = _Together(references, [_state(tensor) for tensor in others], made)
        lists[:] = [found, *lists[: ALTERNATIVES - 1]]
    return cast(Made, found.made)


def forget() -> None:
    """Drop everything that is kept.

    Example:
        >>> import attnops.graph.edge_cache
        >>> attnops.graph.edge_cache.forget()
    """
    with _lock:
        _kept.clear()


def edges_over(edge_index: Tensor, num_queries: int, num_keys: int, **data: Tensor) -> Edges:
    """`Edges` over a plain `[2, E]`, its ends checked and its sorted forms computed once for each tensor."""
    if not keeps(edge_index):
        return Edges(edge_index, num_queries, num_keys, **data)
    edges = keep(edge_index, ("edges", num_queries, num_keys), lambda: _sorted(edge_index, num_queries, num_keys))
    return edges.with_data(**data) if data else edges


def _sorted(edge_index: Tensor, num_queries: int, num_keys: int) -> Edges:
    edges = Edges(edge_index, num_queries, num_keys)
    edges.sorted()  # while `keep` holds other threads off
    return edges
