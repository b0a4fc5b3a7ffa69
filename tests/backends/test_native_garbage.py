"""`native` on a grid beside NaN, infinity and what it does not take: none of it becomes a number."""

from __future__ import annotations

import pytest
import torch

import attnops
from attnops import block_kernel
from attnops.kernels import library
from tests.backends.sequences import normal

pytestmark = pytest.mark.skipif(library.unavailable() is not None, reason=library.unavailable() or "")


def test_garbage_that_nobody_attends_stays_out(monkeypatch: pytest.MonkeyPatch) -> None:
    query, key, value = (normal(2, 2, 30, 8, seed=seed) for seed in range(3))
    padding = attnops.Padding(torch.tensor([11, 0]))
    want = [attnops.attend(query, key, value, pattern=padding, backend="reference")]
    key[0, :, 11:], value[0, :, 11:], key[1], value[1], query[1] = (float("nan"), float("inf")) * 2 + (float("nan"),)
    leaves = [x.requires_grad_() for x in (query, key, value)]
    for pattern in (padding, padding & attnops.Dilated(1)):  # told by ranges, and evaluated
        for rows in (256, 7):
            monkeypatch.setattr(block_kernel, "ROWS", rows)
            for learns in (True, False):
                with torch.set_grad_enabled(learns):
                    out = attnops.attend(*leaves, pattern=pattern, backend="native")
                torch.testing.assert_close(out, want[0])
                if learns:
                    dquery, *others = torch.autograd.grad(out.sum(), leaves)  # type: ignore[union-attr]
                    assert torch.isfinite(dquery).all() and (dquery[1] == 0).all()
                    for grad in others:
                        assert torch.isfinite(grad).all() and (grad[1] == 0).all() and (grad[0, :, 11:] == 0).all()


def test_garbage_that_some_attend_is_refused_and_auto_goes_on() -> None:
    x = normal(1, 6, 4)
    value = x.clone()
    value[:, 3] = float("nan")
    with pytest.raises(attnops.UnsupportedError, match="not finite where some query may attend"):
        attnops.attend(x, x, value, pattern=attnops.Causal(), backend="native")
    out = attnops.attend(x, x, value, pattern=attnops.Causal())
    assert torch.isfinite(out[:, :3]).all() and torch.isnan(out[:, 3:]).all()  # type: ignore[index]


def test_a_query_of_nan_shows_in_its_row_alone() -> None:
    query, key = normal(1, 5, 4), normal(1, 7, 4, seed=1)
    query[:, 2] = float("nan")
    out = attnops.attend(query, key, key, backend="native")
    assert torch.isnan(out[:, 2]).all() and torch.isfinite(out[:, [0, 1, 3, 4]]).all()  # type: ignore[index]


def test_weights_and_other_scores_are_refused() -> None:
    x = normal(2, 9, 4)
    for arguments in ({"return_weights": True}, {"score": attnops.Additive(2, 4)}):
        with pytest.raises(attnops.UnsupportedError, match="without an edge list"):
            attnops.attend(x, x, x, backend="native", **arguments)  # type: ignore[arg-type]


@pytest.mark.parametrize("bits", [0x7FC00000, 0x7FC00001, 0x7F800001, -1])
def test_any_nan_stays_a_nan(bits: int) -> None:
    """Uninitialised memory holds NaNs of every payload; none becomes a number."""
    query, key, value = torch.randn(3, 1, 2, 30, 16)
    key[:, :, 0] = torch.tensor([bits], dtype=torch.int32).view(torch.float32)
    out = attnops.attend(query, key, value, backend="native", return_lse=True)
    assert isinstance(out, attnops.AttentionOutput) and out.lse is not None
    assert torch.isnan(out.out).all() and torch.isnan(out.lse).all()
    with pytest.raises(attnops.UnsupportedError, match="finite"):
        attnops.attend(query, key, value, pattern=attnops.Causal(), backend="native")


def test_more_rows_than_32_bits_count_are_refused() -> None:
    query = torch.randn(1, 1, 1, 4)
    keys = query.expand(1, 1, 2**31 + 5, 4)
    with pytest.raises(attnops.UnsupportedError, match="counted in 32 bits"):
        attnops.attend(query, keys, keys, pattern=attnops.SlidingWindow(3), backend="native")
