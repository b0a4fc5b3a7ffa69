"""What only one rank gets wrong is an error on each, at once; and after any error the group still serves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import attnops
from attnops.distributed import DisagreementError, context_attend, shard_coords, shard_inputs, shard_sequence
from attnops.distributed import unshard_sequence as whole_of
from attnops.seq import Decoder, TransformerConfig

A = attnops
SECONDS = 10  # of a test: less than the timeout of the group


def vectors(**changes: Any) -> Tensor:
    return torch.randn(1, 2, 4, 4, **changes)


def model() -> Decoder:
    return Decoder(TransformerConfig(vocab_size=10, dim=8, layers=1, heads=2))


def attended(group: Any, query: Any = None, **arguments: Any) -> Tensor:
    query = vectors() if query is None else query
    return context_attend(query, vectors(), vectors(), mesh=group, **arguments)


def sharded(group: Any, order: str = "zigzag", method: str = "ring", ids: Any = None, module: Any = None) -> Any:
    ids = torch.zeros(2, 8, dtype=torch.int64) if ids is None else ids
    return shard_inputs(module or model(), ids, mesh=group, order=order, method=method)


ODD: dict[str, tuple[type[Exception], str, Callable[[Any, bool], object]]] = {
    "pattern": (TypeError, "pattern is int", lambda g, odd: attended(g, pattern=3 if odd else A.Causal())),
    "bias": (TypeError, "bias is str", lambda g, odd: attended(g, bias="alibi" if odd else None)),
    "edges": (
        ValueError,
        "pattern holds an edge list",
        lambda g, odd: attended(g, pattern=A.Edges(torch.tensor([[0], [1]]), 8, 8) if odd else A.Causal()),
    ),
    "order": (ValueError, "order is 'spiral'", lambda g, odd: attended(g, order="spiral" if odd else "zigzag")),
    "method": (ValueError, "method is 'star'", lambda g, odd: attended(g, method="star" if odd else "ring")),
    "return_lse": (TypeError, "return_lse is 'yes'", lambda g, odd: attended(g, return_lse="yes" if odd else False)),
    "query": (TypeError, "query is a list", lambda g, odd: attended(g, [1.0] if odd else None)),
    "meta": (ValueError, "key lies on cpu", lambda g, odd: attended(g, vectors(device="meta") if odd else None)),
    "ids": (TypeError, "ids is str", lambda g, odd: sharded(g, ids="text" if odd else None)),
    "model": (TypeError, "model is str", lambda g, odd: sharded(g, module="decoder" if odd else None)),
    "order of inputs": (ValueError, "order is 'spiral'", lambda g, odd: sharded(g, "spiral" if odd else "zigzag")),
    "method of inputs": (ValueError, "method is 'star'", lambda g, odd: sharded(g, method="star" if odd else "ring")),
    "tensor": (TypeError, "tensor is str", lambda g, odd: whole_of("tokens" if odd else torch.zeros(2), g)),
    "order of a whole": (
        ValueError,
        "order is 'spiral'",
        lambda g, odd: whole_of(torch.zeros(2), g, order="spiral" if odd else "zigzag"),
    ),
}


def amiss(group: Any, name: str) -> None:
    error, text, call = ODD[name]
    odd = group.rank() == 1
    with pytest.raises(error if odd else DisagreementError) as caught:
        call(group, odd)
    assert text in str(caught.value)
    assert odd or "rank 1 refused its arguments" in str(caught.value)


@pytest.mark.parametrize("name", ODD)
def test_what_one_rank_gets_wrong_is_an_error_on_each(ranks: Any, name: str) -> None:
    ranks(amiss, name, seconds=SECONDS)


def frozen(odd: bool) -> attnops.Bias:
    return A.RelativeBias(2, 8, 16).requires_grad_(not odd)


def lower(group: Any, odd: bool) -> object:
    with torch.autocast("cpu", torch.bfloat16, enabled=odd):
        return attended(group)


OTHER: dict[str, tuple[str, Callable[[Any, bool], object]]] = {
    "lengths": ("pattern", lambda g, odd: attended(g, pattern=A.Padding(torch.tensor([9 if odd else 8])))),
    "frozen": ("what learns", lambda g, odd: attended(g, bias=frozen(odd))),
    "autocast": ("autocast", lower),
    "dtype": ("dtype", lambda g, odd: whole_of(torch.zeros(2, 3, dtype=torch.float64 if odd else None), g)),
    "width": ("shape beside dim", lambda g, odd: whole_of(torch.zeros(3 if odd else 2, 3), g)),
    "axes": ("shape beside dim", lambda g, odd: whole_of(torch.zeros((2, 3, 1) if odd else (2, 3)), g)),
    "dim": ("dim", lambda g, odd: whole_of(torch.zeros(3, 3), g, dim=0 if odd else 1)),
    "order": ("order", lambda g, odd: whole_of(torch.zeros(3), g, order="zigzag" if odd else "contiguous")),
    "gradient": ("requires_grad", lambda g, odd: whole_of(torch.zeros(3, requires_grad=odd), g)),
}


def differ(group: Any, name: str) -> None:
    what, call = OTHER[name]
    with pytest.raises(DisagreementError, match=f"{what} is .* on rank 0, .* on rank 1"):
        call(group, group.rank() == 1)


@pytest.mark.parametrize("name", OTHER)
def test_what_ranks_differ_in_is_named_before_anything_is_sent(ranks: Any, name: str) -> None:
    ranks(differ, name, seconds=SECONDS)


SAME: dict[str, tuple[type[Exception], str, Callable[[Any], object]]] = {
    "a coord that is not given": (ValueError, "coords.time", lambda g: attended(g, bias=A.TimeGap(2))),
    "a backend that is none": (ValueError, "backend is 'warp'", lambda g: attended(g, backend="warp")),
    "a backend that refuses": (A.UnsupportedError, "'scatter' refuses", lambda g: attended(g, backend="scatter")),
    "all on meta": (
        ValueError,
        "query lies on meta",
        lambda g: context_attend(*[vectors(device="meta")] * 3, mesh=g),
    ),
    "an axis": (ValueError, "dim is 5", lambda g: whole_of(torch.zeros(2, 3), g, dim=5)),
    "a number": (ValueError, "dim is -1", lambda g: whole_of(torch.tensor(1.0), g)),
    "an axis to cut": (ValueError, "dim is 2", lambda g: shard_sequence(torch.zeros(2, 3), g, dim=2)),
    "a list to cut": (TypeError, "tensor is list", lambda g: shard_sequence([1, 2], g)),  # type: ignore[arg-type]
    "coords": (TypeError, "coords is dict", lambda g: shard_coords({}, g)),  # type: ignore[arg-type]
    "a mesh": (TypeError, "mesh is int", lambda g: shard_sequence(torch.zeros(3), 3)),  # type: ignore[arg-type]
}


def refused_and_on(group: Any, name: str) -> None:
    error, text, call = SAME[name]
    with pytest.raises(error, match=text):
        call(group)
    torch.manual_seed(0)
    x = torch.randn(1, 2, 8, 4)
    own = [shard_sequence(x, group, dim=2) for _ in range(3)]
    out = whole_of(context_attend(*own, mesh=group, pattern=A.Causal()), group, dim=2)
    torch.testing.assert_close(out, A.attend(x, x, x, pattern=A.Causal()))


@pytest.mark.parametrize("name", SAME)
def test_the_group_serves_on_after_an_error_of_all(ranks: Any, name: str) -> None:
    """Blocks that are on their way when a rank raises are taken in, or the next exchange would meet them."""
    ranks(refused_and_on, name, seconds=SECONDS)


def dropped(group: Any, method: str) -> Tensor:
    """Which weights are kept, where every rank has the same random numbers."""
    torch.manual_seed(5)
    own = 32 // group.size()
    value = torch.eye(32)[None].expand(4, -1, -1)
    query, key = torch.zeros(2, 4, own, 4)
    value = shard_sequence(value, group, dim=1)
    return context_attend(query, key, value, mesh=group, dropout=0.5, method=method) > 0


def test_ranks_drop_other_pairs_of_a_ring_though_their_random_numbers_are_the_same(ranks: Any) -> None:
    first, second = ranks(dropped, "ring")  # [4, 16, 32] each
    assert 0.4 < (first[..., :16] == second[..., 16:]).float().mean() < 0.6
    assert 0.4 < (first[..., :16] == second[..., :16]).float().mean() < 0.6


def test_ranks_drop_other_pairs_of_exchanged_heads_too(ranks: Any) -> None:
    kept = torch.cat(ranks(dropped, "all_to_all"), 1)  # [4, 32, 32]; heads 0, 1 and 2, 3 on one rank each
    assert 0.4 < (kept[:2] == kept[2:]).float().mean() < 0.6


def of_dtype(group: Any, dtype: torch.dtype) -> None:
    whole = torch.arange(14).view(2, 7).to(dtype)
    wants = dtype.is_floating_point
    own = shard_sequence(whole, group, dim=1, order="zigzag").requires_grad_(wants)
    again = whole_of(own, group, dim=1, order="zigzag")
    assert again.dtype == dtype and torch.equal(again.float(), whole.float())
    if wants:
        again.sum().backward()
        assert own.grad is not None and (own.grad == group.size()).all()


DTYPES = (torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int16, torch.uint8, torch.bool)


@pytest.mark.parametrize("dtype", DTYPES)
def test_sequences_of_every_dtype_come_together(ranks: Any, dtype: torch.dtype) -> None:
    if dtype == torch.bool:
        ranks(of_dtype, dtype, world=3)
    else:
        ranks(of_dtype, dtype)
