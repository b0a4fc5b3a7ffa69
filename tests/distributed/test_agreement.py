"""Ranks that disagree learn it at once, all of them."""

from __future__ import annotations

from typing import Any

import pytest

from attnops.distributed import DisagreementError, agree


def agreeing(group: Any) -> list[tuple[int, ...]]:
    rank = group.rank()
    return agree("attend", {"heads": 4, "pattern": "Causal()"}, group, numbers=[rank, 10 * rank])


def test_numbers_of_all_ranks_come_back(ranks: Any) -> None:
    assert ranks(agreeing, world=3) == [[(0, 0), (1, 10), (2, 20)]] * 3


def disagreeing(group: Any) -> str:
    rank = group.rank()
    with pytest.raises(DisagreementError) as caught:
        agree("attend", {"heads": 4, "pattern": "Causal()" if rank else "Full()"}, group)
    return str(caught.value)


def test_a_disagreement_is_named_on_every_rank(ranks: Any) -> None:
    messages = ranks(disagreeing, world=3)
    assert messages[0] == messages[1] == messages[2]
    assert "pattern is Full() on rank 0, Causal() on rank 1, Causal() on rank 2" in messages[0]
    assert "heads" not in messages[0]


def different_calls(group: Any) -> str:
    with pytest.raises(DisagreementError) as caught:
        agree("attend" if group.rank() else "halo", {"heads": 4}, group)
    return str(caught.value)


def test_different_calls(ranks: Any) -> None:
    assert "rank 0 calls halo, rank 1 calls attend" in ranks(different_calls)[1]


def refusing(group: Any) -> str:
    refusal = ValueError("key has 3 heads") if group.rank() == 1 else None
    with pytest.raises(ValueError if group.rank() == 1 else DisagreementError) as caught:
        agree("attend", {"heads": 4}, group, refusal=refusal)
    return str(caught.value)


def test_a_rank_that_refuses_its_arguments_does_not_keep_the_others_waiting(ranks: Any) -> None:
    other, own = ranks(refusing)
    assert own == "key has 3 heads"
    assert other == "attend: rank 1 refused its arguments: key has 3 heads"


def test_more_than_fits_is_refused() -> None:
    with pytest.raises(ValueError, match="numbers 9"):
        agree("attend", {}, numbers=range(9))
