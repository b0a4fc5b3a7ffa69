"""The fixtures that other tests lean on do what they say."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.usefixtures("poison")
def test_poison_fills_what_empty_returns() -> None:
    like = torch.zeros(2, 3)
    for tensor in (
        torch.empty(2, 3),
        torch.empty_like(like),
        torch.empty_strided((2, 3), (3, 1)),
        like.new_empty(2, 3),
        like.new_empty_strided((2, 3), (3, 1)),
        torch.empty(2, 3, dtype=torch.float16),
    ):
        assert torch.isnan(tensor).all()
    assert torch.empty(3, dtype=torch.int64).dtype == torch.int64
    assert torch.empty(2, requires_grad=True).requires_grad


def test_poison_is_gone_where_nobody_asks_for_it() -> None:
    assert "allocate_with_nan" not in repr(torch.empty)


@pytest.mark.parametrize("_again", [0, 1])
def test_each_test_starts_from_the_same_seed(_again: int) -> None:
    assert torch.equal(torch.rand(3), torch.rand(3, generator=torch.Generator().manual_seed(0)))


def test_field_cases_have_answers(cases) -> None:
    inputs, expected = cases.CASES["B05"]()
    assert isinstance(inputs, dict) and isinstance(expected, dict)


def test_data_is_a_folder_of_data_sets(data_dir) -> None:
    assert any(data_dir.iterdir())
