"""What biases read: edge data and types that do not fit are named, and zero priors forbid without a NaN."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops import Coords, Edges
from attnops.biases import (
    ALiBi,
    Bias,
    Distance,
    EdgeBias,
    EdgeTypePrior,
    LogPrior,
    RelativeBias,
    RelativeKeys,
    Sink,
    TimeGap,
    TypePrior,
)
from attnops.coords import resolve_coords
from attnops.pairs import Pairs

CPU = torch.device("cpu")


def attend_with(bias: Bias, coords: Any = None, **edge: Tensor) -> Tensor:
    x = torch.randn(2, 3, 4)
    pattern = Edges(torch.tensor([[0, 1, 2], [1, 2, 0]]), 3, 3, **edge) if edge else None
    return attnops.attend(x, x, x, bias=bias, pattern=pattern, coords=coords, backend="reference")


def test_out_of_range_types_are_named() -> None:
    seven, few = Coords(type=torch.tensor([0, 1, 7])), Coords(type=torch.tensor([0, 1, 2]))
    with pytest.raises(ValueError, match=r"coords.type of the key side holds 7; TypePrior has 5 key types, 0 … 4"):
        attend_with(TypePrior(3, 5, 2), (few, seven))
    with pytest.raises(ValueError, match=r"coords.type of the query side holds 7; TypePrior has 7 query types"):
        attend_with(TypePrior(7, 5, 2), (seven, few))
    with pytest.raises(ValueError, match=r"coords.type of the key side holds -1"):
        attend_with(TypePrior(3, 3, 2), (few, Coords(type=torch.tensor([0, -1, 2]))))
    with pytest.raises(ValueError, match=r"edge.type holds 3; EdgeTypePrior has 3 types, 0 … 2"):
        attend_with(EdgeTypePrior(3, 2), type=torch.tensor([0, 1, 3]))
    with pytest.raises(ValueError, match=r"edge.type holds -2"):
        attend_with(EdgeTypePrior(3, 2), type=torch.tensor([0, 1, -2]))
    with pytest.raises(ValueError, match=r"edge.distance holds -2; Distance reads"):
        attend_with(Distance(2, 5), distance=torch.tensor([0, 1, -2]))


def test_types_that_are_not_integers_are_refused() -> None:
    with pytest.raises(TypeError, match=r"coords.type of the query side is torch.float32"):
        attend_with(TypePrior(2, 2, 2), Coords(type=torch.zeros(3)))
    with pytest.raises(TypeError, match=r"edge.type is torch.float32"):
        attend_with(EdgeTypePrior(2, 2), type=torch.zeros(3))
    with pytest.raises(TypeError, match=r"edge.distance is torch.float32"):
        attend_with(Distance(2, 2), distance=torch.zeros(3))


# ------------------------------------------------------------------------------------------------------------ edge data
def test_one_feature_needs_no_axis() -> None:
    bias, attr = EdgeBias(1, 2), torch.randn(3)
    torch.nn.init.normal_(bias.weight)
    torch.manual_seed(1)
    flat = attend_with(bias, attr=attr)
    torch.manual_seed(1)
    assert torch.equal(flat, attend_with(bias, attr=attr.unsqueeze(1)))


def test_features_that_do_not_fit_are_named() -> None:
    with pytest.raises(ValueError, match=r"edge.attr is \['E', 3\]; EdgeBias has edge_dim=4"):
        attend_with(EdgeBias(4, 2), attr=torch.randn(3, 3))
    with pytest.raises(ValueError, match=r"edge.attr is \['E'\]; EdgeBias has edge_dim=2"):
        attend_with(EdgeBias(2, 2), attr=torch.randn(3))
    with pytest.raises(ValueError, match=r"edge.prior has 2 axes; LogPrior reads one value an edge"):
        attend_with(LogPrior(), prior=torch.rand(3, 2))
    with pytest.raises(ValueError, match=r"edge.attr is read"):
        attend_with(EdgeBias(2, 2), prior=torch.rand(3))


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_an_impossible_prior_forbids_without_a_nan(dtype: torch.dtype) -> None:
    prior = torch.tensor([0.5, 0.0, 2.0], dtype=dtype, requires_grad=True)
    coords = resolve_coords(None, (1,), 1, 3, CPU)
    ends = torch.zeros(3, dtype=torch.int64), torch.arange(3)
    pairs = Pairs.listed(coords, (1,), 1, *ends, dtype=torch.float32, device=CPU, edge_data={"prior": prior})
    value = LogPrior()(pairs)
    torch.testing.assert_close(value.flatten(), torch.tensor([math.log(0.5), -math.inf, math.log(2)]))
    torch.where(value.isinf(), 0, value).sum().backward()
    assert prior.grad is not None and prior.grad.tolist() == [2.0, 0.0, 0.5]


def test_a_prior_too_small_for_float32_still_allows() -> None:
    x, prior = torch.zeros(1, 3, 2), torch.tensor([1e-300, 2e-300, 0.0], dtype=torch.float64)
    graph = Edges(torch.tensor([[0, 1, 2], [0, 0, 0]]), 3, 3, prior=prior)
    weights = attnops.attend(x, x, x, pattern=graph, bias=LogPrior(), return_weights=True, backend="reference").weights
    torch.testing.assert_close(weights[0], torch.tensor([1 / 3, 2 / 3, 0]), rtol=1e-4, atol=0)


@pytest.mark.parametrize("wrong", [-0.25, math.nan, math.inf])
def test_priors_that_are_none_are_refused(wrong: float) -> None:
    with pytest.raises(ValueError, match=rf"edge.prior holds {wrong}; LogPrior"):
        attend_with(LogPrior(), prior=torch.tensor([0.1, wrong, 0.3]))


# --------------------------------------------------------------------------------------------------------- constructors
@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: ALiBi(0), "heads is 0"),
        (lambda: ALiBi(2.0), "heads is 2.0"),  # type: ignore[arg-type]
        (lambda: Sink(True), "heads is True"),
        (lambda: TimeGap(-1), "heads is -1"),
        (lambda: EdgeBias(0, 1), "edge_dim is 0"),
        (lambda: EdgeTypePrior(0, 1), "num_types is 0"),
        (lambda: TypePrior(1, 0, 1), "key_types is 0"),
        (lambda: RelativeKeys(1, 4, 0), "max_distance is 0"),
        (lambda: RelativeKeys(1, 0, 4), "dim is 0"),
        (lambda: Distance(1, -1), "max_distance is -1"),
        (lambda: RelativeBias(1, 3), "buckets is 3; it must be 4 or more"),
        (lambda: RelativeBias(1, 1, bidirectional=False), "buckets is 1; it must be 2 or more"),
        (lambda: RelativeBias(1, 32, 8), "max_distance is 8; it must exceed 8"),
    ],
)
def test_arguments_that_make_no_sense_are_named(build: Callable[[], Bias], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        build()


def test_heads_must_be_those_of_the_query() -> None:
    with pytest.raises(ValueError, match="heads"):
        attend_with(ALiBi(3))
