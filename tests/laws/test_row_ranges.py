"""What patterns say of the keys of each query by ranges is what they allow pair by pair."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

import attnops
from attnops.coords import resolve_coords
from attnops.patterns.rows import MOST_RANGES, exact_ranges
from tests.laws.problems import Problem, patterns


def told(ranges: Tensor, num_keys: int) -> Tensor:
    """Ranges as a bool `[B|1, 1, Nq|1, Nk]`."""
    keys = torch.arange(num_keys)
    return ((keys >= ranges[..., :1]) & (keys < ranges[..., 1:])).any(2).unsqueeze(1)


def ranges_of(pattern: attnops.Pattern, coords: Any, batch: tuple[int, ...], rows: int, columns: int) -> Tensor | None:
    sides = resolve_coords(coords, batch, rows, columns, torch.device("cpu"))
    return exact_ranges(pattern, sides, batch, rows, columns)


@given(
    patterns(),
    st.integers(0, 999),
    st.sampled_from([(), (2,), (2, 2)]),
    st.integers(0, 7),
    st.integers(0, 9),
    st.sampled_from(["default", "integers", "times"]),
    st.booleans(),
)
def test_ranges_are_what_is_allowed(
    tree: Any, seed: int, batch: tuple[int, ...], rows: int, columns: int, positions: str, in_order: bool
) -> None:
    problem = Problem(
        seed=seed, batch=batch, num_queries=rows, num_keys=columns, pattern=tree, positions=positions, group=2
    )
    built = problem.build()
    coords: Any = built.coords
    if in_order and positions != "default":  # else given positions are rarely told by ranges
        sides = [{name: side.data[name] for name in side.names} for side in coords]
        coords = tuple(attnops.Coords(**{**side, "position": side["position"].sort(-1).values}) for side in sides)
        built.coords = coords
    assert built.pattern is not None
    ranges = ranges_of(built.pattern, coords, batch, rows, columns)
    if ranges is not None:
        assert ranges.shape[2] <= MOST_RANGES
        want = built.allowed()
        assert torch.equal(told(ranges, columns).expand(want.shape), want)


ORDERED = (torch.tensor([0, 0, 1, 4, 4, 9]), torch.tensor([0, 1, 1, 2, 4, 4, 8, 9]))


@pytest.mark.parametrize(
    "pattern",
    [
        attnops.Full(),
        attnops.Causal(),
        attnops.SlidingWindow(2, 1),
        attnops.SlidingWindow(2.5),
        attnops.Chunked(3),
        attnops.PrefixLM(2),
        attnops.GlobalTokens([0, 1, 5]),
        attnops.SameSegment(),
        attnops.Padding(torch.tensor([3, 8])),
        attnops.Padding(torch.tensor([[True] * 5 + [False] * 3, [False, False] + [True] * 6])),
        attnops.BlockMask(torch.tensor([[True, False, True, True], [False, True, True, False], [False] * 4]), 2),
        attnops.Causal() & attnops.SlidingWindow(3, 3) & attnops.SameSegment(),
        attnops.SlidingWindow(1, 1) | attnops.GlobalTokens([0]),
        ~attnops.SlidingWindow(1, 1),
        ~(attnops.Causal() & attnops.Chunked(3)),
    ],
    ids=str,
)
@pytest.mark.parametrize("given_positions", [False, True])
def test_these_say_it(pattern: attnops.Pattern, given_positions: bool) -> None:
    """Not only where they happen to: a pattern that stopped saying it would cost its speed in silence."""
    sides = [attnops.Coords(segment=x // 4, **({"position": x} if given_positions else {})) for x in ORDERED]
    ranges = ranges_of(pattern, (sides[0], sides[1]), (2,), 6, 8)
    assert ranges is not None
    x = torch.zeros(2, 1, 8, 1)
    cost = attnops.plan(x[:, :, :6], x, x, pattern=pattern, coords=(sides[0], sides[1])).cost
    assert int(told(ranges, 8).expand(2, 1, 6, 8).sum()) == cost.pairs


def test_these_say_nothing() -> None:
    class Backwards(attnops.Causal):
        def allows(self, pairs: attnops.Pairs) -> Tensor:
            return pairs.key.position >= pairs.query.position

    times = attnops.Coords(position=torch.rand(5))
    fallen = attnops.Coords(position=torch.tensor([3, 1, 2, 0, 5]))
    assert ranges_of(attnops.Dilated(2), None, (), 5, 5) is None
    assert ranges_of(attnops.Mask(torch.ones(5, 5).bool()), None, (), 5, 5) is None
    assert ranges_of(Backwards(), None, (), 5, 5) is None
    assert ranges_of(Backwards() & attnops.Causal(), None, (), 5, 5) is None
    assert ranges_of(attnops.Causal(), fallen, (), 5, 5) is None
    assert ranges_of(attnops.SlidingWindow(1), attnops.Coords(position=times.position.sort().values), (), 5, 5) is None
    assert ranges_of(attnops.GlobalTokens([0, 2, 4, 6, 8]), None, (), 9, 9) is None


def test_a_window_that_reaches_past_all_integers_overflows_nothing() -> None:
    for pattern in (attnops.SlidingWindow(1e30, 2**61), attnops.PrefixLM(1e30)):
        ranges = ranges_of(pattern, None, (), 3, 4)
        assert ranges is not None and told(ranges, 4).all()
