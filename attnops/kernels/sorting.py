"""Sorting an edge list by target and by source, in the compiled library."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from attnops.kernels import library


class _SortEdges(ctypes.Structure):
    """`SortEdges` of csrc/interface.h."""

    _fields_ = (
        ("source", ctypes.c_void_p),
        ("target", ctypes.c_void_p),
        ("edges", ctypes.c_int64),
        ("queries", ctypes.c_int64),
        ("keys", ctypes.c_int64),
        ("is_narrow", ctypes.c_int32),
        ("threads", ctypes.c_int32),
        *((f"result_{place}", ctypes.c_void_p) for place in range(8)),
    )


def sort_edges(source: Tensor, target: Tensor, num_queries: int, num_keys: int) -> list[Tensor]:
    """The fields of `attnops.patterns.sorting.Sorted`, all int64, by two stable counting sorts.

    Time and memory are linear in edges and nodes; the same for any number of threads.

    Args:
        source, target: `[E]`, int32 or int64, on the CPU.
        num_queries, num_keys: how many targets and sources there are.

    Raises:
        ValueError: an end that is no node.
        MemoryError: no scratch space, one number for an edge at most.
    """
    source, target = source.contiguous(), target.contiguous()
    edges = source.shape[0]
    sizes = (num_queries + 1, edges, edges, edges, edges, num_keys + 1, edges, edges)
    results = [source.new_empty(size, dtype=torch.int64) for size in sizes]
    call = _SortEdges(
        library.address(source),
        library.address(target),
        edges,
        num_queries,
        num_keys,
        source.dtype == torch.int32,
        library.threads(),
        *(library.address(result) for result in results),
    )
    failed = library.load().attnops_sort_edges(ctypes.byref(call))
    if failed == 1:
        raise MemoryError(f"no memory to sort {edges} edges")
    if failed:
        raise ValueError(f"an end of an edge is negative, or not below num_keys={num_keys}, num_queries={num_queries}")
    return results


library.require_size("attnops_sort_edges", _SortEdges)
