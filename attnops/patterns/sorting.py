"""An edge list in the order of its targets, and that order's transpose."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from attnops.coords import is_concrete
from attnops.kernels import library, sorting


class Sorted(NamedTuple):
    """An edge list in the order of its targets (CSR), and how its sources group in that order (its transpose)."""

    pointer: Tensor  # [Nq + 1]: places pointer[i] … pointer[i+1] hold the edges of target i
    order: Tensor  # [E]: the caller's edge at each place; stable
    place: Tensor  # [E]: the place of each of the caller's edges
    target: Tensor  # [E]: the target at each place, ascending
    source: Tensor  # [E]: the source at each place
    source_pointer: Tensor  # [Nk + 1]: source_order[source_pointer[j] …] are the places whose source is j
    source_order: Tensor  # [E]
    source_place: Tensor  # [E]: the inverse of source_order


def sort_edges(source: Tensor, target: Tensor, num_queries: int, num_keys: int) -> Sorted:
    """Group edges by target, and the result by source, keeping order inside a group."""
    if is_concrete(source) and is_concrete(target):
        return Sorted(*_sorted_now(source, target, num_queries, num_keys))
    if torch.compiler.is_compiling() and not torch.compiler.is_exporting():
        return Sorted(*_sorted_later(source, target, num_queries, num_keys))
    return _by_torch(source, target, num_queries, num_keys)


def _sorted_now(source: Tensor, target: Tensor, num_queries: int, num_keys: int) -> list[Tensor]:
    if source.device.type == "cpu" and library.unavailable() is None:
        return sorting.sort_edges(source, target, num_queries, num_keys)
    return list(_by_torch(source, target, num_queries, num_keys))


_sorted_later = torch.library.custom_op("attnops::sort_edges", _sorted_now, mutates_args=())


@_sorted_later.register_fake
def _(source: Tensor, target: Tensor, num_queries: int, num_keys: int) -> list[Tensor]:
    edges = source.shape[0]
    sizes = (num_queries + 1, edges, edges, edges, edges, num_keys + 1, edges, edges)
    return [source.new_empty(size, dtype=torch.int64) for size in sizes]


def _by_torch(source: Tensor, target: Tensor, num_queries: int, num_keys: int) -> Sorted:
    target, order = torch.sort(target.long(), stable=True)
    source = source.long()[order]
    ascending, source_order = torch.sort(source, stable=True)
    return Sorted(
        pointer=torch.searchsorted(target, torch.arange(num_queries + 1, device=target.device)),
        order=order,
        place=_inverse(order),
        target=target,
        source=source,
        source_pointer=torch.searchsorted(ascending, torch.arange(num_keys + 1, device=source.device)),
        source_order=source_order,
        source_place=_inverse(source_order),
    )


def _inverse(order: Tensor) -> Tensor:
    return torch.empty_like(order).index_copy(0, order, torch.arange(order.shape[0], device=order.device))
