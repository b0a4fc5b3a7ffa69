"""How close two results must be, and where they part."""

from __future__ import annotations

import torch
from torch import Tensor


def assert_close_as_reference(
    got: Tensor,
    golden: Tensor,
    reference: Tensor,
    *,
    kind: str = "forward",
    dtype: torch.dtype | None = None,
    least: float = 0.0,
    what: str = "result",
) -> None:
    """Raise unless `got` is as close to the float64 `golden` as `reference` of the same dtype is, up to a factor.

        max|got - golden| ≤ r · max|reference - golden| + k · eps(dtype) · max|golden|

    r is 2, 3 or 4 for `kind` "forward", "gradient" or "parameter"; k is 0.5 forward and 1 else in half precision, 4 and
    8 in float32, 32 and 64 in float64, where the reference is its own golden. Infinities must lie in the same places.
    `least` stands for max|golden| where that is smaller: the size of terms whose sum cancels.

    Raises:
        AssertionError: it is not; says by how much and where.
    """
    ratios = {"forward": 2, "gradient": 3, "parameter": 4}
    if kind not in ratios:
        raise ValueError(f"kind is {kind!r}; it must be one of {', '.join(map(repr, ratios))}")
    for name, given in (("got", got), ("golden", golden), ("reference", reference)):
        if not isinstance(given, Tensor) or not given.is_floating_point():
            raise TypeError(f"{name} is {_kind(given)}; it must be a tensor of real numbers")
    ratio, dtype = ratios[kind], got.dtype if dtype is None else dtype
    floor = {torch.float64: 32, torch.float32: 4}.get(dtype, 0.5) * (1 if kind == "forward" else 2)
    assert got.shape == golden.shape, f"{what} has shape {list(got.shape)}; it must be {list(golden.shape)}"
    exact, wide = golden.detach().double(), got.detach().double()
    finite = torch.isfinite(exact)
    assert_within(wide.where(~finite, 0), exact.where(~finite, 0), 0.0, f"{what}, infinities")
    exact = exact.where(finite, 0)
    baseline = (reference.detach().double().where(finite, 0) - exact).abs()
    allowed = ratio * largest(baseline) + floor * torch.finfo(dtype).eps * max(largest(exact.abs()), least)
    assert_within(wide.where(finite, 0), exact, allowed, what)


def assert_close(got: Tensor, want: Tensor, what: str) -> None:
    """Equal up to the rounding of a small problem; -inf and NaN in the same places."""
    got, want = got.detach().double(), want.detach().double()
    if got.shape != want.shape:
        raise AssertionError(f"{what}: shape {list(got.shape)}; it must be {list(want.shape)}")
    same = (got == want) | (torch.isnan(got) & torch.isnan(want))
    got, want = got.where(~same, 0), want.where(~same, 0)
    assert_within(got, want, 2e-5 * max(1.0, largest(want.where(torch.isfinite(want), 0).abs())), what)


def assert_within(got: Tensor, want: Tensor, allowed: float, what: str) -> None:
    """No element further apart than `allowed`; NaN only beside NaN."""
    same = (got == want) | (torch.isnan(got) & torch.isnan(want))
    difference = torch.where(same, 0, (got - want).abs()).nan_to_num(nan=float("inf"))
    if largest(difference) > allowed:
        flat = int(difference.argmax())
        place = (
            [int(index) for index in torch.unravel_index(torch.tensor(flat), difference.shape)]
            if difference.ndim
            else []
        )
        here, there = float(got.flatten()[flat]), float(want.flatten()[flat])
        raise AssertionError(
            f"{what}: largest difference {float(difference.max()):.3g} (at most {allowed:.3g} allowed) at {place}: "
            f"{here:.6g}, not {there:.6g}"
        )


def _kind(given: object) -> str:
    return f"a tensor of {given.dtype}" if isinstance(given, Tensor) else type(given).__name__


def largest(tensor: Tensor) -> float:
    """The largest element, 0 of none."""
    return float(tensor.max()) if tensor.numel() else 0.0
