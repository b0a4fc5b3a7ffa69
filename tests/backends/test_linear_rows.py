"""The compiled product of few rows: right at every level and width, and a row's bits its own."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from attnops.kernels import library
from attnops.kernels.linear_rows import linear_rows

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason=str(library.unavailable()))


@pytest.fixture(params=library.levels() if library.unavailable() is None else (), autouse=True)
def level(request: pytest.FixtureRequest) -> Iterator[None]:
    before = library.level()
    library.use_level(request.param)
    yield
    library.use_level(before)


def random(*shape: int, dtype: torch.dtype, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64).to(dtype)


@given(
    rows=st.integers(0, 20),
    width=st.integers(0, 70),
    out=st.integers(0, 40),
    dtype=st.sampled_from([torch.float32, torch.float64]),
    with_bias=st.booleans(),
)
def test_no_worse_than_sums_of_rounded_products(
    rows: int, width: int, out: int, dtype: torch.dtype, with_bias: bool
) -> None:
    x, weight = random(rows, width, dtype=dtype, seed=0), random(out, width, dtype=dtype, seed=1)
    bias = random(out, dtype=dtype, seed=2) if with_bias else None
    got = linear_rows(x, weight, bias)
    wide = [None if each is None else each.to(torch.float64) for each in (x, weight, bias)]
    exact = torch.nn.functional.linear(*wide)  # type: ignore[arg-type]
    sizes = torch.nn.functional.linear(*(None if each is None else each.abs() for each in wide))  # type: ignore[arg-type]
    assert got.dtype == dtype and got.shape == (rows, out)
    assert ((got.double() - exact).abs() <= (width + 2) * torch.finfo(dtype).eps * sizes).all()


@pytest.mark.parametrize("out", [40, 700])
def test_a_row_has_the_same_bits_whichever_stand_beside_it_and_however_many_threads_there_are(out: int) -> None:
    x, weight = random(19, 301, dtype=torch.float32, seed=0), random(out, 301, dtype=torch.float32, seed=1)
    threads = torch.get_num_threads()
    alone = torch.cat([linear_rows(row, weight, None) for row in x.split(1)])
    try:
        torch.set_num_threads(2)
        assert torch.equal(linear_rows(x, weight, None), alone)
        for count in range(1, 19):
            assert torch.equal(linear_rows(x[:count], weight, None), alone[:count]), count
    finally:
        torch.set_num_threads(threads)


def test_any_strides_and_any_axes_before() -> None:
    x, weight = random(3, 4, 80, dtype=torch.float32, seed=0), random(9, 160, dtype=torch.float32, seed=1)
    plain = linear_rows(x.reshape(12, 80), weight[:, ::2].contiguous(), None).view(3, 4, 9)
    for given_x in (x, x.transpose(0, 1).contiguous().transpose(0, 1), x.repeat(1, 1, 2)[..., :80]):
        for given_weight in (weight[:, ::2], weight[:, ::2].t().contiguous().t(), weight[:, ::2].repeat(1, 3)[:, :80]):
            assert torch.equal(linear_rows(given_x, given_weight, None), plain)


@pytest.mark.parametrize("garbage", [float("nan"), float("inf")])
def test_garbage_stays_in_its_row_and_column(garbage: float) -> None:
    x, weight = random(10, 37, dtype=torch.float32, seed=0), random(21, 37, dtype=torch.float32, seed=1)
    clean = linear_rows(x, weight, None)
    x[3, 36] = garbage
    weight[5, 0] = garbage
    got = linear_rows(x, weight, None)
    touched = torch.zeros(10, 21, dtype=torch.bool)
    touched[3], touched[:, 5] = True, True
    assert not got[touched].isfinite().any()
    assert torch.equal(got[~touched], clean[~touched])
