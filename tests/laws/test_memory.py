"""Memory of blockwise is linear in N: it never makes a tensor of Nq · Nk numbers, forward or backward."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import attnops
from attnops.backends import blockwise
from tests.laws.problems import Crossing

HEADS, DIM, ROWS = 2, 4, 16


class Largest(TorchDispatchMode):
    """The most numbers that the memory of one new tensor holds, over every operation's results; views are not new."""

    numbers = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {leaf.untyped_storage().data_ptr() for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)}
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(result):
            if isinstance(leaf, Tensor) and leaf.untyped_storage().data_ptr() not in known:
                self.numbers = max(self.numbers, leaf.untyped_storage().nbytes() // leaf.element_size())
        return result


def largest(n: int, backend: str, score: attnops.Score | None = None, **arguments: Any) -> int:
    random = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(HEADS, n, DIM, generator=random).requires_grad_() for _ in range(3))
    coords = attnops.Coords(type=torch.arange(n) % 3, time=torch.arange(n) / 7, segment=torch.arange(n) // 100)
    with Largest() as seen:
        out = attnops.attend(query, key, value, score=score, coords=coords, backend=backend, **arguments)
        out.square().sum().backward()
    return seen.numbers


def cases(n: int) -> dict[str, dict[str, Any]]:
    band = torch.arange(n)
    return {
        "plain": {},
        "causal": {"pattern": attnops.Causal()},
        "window and alibi": {"pattern": attnops.SlidingWindow(20), "bias": attnops.ALiBi(HEADS)},
        "a table that learns": {"pattern": attnops.Causal(), "bias": attnops.RelativeBias(HEADS)},
        "shaw": {"bias": attnops.RelativeKeys(HEADS, DIM, 4)},
        "the user's own": {"bias": Crossing(HEADS), "pattern": attnops.SameSegment()},
        "global tokens": {"pattern": attnops.SlidingWindow(8, 8) | attnops.GlobalTokens([0, 5])},
        "negated": {"pattern": ~attnops.SlidingWindow(8, 8)},
        "edges": {"pattern": attnops.Edges(torch.stack([band, (band + 3) % n]), n, n)},
        "softcap": {"score": attnops.DotProduct(softcap=5.0), "pattern": attnops.Causal()},
        "gat": {"score": attnops.SeparableAdditive(HEADS, DIM)},
    }


@pytest.mark.parametrize("name", cases(8))
def test_blockwise_grows_with_n_and_not_with_its_square(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.setattr(blockwise, "ROWS", ROWS)
    sizes = {n: largest(n, "blockwise", **cases(n)[name]) for n in (256, 512)}
    assert sizes[512] <= 2.2 * sizes[256] + 64, f"{sizes} grows faster than N"
    assert sizes[512] <= 4 * HEADS * ROWS * 512, f"{sizes} is more than a few blocks"


def test_the_measure_sees_a_dense_backend() -> None:
    assert largest(256, "reference") >= HEADS * 256 * 256


def test_scatter_keeps_no_key_or_value_an_edge() -> None:
    """Edges cost a few numbers each, whatever the width of the vectors."""
    n, count, dim = 64, 4000, 32
    random = torch.Generator().manual_seed(0)
    ends = torch.randint(0, n, (2, count), generator=random)
    query, key, value = (torch.randn(1, n, dim, generator=random).requires_grad_() for _ in range(3))
    with Largest() as seen:
        out = attnops.attend(query, key, value, pattern=attnops.Edges(ends, n, n), backend="scatter")
        out.square().sum().backward()
    assert seen.numbers < count * dim / 2
