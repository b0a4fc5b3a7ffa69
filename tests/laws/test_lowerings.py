"""A prior is written once: every form of the pairs gives the same numbers, and patterns obey their algebra."""

from __future__ import annotations

import itertools
from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnops
from attnops.coords import resolve_coords
from attnops.pairs import Pairs
from attnops.patterns.base import intersect_ranges, unite_ranges
from tests.laws.problems import Built, Problem, patterns, problems

PROBLEMS = problems("reference", dtype=torch.float64, duplicates=False)


class Forms:
    """The pairs of a built problem as a grid, a list, and one at a time."""

    def __init__(self, built: Built) -> None:
        p = built.problem
        self.sides = resolve_coords(built.coords, p.batch, p.num_queries, p.num_keys, built.query.device)
        self.where = (self.sides, p.batch, p.heads)
        self.kind: dict[str, Any] = {"dtype": torch.float64, "device": built.query.device}
        self.edges, self.problem = built.edges, p
        rows, columns = torch.meshgrid(torch.arange(p.num_queries), torch.arange(p.num_keys), indexing="ij")
        self.rows, self.columns = rows.flatten(), columns.flatten()
        self.ids = None if self.edges is None else self.edges.ids(slice(0, p.num_queries), slice(0, p.num_keys))
        self.data = None if self.edges is None else self.edges.data

    def grid(self, prior: Any) -> Tensor:
        whole = slice(0, self.problem.num_queries), slice(0, self.problem.num_keys)
        pairs = Pairs.grid(*self.where, *whole, edge_data=self.data, edge_ids=self.ids, **self.kind)
        return prior(pairs).expand(pairs.shape)

    def listed(self, prior: Any) -> Tensor:
        """Every pair of the grid, or the edges."""
        if self.edges is not None:
            rows, columns = self.edges.target, self.edges.source
        else:
            rows, columns = self.rows, self.columns
        pairs = Pairs.listed(*self.where, rows, columns, edge_data=self.data, **self.kind)
        return prior(pairs).expand(pairs.shape)

    def single(self, prior: Any) -> Tensor:
        def one(batch: Tensor, head: Tensor, row: Tensor, column: Tensor) -> Tensor:
            at = None if self.ids is None else self.ids[row, column]
            pairs = Pairs.single(*self.where, batch, head, row, column, edge_data=self.data, edge_ids=at, **self.kind)
            value: Tensor = prior(pairs)
            assert value.ndim == 0
            return value

        each = one
        for axes in ((None, None, None, 0), (None, None, 0, None), (None, 0, None, None), (0, None, None, None)):
            each = torch.vmap(each, in_dims=axes)  # type: ignore[assignment]
        p = self.problem
        sizes = (torch.Size(p.batch).numel(), p.heads, p.num_queries, p.num_keys)
        return each(*(torch.arange(size) for size in sizes))

    def at_list(self, grid: Tensor) -> Tensor:
        if self.edges is not None:
            return grid[:, :, self.edges.target, self.edges.source]
        return grid.flatten(2)


def nothing_to_compare(problem: Problem) -> bool:
    edges = 1 if problem.num_edges is None else min(problem.num_edges, problem.num_queries * problem.num_keys)
    return not (problem.num_queries and problem.num_keys and edges)


