"""Edge lists in the order of their targets: the compiled sort and torch's are one, and both are what Python's is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnops.kernels import library
from attnops.kernels import sorting as compiled
from attnops.patterns import sorting
from attnops.patterns.sorting import Sorted

needs_library = pytest.mark.skipif(library.unavailable() is not None, reason=str(library.unavailable()))


def by_python(source: list[int], target: list[int], num_queries: int, num_keys: int) -> list[list[int]]:
    order = sorted(range(len(target)), key=target.__getitem__)
    moved = [source[edge] for edge in order]
    source_order = sorted(range(len(moved)), key=moved.__getitem__)

    def pointer(ends: list[int], nodes: int) -> list[int]:
        return [sum(end < node for end in ends) for node in range(nodes + 1)]

    def inverse(order: list[int]) -> list[int]:
        return [order.index(edge) for edge in range(len(order))]

    return [
        pointer(target, num_queries), order, inverse(order), [target[edge] for edge in order], moved,
        pointer(source, num_keys), source_order, inverse(source_order),
    ]  # fmt: skip


def assert_equal(got: Sorted, want: Sorted) -> None:
    for name, ours, theirs in zip(Sorted._fields, got, want, strict=True):
        assert ours.dtype == theirs.dtype == torch.int64
        assert torch.equal(ours, theirs), name


@st.composite
def edge_lists(draw: st.DrawFn) -> tuple[list[int], list[int], int, int]:
    """Few nodes, so that duplicates, self-loops, hubs and nodes without an edge are common."""
    num_queries, num_keys = draw(st.integers(0, 6)), draw(st.integers(0, 6))
    edges = draw(st.integers(0, 30)) if num_queries and num_keys else 0
    ends = [
        draw(st.lists(st.integers(0, max(0, n - 1)), min_size=edges, max_size=edges)) for n in (num_keys, num_queries)
    ]
    return ends[0], ends[1], num_queries, num_keys


@given(edge_lists(), st.sampled_from([torch.int32, torch.int64]), st.booleans())
def test_every_field_is_what_pythons_sort_makes(
    problem: tuple[list[int], list[int], int, int], dtype: torch.dtype, strided: bool
) -> None:
    source, target, num_queries, num_keys = problem
    ends = torch.tensor([source, target], dtype=dtype).reshape(2, -1)
    if strided:
        ends = ends.repeat_interleave(2, dim=1)[:, ::2]
    want = by_python(source, target, num_queries, num_keys)
    assert [field.tolist() for field in sorting.sort_edges(ends[0], ends[1], num_queries, num_keys)] == want
    assert [field.tolist() for field in sorting._by_torch(ends[0], ends[1], num_queries, num_keys)] == want


@pytest.fixture
def threads() -> Iterator[None]:
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def large(name: str, edges: int = 70_000) -> tuple[Tensor, int, int]:
    """Enough edges for several threads."""
    if name == "hub":
        return torch.stack([torch.randint(0, 900, (edges,)), torch.zeros(edges, dtype=torch.int64)]), 1, 900
    if name == "one node":
        return torch.zeros(2, edges, dtype=torch.int64), 1, 1
    if name == "more nodes than edges":
        return torch.randint(0, 2 * edges, (2, edges)), 2 * edges, 2 * edges
    return torch.randint(0, 900, (2, edges)), 950, 900


@needs_library
@pytest.mark.usefixtures("threads", "poison")
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64], ids=str)
@pytest.mark.parametrize("name", ["random", "hub", "one node", "more nodes than edges"])
def test_any_number_of_threads_gives_torchs_result(name: str, dtype: torch.dtype) -> None:
    ends, num_queries, num_keys = large(name)
    source, target = ends.to(dtype)
    want = sorting._by_torch(source, target, num_queries, num_keys)
    for count in (1, 2, 3, 4):
        torch.set_num_threads(count)
        assert_equal(Sorted(*compiled.sort_edges(source, target, num_queries, num_keys)), want)


@needs_library
@pytest.mark.usefixtures("threads")
@pytest.mark.parametrize("edges", [7, 70_000])
@pytest.mark.parametrize("row", [0, 1])
@pytest.mark.parametrize("wrong", [-1, 5, 2**31 - 1, -(2**31)])
def test_an_end_that_is_no_node_is_an_error_and_never_written_through(edges: int, row: int, wrong: int) -> None:
    torch.set_num_threads(2)
    for dtype in (torch.int32, torch.int64):
        ends = torch.randint(0, 5, (2, edges), dtype=dtype)
        ends[row, -2] = wrong
        with pytest.raises(ValueError, match="an end of an edge"):
            compiled.sort_edges(ends[0], ends[1], 5, 5)
    with pytest.raises(ValueError, match="an end of an edge"):
        compiled.sort_edges(torch.tensor([0]), torch.tensor([0]), 1 - row, row)


@needs_library
def test_many_declared_nodes_cost_their_pointers_alone() -> None:
    """Three edges among 2^24 nodes: two pointers of 128 MiB, and no scratch beside them."""
    code = """
import resource, torch
from attnops.kernels.sorting import sort_edges
ends = torch.tensor([[5, 2, 5], [1, 0, 16000000]])
sort_edges(ends[0] * 0, ends[1] * 0, 1, 1)
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
fields = sort_edges(ends[0], ends[1], 2**24, 2**24)
grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
assert fields[5][6] - fields[5][5] == 2
print(grown / 1024)
"""
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=dict(os.environ))
    assert float(run.stdout) < 262


@pytest.mark.parametrize("dynamic", [False, True])
def test_a_traced_function_sorts_its_edges(dynamic: bool) -> None:
    def degrees(ends: Tensor) -> Tensor:
        csr = sorting.sort_edges(ends[0], ends[1], 6, 5)
        return csr.pointer.diff() * 10 + csr.source[csr.pointer[:-1].clamp(max=csr.source.shape[0] - 1)]

    traced = torch.compile(degrees, fullgraph=True, backend="aot_eager", dynamic=dynamic)
    for edges in (9, 12):
        ends = torch.randint(0, 5, (2, edges))
        assert torch.equal(traced(ends), degrees(ends))


def test_the_operator_keeps_to_its_schema() -> None:
    ends = torch.randint(0, 5, (2, 11))
    torch.library.opcheck(sorting._sorted_later, (ends[0], ends[1], 6, 5))


@pytest.mark.filterwarnings("ignore:torch.searchsorted")
def test_sorting_under_vmap() -> None:
    ends = torch.randint(0, 5, (3, 2, 9))
    orders = torch.vmap(lambda each: sorting._by_torch(each[0], each[1], 6, 5).order)(ends)
    ours = torch.vmap(lambda each: sorting.sort_edges(each[0], each[1], 6, 5).order)(ends)
    assert torch.equal(ours, orders)
