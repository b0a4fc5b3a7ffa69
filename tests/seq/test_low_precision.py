"""8-bit attention, emulated: rotations change no product, scales are a block's own, and outliers cost less rotated."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from attnops import Causal, Edges, Padding, Rotary, Sink, attend
from attnops.seq.low_precision import fp8_attend, random_hadamard, round_to_fp8
from examples import fp8_attention

D64 = torch.float64


def rand(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=D64)


@pytest.mark.parametrize("dim", [1, 2, 64])
def test_a_rotation_is_orthogonal_and_spreads(dim: int) -> None:
    matrix = random_hadamard(torch.eye(dim, dtype=D64))
    torch.testing.assert_close(matrix @ matrix.T, torch.eye(dim, dtype=D64))
    torch.testing.assert_close(matrix.abs(), torch.full_like(matrix, dim**-0.5))
    x = rand(3, 5, dim)
    torch.testing.assert_close(random_hadamard(x), x @ matrix)
    assert dim == 1 or not torch.equal(random_hadamard(x, seed=1), random_hadamard(x, seed=3))


@pytest.mark.parametrize("dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
@pytest.mark.parametrize("block_size", [None, 1, 3, 4, 100])
def test_rounding_is_within_half_a_step_of_its_block(dtype: torch.dtype, block_size: int | None) -> None:
    x = rand(2, 10, 8) * torch.logspace(-3, 3, 10, dtype=D64).unsqueeze(1)
    found = round_to_fp8(x, block_size, dtype)
    step = torch.finfo(dtype).eps / 2
    for start in range(0, 10, block_size or 10):
        block = slice(start, start + (block_size or 10))
        for head in range(2):
            largest = x[head, block].abs().max()
            least = largest / torch.finfo(dtype).max * torch.finfo(dtype).smallest_normal  # below: one absolute step
            bound = step * x[head, block].abs().clamp(min=least)
            assert ((found[head, block] - x[head, block]).abs() <= bound * (1 + 1e-12)).all()
            assert found[head, block].abs().max() == pytest.approx(float(largest), rel=1e-12)


def test_rounding_nothing() -> None:
    assert round_to_fp8(torch.zeros(2, 0, 4), 8).shape == (2, 0, 4)
    assert torch.equal(round_to_fp8(torch.zeros(1, 3, 4), 2), torch.zeros(1, 3, 4))


def test_it_is_attention_but_for_rounding() -> None:
    query, key, value = rand(2, 4, 16, 8), rand(2, 2, 16, 8, seed=1), rand(2, 2, 16, 8, seed=2)
    for options in ({}, {"pattern": Causal()}, {"pattern": Padding(torch.tensor([3, 0]))}):
        for rotate in (True, False):
            exact, found = attend(query, key, value, **options), fp8_attend(query, key, value, rotate=rotate, **options)
            assert isinstance(exact, Tensor)
            assert found.dtype == exact.dtype
            torch.testing.assert_close(found, exact, atol=0.25, rtol=0.1)
            assert not torch.equal(found, exact)
    assert torch.equal(found[1], torch.zeros_like(found[1]))  # nobody to attend


def test_the_error_table_has_the_published_direction(tmp_path: Path) -> None:
    """FlashAttention-3's: rotated 8-bit attention far below plain where there are outliers, and no worse without."""
    table = fp8_attention.main(["--small", "--out", str(tmp_path)])
    assert json.loads((tmp_path / "errors.json").read_text()) == table
    plain, rotated = "fp8, a scale a block", "fp8, a scale a block, rotated"
    assert table["with outliers"][rotated] < 0.9 * table["with outliers"][plain]
    assert table["wide channels"][rotated] < 0.5 * table["wide channels"][plain]
    assert table["normal"][rotated] < 1.1 * table["normal"][plain]
    assert all(column["float16"] < 0.1 * min(column[plain], column[rotated]) for column in table.values())


def test_a_bad_argument_is_named() -> None:
    x = rand(1, 4, 6)
    with pytest.raises(ValueError, match="D is 6"):
        fp8_attend(x, x, x)
    with pytest.raises(TypeError, match="dtype is torch"):
        fp8_attend(x, x, x, rotate=False, dtype=torch.float16)
    with pytest.raises(ValueError, match="block_size"):
        fp8_attend(x, x, x, rotate=False, block_size=0)
    with pytest.raises(ValueError, match="turns queries and keys"):
        fp8_attend(x, x, x, rotate=False, bias=Rotary(4))


@pytest.mark.parametrize("garbage", [float("nan"), float("inf"), 1e30])
def test_what_nobody_may_hear_changes_nothing(garbage: float) -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 2, 64, 32)
    pattern = Padding(torch.tensor([40]))
    clean = fp8_attend(query, key, value, pattern=pattern)
    key[:, :, 40:], value[:, :, 40:] = garbage, garbage
    got = fp8_attend(query, key, value, pattern=pattern)
    assert torch.equal(got, clean)


def test_a_sink_takes_its_share() -> None:
    torch.manual_seed(0)
    query, key, value = torch.randn(3, 1, 4, 64, 32)
    sink = Sink(4)
    torch.nn.init.constant_(sink.weight, 5.0)
    with torch.no_grad():
        exact, plain = attend(query, key, value, bias=sink), attend(query, key, value)
        error = (fp8_attend(query, key, value, bias=sink) - exact).square().mean().sqrt()
    assert error < 0.05 * exact.square().mean().sqrt() + 0.01 < (plain - exact).square().mean().sqrt()


def test_edges_are_refused() -> None:
    x = torch.randn(1, 2, 8, 32)
    with pytest.raises(ValueError, match=r"pattern is Edges.*an edge list"):
        fp8_attend(x, x, x, pattern=Edges(torch.tensor([[0, 1], [1, 0]]), 8, 8))