@given(PROBLEMS)
def test_a_bias_is_the_same_on_a_grid_a_list_and_a_pair(problem: Problem) -> None:
    built = problem.build()
    if nothing_to_compare(problem) or built.bias is None or isinstance(built.bias, Tensor) or not built.bias.adds:
        return
    flat = [x.reshape(torch.Size(problem.batch).numel(), *x.shape[-3:]) for x in (built.query, built.key)]
    bias, forms = built.bias.bind(*flat), Forms(built)
    grid = forms.grid(bias)
    torch.testing.assert_close(forms.listed(bias), forms.at_list(grid), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(forms.at_list(forms.single(bias)), forms.at_list(grid), rtol=1e-12, atol=1e-12)


@given(PROBLEMS)
def test_a_pattern_is_the_same_on_a_grid_a_list_and_a_pair(problem: Problem) -> None:
    built = problem.build()
    if nothing_to_compare(problem) or built.pattern is None:
        return
    forms, allows = Forms(built), built.pattern.allows
    grid = forms.grid(allows)
    assert torch.equal(forms.listed(allows), forms.at_list(grid))
    assert torch.equal(forms.single(allows), grid)


@given(PROBLEMS, patterns(), patterns(), patterns())
def test_patterns_are_a_boolean_algebra(problem: Problem, a: Any, b: Any, c: Any) -> None:
    built = problem.with_(num_edges=None, biases=()).build()
    if nothing_to_compare(problem):
        return
    forms = Forms(built)
    A, B, C = (built._pattern(tree) for tree in (a, b, c))

    def same(left: attnops.Pattern, right: attnops.Pattern) -> None:
        assert torch.equal(forms.grid(left.allows), forms.grid(right.allows)), f"{left} is not {right}"

    same(~(A & B), ~A | ~B)
    same(~(A | B), ~A & ~B)
    same(~~A, A)
    same(A & B, B & A)
    same(A | B, B | A)
    same(A & (B & C), (A & B) & C)
    same(A | (B | C), (A | B) | C)
    same(A & (B | C), (A & B) | (A & C))
    same(A & attnops.Full(), A)
    same(A | attnops.Full(), attnops.Full())
    same(A & A, A)
    assert torch.equal(forms.grid((A & B).allows), forms.grid(A.allows) & forms.grid(B.allows))
    assert torch.equal(forms.grid((A | B).allows), forms.grid(A.allows) | forms.grid(B.allows))
    assert torch.equal(forms.grid((~A).allows), ~forms.grid(A.allows))


@given(PROBLEMS, st.data())
def test_key_ranges_cut_no_pair_that_is_allowed(problem: Problem, data: st.DataObject) -> None:
    built = problem.with_(biases=()).build()
    if nothing_to_compare(problem) or built.pattern is None:
        return
    forms = Forms(built)
    allowed = forms.grid(built.pattern.allows)
    start = data.draw(st.integers(0, problem.num_queries - 1))
    stop = data.draw(st.integers(start + 1, problem.num_queries))
    ranges = built.pattern.key_ranges(forms.sides, slice(start, stop), problem.num_keys)
    assert ranges == sorted(ranges) and all(0 <= low < high <= problem.num_keys for low, high in ranges)
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(ranges)), "ranges overlap"
    inside = torch.zeros(problem.num_keys, dtype=torch.bool)
    for low, high in ranges:
        inside[low:high] = True
    assert not (allowed[:, :, start:stop] & ~inside).any()


def test_key_ranges_of_known_patterns_are_tight() -> None:
    sides = resolve_coords(None, (), 8, 8, torch.device("cpu"))
    rows = slice(4, 6)
    assert attnops.Causal().key_ranges(sides, rows, 8) == [(0, 6)]
    assert attnops.SlidingWindow(2).key_ranges(sides, rows, 8) == [(2, 6)]
    assert (attnops.SlidingWindow(1) | attnops.GlobalTokens([0])).key_ranges(sides, rows, 8) == [(0, 1), (3, 6)]
    assert (attnops.Causal() & attnops.Padding(torch.tensor(3))).key_ranges(sides, rows, 8) == [(0, 3)]
    assert (attnops.SlidingWindow(0) & attnops.Padding(torch.tensor(2))).key_ranges(sides, rows, 8) == []


RANGES = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9)), max_size=4).map(
    lambda pairs: unite_ranges([], [(min(pair), max(pair)) for pair in pairs])
)


@given(RANGES, RANGES)
def test_ranges_intersect_and_unite_as_sets(left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    def rows(ranges: list[tuple[int, int]]) -> set[int]:
        return {row for low, high in ranges for row in range(low, high)}

    assert rows(intersect_ranges(left, right)) == rows(left) & rows(right)
    assert rows(unite_ranges(left, right)) == rows(left) | rows(right)


def test_a_pattern_added_as_a_bias_is_the_pattern() -> None:
    x = torch.randn(2, 5, 4)
    apart = attnops.attend(x, x, x, pattern=attnops.Causal(), bias=attnops.ALiBi(2))
    for bias in (attnops.ALiBi(2) + attnops.Causal(), attnops.Causal() + attnops.ALiBi(2)):
        assert torch.equal(attnops.attend(x, x, x, bias=bias), apart)
    alone = attnops.attend(x, x, x, pattern=attnops.Causal() & attnops.SlidingWindow(1))
    assert torch.equal(attnops.attend(x, x, x, bias=attnops.Causal() + attnops.SlidingWindow(1)), alone)
    assert torch.equal(attnops.attend(x, x, x, bias=attnops.SlidingWindow(1), pattern=attnops.Causal()), alone)


def test_a_sum_of_biases_is_their_sum() -> None:
    x = torch.randn(2, 5, 4, dtype=torch.float64)
    table = attnops.RelativeBias(2, 8, 6).double()
    table.weight.data.normal_()
    both = attnops.attend(x, x, x, bias=attnops.ALiBi(2) + table)
    one = (torch.arange(5)[:, None] - torch.arange(5)).abs() * -torch.tensor([2**-4.0, 2**-8.0]).view(2, 1, 1)
    dense = one + table.weight[table.bucket(torch.arange(5)[:, None], torch.arange(5))].permute(2, 0, 1)
    torch.testing.assert_close(both, attnops.attend(x, x, x, bias=dense.double()), rtol=1e-12, atol=1e-12)
