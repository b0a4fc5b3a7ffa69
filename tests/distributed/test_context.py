"""A divided sequence gives one process's numbers: forward, every gradient, for any pattern and bias."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import attnops
from attnops import Coords
from attnops.closeness import assert_close_as_reference
from attnops.distributed import DisagreementError, context_attend
from attnops.distributed.layout import Layout

BATCH, HEADS, KV_HEADS, DIM, VALUE_DIM = 2, 4, 4, 8, 8


class Whole:
    """A problem on the whole sequence, the same on every rank."""

    def __init__(self, length: int, dtype: torch.dtype, *, heads: int = HEADS, kv_heads: int = KV_HEADS, **sizes: int):
        generator = torch.Generator().manual_seed(length)
        queries, value_dim = sizes.get("queries", length), sizes.get("value_dim", VALUE_DIM)

        def normal(*shape: int) -> Tensor:
            return torch.randn(*shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

        self.query = normal(BATCH, heads, queries, DIM)
        self.key, self.value = normal(BATCH, kv_heads, length, DIM), normal(BATCH, kv_heads, length, value_dim)
        self.upstream = normal(BATCH, heads, queries, value_dim).detach()
        self.upstream_lse = normal(BATCH, heads, queries).detach()
        self.length, self.dtype = length, dtype

    def coords(self) -> dict[str, Tensor]:
        """Documents, times that a gradient may be asked of, types."""
        place = torch.arange(self.length)
        return {
            "segment": (place * 3) // max(1, self.length),
            "time": (place.double() * 0.37).to(self.dtype),
            "type": place % 3,
        }


class UsersOwn(attnops.Bias):
    """Reads storage rows, heads and positions, and learns."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.linspace(-1, 1, heads))

    def forward(self, pairs: Any) -> Tensor:
        parity = (pairs.query.index * 3 + pairs.key.index * 5 + pairs.query.position) % 7
        return self.weight[pairs.head] * parity.to(pairs.dtype) / 7


class EveryThird(attnops.Pattern):
    def allows(self, pairs: Any) -> Tensor:
        return (pairs.query.index - pairs.key.index) % 3 != 1


class UsersScore(attnops.Score):
    def forward(self, query: Tensor, key: Tensor, pairs: Any) -> Tensor:
        return -(query - key).square().sum(-1) * (1 + 0.1 * (pairs.key.index % 2).to(query.dtype).unsqueeze(-1)[..., 0])


def masked(length: int) -> Tensor:
    return torch.rand(BATCH, 1, length, length, generator=torch.Generator().manual_seed(1)) < 0.6


