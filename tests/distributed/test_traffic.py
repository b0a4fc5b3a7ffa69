"""What ranks send and score is what the formulas of the scale page say, to the byte and the pair."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks.scale import count


def counting(group: Any) -> None:
    count(group.rank(), group.size(), group)


@pytest.mark.parametrize("world", [1, 2, 4])
def test_bytes_and_pairs_equal_the_formulas(ranks: Any, world: int) -> None:
    ranks(counting, world=world)