def table(length: int, dtype: torch.dtype) -> nn.Parameter:
    values = torch.randn(HEADS, length, length, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    return nn.Parameter(values.to(dtype))


def filled(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(3)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=generator, dtype=torch.float64).to(parameter.dtype)
    return module


Case = Callable[[int, torch.dtype], dict[str, Any]]
A = attnops
CASES: dict[str, Case] = {
    "full": lambda n, d: {},
    "causal": lambda n, d: {"pattern": A.Causal()},
    "window": lambda n, d: {"pattern": A.SlidingWindow(3)},
    "alibi": lambda n, d: {"pattern": A.Causal(), "bias": A.ALiBi(HEADS)},
    "rotary": lambda n, d: {"pattern": A.Causal(), "bias": A.Rotary(DIM)},
    "rotary by length": lambda n, d: {
        "bias": A.Rotary(DIM, scaling=A.RotaryScaling.dynamic_ntk(4.0, 4)) + A.Causal(),
    },
    "relative": lambda n, d: {"pattern": A.Causal(), "bias": A.RelativeBias(HEADS, 8, 16, bidirectional=False)},
    "documents": lambda n, d: {"pattern": A.SameSegment() & A.Causal(), "coords": ("segment",)},
    "time gaps": lambda n, d: {"bias": A.TimeGap(HEADS), "coords": ("time",), "coord_grad": True},
    "types": lambda n, d: {"bias": A.TypePrior(3, 3, HEADS), "coords": ("type",)},
    "padding": lambda n, d: {"pattern": A.Padding(torch.tensor([n, min(n, 2)])) & A.Causal()},
    "mask": lambda n, d: {"pattern": masked(n)},
    "blocks": lambda n, d: {"pattern": A.BlockMask(torch.ones(-(-n // 4), -(-n // 4)).tril().bool(), 4)},
    "global tokens": lambda n, d: {"pattern": (A.SlidingWindow(2, 2) | A.GlobalTokens([0, n // 2]))},
    "tensor bias": lambda n, d: {"pattern": A.Causal(), "bias": table(n, d)},
    "sink": lambda n, d: {"pattern": A.SlidingWindow(3), "bias": A.ALiBi(HEADS) + A.Sink(HEADS)},
    "users' own": lambda n, d: {"pattern": EveryThird(), "bias": UsersOwn(HEADS)},
    "softcap": lambda n, d: {"pattern": A.Causal(), "score": A.DotProduct(softcap=2.0), "scale": 0.7},
    "additive": lambda n, d: {"pattern": A.Causal(), "score": A.Additive(HEADS, DIM)},
    "shaw": lambda n, d: {"pattern": A.Causal(), "bias": A.RelativeKeys(HEADS, DIM, 4)},
    "shaw and rotary": lambda n, d: {"bias": A.RelativeKeys(HEADS, DIM, 4) + A.Rotary(DIM) + A.Causal()},
    "separable": lambda n, d: {"score": A.SeparableAdditive(HEADS, DIM)},
    "users' score": lambda n, d: {"score": UsersScore()},
}
HEADS_AT_ONCE = {"shaw", "shaw and rotary", "separable"}  # all_to_all refuses these


def build(name: str, whole: Whole, dtype: torch.dtype) -> tuple[dict[str, Any], dict[str, Tensor], list[Tensor]]:
    """The call's arguments for the whole, its coords, and what else takes gradients."""
    arguments = CASES[name](whole.length, dtype)
    names = arguments.pop("coords", ())
    wants = arguments.pop("coord_grad", False)
    coords = {each: value for each, value in whole.coords().items() if each in names}
    learned: list[Tensor] = []
    for each in ("bias", "score"):
        given = arguments.get(each)
        if isinstance(given, nn.Module):
            arguments[each] = filled(given.to(dtype))
            learned += given.parameters()
        elif isinstance(given, Tensor):
            learned.append(given)
    if wants:
        coords = {each: value.requires_grad_() for each, value in coords.items()}
        learned += coords.values()
    return arguments, coords, learned


def one_process(name: str, whole: Whole, dtype: torch.dtype) -> list[Tensor]:
    """out, lse and all gradients of one process on the reference."""
    arguments, coords, learned = build(name, whole, dtype)
    given = Coords(**coords) if coords else None
    result = attnops.attend(
        whole.query, whole.key, whole.value, return_lse=True, backend="reference", coords=given, **arguments
    )
    return [result.out, result.lse, *gradients(result, whole, learned)]


def gradients(result: Any, whole: Whole, learned: list[Tensor], rows: Any = None) -> list[Tensor]:
    upstream, lse = whole.upstream, torch.where(torch.isfinite(result.lse), result.lse, 0)
    upstream_lse = whole.upstream_lse
    if rows is not None:
        upstream, upstream_lse = upstream[:, :, rows], upstream_lse[:, :, rows]
    loss = (result.out * upstream).sum() + (lse * upstream_lse).sum()
    leaves = [whole.query, whole.key, whole.value, *learned]
    grads = torch.autograd.grad(loss, leaves, allow_unused=True)
    return [torch.zeros_like(x) if grad is None else grad for x, grad in zip(leaves, grads, strict=True)]


def together(tensor: Tensor, group: Any) -> Tensor:
    tensor = tensor.contiguous().clone()
    torch.distributed.all_reduce(tensor, group=group)
    return tensor


def divided(
    name: str, whole: Whole, dtype: torch.dtype, group: Any, order: str, method: str, lengths: Any
) -> list[Tensor]:
    """The same from several ranks, put together again."""
    arguments, coords, learned = build(name, whole, dtype)
    rank = group.rank()
    layouts = [
        Layout(lengths, order) if lengths is not None else Layout.of(count, group.size(), order)
        for count in (whole.query.shape[-2], whole.length)
    ]
    of_queries, of_keys = (layout.rows(rank) for layout in layouts)
    given = Coords(**{each: value[of_keys] for each, value in coords.items()}) if coords else None
    # slices of the whole: their gradients are laid out in the whole, zero elsewhere, and sum over ranks
    result = context_attend(
        whole.query[:, :, of_queries], whole.key[:, :, of_keys], whole.value[:, :, of_keys],
        mesh=group, order=order, method=method, coords=given, return_lse=True, **arguments,
    )  # fmt: skip
    out = torch.zeros(*whole.query.shape[:-1], whole.value.shape[-1], dtype=dtype)
    lse = torch.zeros(whole.query.shape[:-1], dtype=result.lse.dtype)
    out[:, :, of_queries], lse[:, :, of_queries] = result.out.detach(), result.lse.detach()
    parts = [out, lse, *gradients(result, whole, learned, of_queries)]
    return [together(part, group) for part in parts]


def equal(
    group: Any,
    name: str,
    length: int,
    order: str,
    method: str,
    dtype: torch.dtype = torch.float32,
    lengths: Any = None,
    sizes: dict[str, int] | None = None,
) -> None:
    torch.manual_seed(0)
    whole = Whole(length, dtype, **(sizes or {}))
    got = divided(name, whole, dtype, group, order, method, lengths)
    if group.rank() > 0:
        return  # all have the same sums; one looks at them
    wide = copy.copy(whole)
    wide.dtype = torch.float64
    for each in ("query", "key", "value"):
        setattr(wide, each, getattr(whole, each).detach().double().requires_grad_())
    wide.upstream, wide.upstream_lse = whole.upstream.double(), whole.upstream_lse.double()
    golden, plain = one_process(name, wide, torch.float64), one_process(name, whole, dtype)
    for place, (mine, exact, reference) in enumerate(zip(got, golden, plain, strict=True)):
        kind = "forward" if place < 2 else "gradient" if place < 5 else "parameter"
        assert_close_as_reference(
            mine, exact, reference, kind=kind, dtype=dtype, least=1.0, what=f"{name}: {kind} {place}"
        )


@pytest.mark.parametrize("world", [2, 3, 4])
@pytest.mark.parametrize("name", CASES)
def test_a_ring_equals_one_process(ranks: Any, name: str, world: int) -> None:
    order = "zigzag" if world % 2 == 0 or name in ("causal", "documents") else "contiguous"
    ranks(equal, name, 13, order, "ring", world=world)


@pytest.mark.parametrize("method", ["ring", "all_to_all"])
def test_one_rank_alone(ranks: Any, method: str) -> None:
    for name in ("causal", "rotary", "documents", "sink", "users' own"):
        ranks(equal, name, 13, "zigzag", method, world=1)


@pytest.mark.parametrize("name", [name for name in CASES if name not in HEADS_AT_ONCE])
def test_exchanged_heads_equal_one_process(ranks: Any, name: str) -> None:
    world = 2 if len(name) % 2 else 4
    ranks(equal, name, 13, "zigzag" if world == 2 else "contiguous", "all_to_all", world=world)


@pytest.mark.parametrize(
    "name", ["causal", "alibi", "documents", "tensor bias", "padding", "rotary", "rotary by length"]
)
@pytest.mark.parametrize("lengths", [(5, 0, 8), (0, 0, 13), (1, 11, 1)])
def test_ranks_may_hold_any_number_of_tokens_and_none(ranks: Any, name: str, lengths: tuple[int, ...]) -> None:
    ranks(equal, name, 13, "contiguous", "ring", torch.float32, lengths, world=3)


def test_fewer_tokens_than_ranks(ranks: Any) -> None:
    for length in (0, 1, 2, 3):
        ranks(equal, "causal", length, "zigzag", "ring", world=4)


@pytest.mark.parametrize("method", ["ring", "all_to_all"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_dtypes(ranks: Any, method: str, dtype: torch.dtype) -> None:
    ranks(equal, "alibi", 24, "zigzag", method, dtype)


@pytest.mark.parametrize("method", ["ring", "all_to_all"])
def test_grouped_heads_other_value_widths_and_more_keys_than_queries(ranks: Any, method: str) -> None:
    sizes = {"kv_heads": 2, "value_dim": 5, "queries": 9}
    for name in ("causal", "rotary", "alibi"):
        ranks(equal, name, 17, "contiguous", method, torch.float32, None, sizes)


# ----------------------------------------------------------------------------------------------------------- the rest


def dropping(group: Any, method: str) -> tuple[Tensor, Tensor]:
    torch.manual_seed(group.rank())
    query = torch.zeros(1, 2, 400 // group.size(), 4, requires_grad=True)
    value = torch.ones(1, 2, 400 // group.size(), 4, requires_grad=True)
    out = context_attend(query, query, value, mesh=group, dropout=0.25, method=method)
    grad = torch.autograd.grad(out.sum(), value)[0]
    return together(out.detach().mean(), group) / group.size(), together(out.sum().detach() - grad.sum(), group)


@pytest.mark.parametrize("method", ["ring", "all_to_all"])
def test_dropout_is_the_same_forward_and_backward(ranks: Any, method: str) -> None:
    """With a value of ones, the output is what of the weights is kept, and the gradients sum to it."""
    (mean, difference), _ = ranks(dropping, method)
    assert abs(mean - 1) < 0.05
    assert mean != 1
    assert abs(difference) < 1e-2


def disagree_on(group: Any, what: str) -> str:
    x = torch.randn(1, 2, 4, 4)
    odd = group.rank() == 1
    arguments: dict[str, Any] = {"pattern": attnops.Causal()}
    if what == "pattern":
        arguments["pattern"] = attnops.SlidingWindow(2) if odd else attnops.Causal()
    if what == "bias":
        arguments["bias"] = attnops.ALiBi(2) if odd else None
    if what == "heads":
        x = torch.randn(1, 4, 4, 4) if odd else x
    if what == "dtype":
        x = x.double() if odd else x
    if what == "coords":
        arguments["coords"] = Coords(time=torch.arange(4)) if odd else None
    if what == "requires_grad":
        x.requires_grad_(odd)
    if what == "order":
        arguments["order"] = "zigzag" if odd else "contiguous"
    with pytest.raises(DisagreementError) as caught:
        context_attend(x, x, x, mesh=group, **arguments)
    return str(caught.value)


@pytest.mark.parametrize("what", ["pattern", "bias", "heads", "dtype", "coords", "requires_grad", "order"])
def test_a_disagreement_is_an_error_on_every_rank(ranks: Any, what: str) -> None:
    for message in ranks(disagree_on, what, seconds=10):
        assert what in message
        assert "rank 0" in message and "rank 1" in message


def bad_argument(group: Any) -> str:
    x = torch.randn(1, 2, 4, 4)
    key = torch.randn(1, 2, 4, 3) if group.rank() == 1 else x
    with pytest.raises(ValueError if group.rank() == 1 else DisagreementError) as caught:
        context_attend(x, key, key, mesh=group)
    return str(caught.value)


def test_a_bad_argument_on_one_rank_is_an_error_on_all(ranks: Any) -> None:
    other, own = ranks(bad_argument, seconds=10)
    assert own == "key has D = 3; it must be 4, as query's"
    assert "rank 1 refused its arguments: key has D = 3" in other


REFUSED: dict[str, tuple[type[Exception], str, Callable[[], dict[str, Any]]]] = {
    "edges": (ValueError, "edge list", lambda: {"pattern": A.Edges(torch.tensor([[0], [1]]), 8, 8)}),
    "mesh order": (ValueError, "order is 'spiral'", lambda: {"order": "spiral"}),
    "method": (ValueError, "method is 'star'", lambda: {"method": "star"}),
    "heads": (ValueError, "3 heads, which 2 ranks cannot share", lambda: {"method": "all_to_all", "heads": 3}),
    "bias heads": (ValueError, "ALiBi has 4 heads; query has 3", lambda: {"bias": A.ALiBi(4), "heads": 3}),
    "binds": (ValueError, "RelativeKeys", lambda: {"method": "all_to_all", "bias": A.RelativeKeys(2, 4, 2)}),
    "mask": (ValueError, "mask has shape", lambda: {"pattern": torch.ones(4, 4, dtype=torch.bool)}),
    "table": (ValueError, "whole sequence", lambda: {"bias": torch.zeros(4, 4)}),
    "pattern": (TypeError, "pattern is int", lambda: {"pattern": 3}),
    "bias": (TypeError, "bias is str", lambda: {"bias": "alibi"}),
    "zigzag": (ValueError, "are divided as", lambda: {"order": "zigzag", "uneven": True}),
    "types": (ValueError, "type", lambda: {"bias": A.TypePrior(2, 2, 2), "coords": Coords(type=torch.full((4,), 5))}),
}


def refused(group: Any, name: str) -> None:
    error, text, make = REFUSED[name]
    arguments = make()
    x = torch.randn(1, arguments.pop("heads", 2), 4, 4)
    if arguments.pop("uneven", False):
        x = x[:, :, : 3 if group.rank() else 1]
    with pytest.raises(error, match=text):
        context_attend(x, x, x, mesh=group, **arguments)


@pytest.mark.parametrize("name", REFUSED)
def test_bad_arguments_are_named(ranks: Any, name: str) -> None:
    ranks(refused, name, seconds=10)


def twice(group: Any) -> None:
    x = torch.randn(1, 2, 4, 4, requires_grad=True)
    (grad,) = torch.autograd.grad(context_attend(x, x, x, mesh=group).sum(), x, create_graph=False)
    assert grad.shape == x.shape
    with pytest.raises(attnops.UnsupportedError, match="no second derivative"):
        torch.autograd.grad(context_attend(x, x, x, mesh=group).sum(), x, create_graph=True)


def test_a_second_derivative_is_refused(ranks: Any) -> None:
    ranks(twice)


def under_autocast(group: Any) -> None:
    x = torch.randn(1, 2, 4, 8, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        out = context_attend(x, x, x, mesh=group, pattern=attnops.Causal(), bias=attnops.Rotary(8))
    assert out.dtype == torch.float32
    (grad,) = torch.autograd.grad(out.sum(), x)
    assert grad.dtype == torch.float32 and torch.isfinite(grad).all()


def test_autocast_keeps_the_dtype_of_the_query(ranks: Any) -> None:
    ranks(under_autocast)


def without_an_effect(group: Any) -> None:
    """Values that no pair may read hold NaN, on another rank."""
    x = torch.randn(1, 2, 4, 4)
    value = x.clone()
    if group.rank() == 1:
        value[:, :, 2:] = float("nan")
    out = context_attend(x, x, value, mesh=group, pattern=attnops.Padding(torch.tensor([6])))
    assert torch.isfinite(out).all()


def test_what_no_pair_allows_is_never_read(ranks: Any) -> None:
    ranks(without_an_effect)
