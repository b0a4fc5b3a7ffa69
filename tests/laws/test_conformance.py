"""`attnops.testing` passes what is right, and says where what is wrong goes wrong."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import attnops
from attnops.testing import assert_close_as_reference, check_bias, check_pattern, check_score

H = 4
TIMES = attnops.Coords(time=torch.tensor([0.0, 0.5, 0.75, 3.0, 3.5]))


@pytest.mark.parametrize(
    "bias",
    [
        attnops.ALiBi(H),
        attnops.ALiBi(H) + attnops.Causal(),
        attnops.RelativeBias(H, buckets=8, max_distance=6),
        attnops.RelativeKeys(H, dim=16, max_distance=2),
        attnops.EdgeBias(3, H),
        attnops.EdgeTypePrior(2, H),
        attnops.TypePrior(2, 2, H),
        attnops.LogPrior(),
        attnops.TimeGap(H),
        attnops.Distance(H, max_distance=1),
        attnops.Sink(H),
        attnops.Sink(H) + attnops.TimeGap(H) + attnops.RelativeKeys(H, 16, 3),
        attnops.EdgeBias(4, H) + attnops.LogPrior() + attnops.ALiBi(H),
    ],
    ids=str,
)
def test_own_biases_pass(bias: attnops.Bias) -> None:
    check_bias(bias, heads=H)


def test_coords_and_edge_data_that_are_given_are_used() -> None:
    check_bias(attnops.TimeGap(H), heads=H, coords=TIMES)
    check_bias(attnops.TimeGap(H), heads=H, coords=(TIMES, attnops.Coords(time=torch.rand(3, 9))))
    check_bias(attnops.EdgeBias(2, H), heads=H, edge={"attr": torch.rand(20, 2)})
    with pytest.raises(AssertionError, match="edge_dim=2"):
        check_bias(attnops.EdgeBias(2, H), heads=H, edge={"attr": torch.rand(20, 3)})
    with pytest.raises(ValueError, match=r"edge data have 40 rows; 5 queries and 5 keys join in fewer pairs"):
        check_bias(attnops.EdgeBias(2, H), heads=H, coords=TIMES, edge={"attr": torch.rand(40, 2)})


@pytest.mark.parametrize(
    "pattern",
    [
        attnops.Full(),
        attnops.Causal(),
        attnops.SlidingWindow(2, 1) | attnops.GlobalTokens([0]),
        ~(attnops.Causal() & attnops.Dilated(2)),
        attnops.Chunked(2) | attnops.PrefixLM(1),
        attnops.SameSegment() & attnops.Causal(),
        attnops.Padding(torch.tensor([3, 7])),
        attnops.Mask(torch.rand(5, 7) > 0.5),
        attnops.BlockMask(torch.tensor([[True, False, True], [False, True, True]]), block_size=3),
        attnops.Edges(torch.tensor([[0, 1, 5, 5], [3, 0, 0, 2]]), num_queries=4, num_keys=6),
    ],
    ids=str,
)
def test_own_patterns_pass(pattern: attnops.Pattern) -> None:
    check_pattern(pattern)


@pytest.mark.parametrize(
    "score",
    [
        attnops.DotProduct(),
        attnops.Additive(H, 16),
        attnops.Additive(H, 16, activation="leaky_relu"),
        attnops.SeparableAdditive(H, 16),
    ],
    ids=str,
)
def test_own_scores_pass(score: attnops.Score) -> None:
    check_score(score, heads=H)


# ------------------------------------------------------------------------------- what is wrong is found, and where
class Learned(attnops.Bias):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(H, 2))


class FirstHeadInLists(Learned):
    def forward(self, pairs):
        head = pairs.head * 0 if len(pairs.shape) == 3 else pairs.head
        return self.weight[head, pairs.key.camera]


class ForgetsTheGradient(Learned):
    def forward(self, pairs):
        weight = self.weight if pairs.shape else self.weight.detach()
        return weight[pairs.head, pairs.key.camera]


class ReadsValues(attnops.Bias):
    def forward(self, pairs):
        return torch.zeros(()) if bool((pairs.query.camera == 0).all()) else (pairs.key.camera * 1.0)


class WholeGridOnly(attnops.Bias):
    def forward(self, pairs):
        return (pairs.query.index - pairs.query.index.min()) * 1.0


class Stale(attnops.Bias):
    """Right at first sight, and then never looks again."""

    kept = None

    def forward(self, pairs):
        if self.kept is None and len(pairs.shape) == 4:
            self.kept = pairs.key.index[..., :1] * 0.5 + 1
        return self.kept * pairs.query.index if len(pairs.shape) == 4 else pairs.query.index * 1.5


class MinusInfinityInLists(attnops.Bias):
    def forward(self, pairs):
        low = float("-inf") if len(pairs.shape) == 3 else -1e9
        return torch.where(pairs.key.camera == 1, low, 0.0)


@pytest.mark.parametrize(
    ("bias", "message"),
    [
        (
            FirstHeadInLists(),
            r"on a list of edges differs from the grid, forward at \[b, h, i, j\].* at \[\d+, [123], ",
        ),
        (ForgetsTheGradient(), "one pair under torch.vmap differs from the grid, gradient of parameter weight"),
        (ReadsValues(), "fails on one pair under torch.vmap"),
        (WholeGridOnly(), r"on blocks of the grid differs from the grid, forward at"),
        (Stale(), r"differs from the grid, forward at"),
        (MinusInfinityInLists(), "on a list of edges differs from the grid, -inf at"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_biases_fail(bias: attnops.Bias, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_bias(bias, heads=H)


class CutsTooMuch(attnops.Causal):
    def reach(self, low, high):
        return low, high


class CountsTooFew(attnops.Causal):
    def most_pairs(self, num_queries, num_keys, aligned):
        return num_queries


class Floats(attnops.Pattern):
    def allows(self, pairs):
        return (pairs.key.index <= pairs.query.index).float()


class Otherwise(attnops.Pattern):
    def allows(self, pairs):
        order = pairs.key.index <= pairs.query.index
        return order if len(pairs.shape) != 3 else ~order


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (CutsTooMuch(), r"allows the pair \[b, h, i, j\] = .* but key_ranges of queries 0 … 1 leaves key 0 out"),
        (CountsTooFew(), "but most_pairs says at most 5"),
        (Floats(), "allows gives torch.float32; it must be a bool tensor"),
        (Otherwise(), "on a list of edges differs from the grid"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_patterns_fail(pattern: attnops.Pattern, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_pattern(pattern)


class OnBlocksOnly(attnops.Score):
    def forward(self, query, key, pairs):
        return torch.einsum("bhiod,bhojd->bhij", query, key)


class KeyAlone(attnops.Score):
    def forward(self, query, key, pairs):
        return (key.square() + (query if len(pairs.shape) == 4 else query.detach())).sum(-1)


@pytest.mark.parametrize(
    ("score", "message"),
    [
        (OnBlocksOnly(), "fails on a list of edges"),
        (KeyAlone(), "on a list of edges differs from the grid, gradient of query"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_wrong_scores_fail(score: attnops.Score, message: str) -> None:
    with pytest.raises(AssertionError, match=message):
        check_score(score, heads=H)


def test_parameters_are_put_back() -> None:
    bias = attnops.TypePrior(2, 2, H)
    check_bias(bias, heads=H)
    assert torch.equal(bias.weight, torch.zeros(2, 2, H)) and bias.weight.grad is None


def test_a_wrong_backend_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    from attnops.backends.blockwise import Blockwise

    run = Blockwise.run
    monkeypatch.setattr(Blockwise, "run", lambda self, call: (r := run(self, call))._replace(out=r.out * 1.001))
    with pytest.raises(
        AssertionError, match=r"on backend 'blockwise' .*differs from 'reference', forward out at \[b, h, i, d\]"
    ):
        check_bias(attnops.ALiBi(H), heads=H)


@pytest.mark.parametrize("kind", ["forward", "gradient", "parameter"])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_the_bound_lets_rounding_pass_and_nothing_more(kind: str, dtype: torch.dtype) -> None:
    golden = torch.randn(40, dtype=torch.float64)
    reference = golden.to(dtype)
    assert_close_as_reference(golden.to(dtype), golden, reference, kind=kind)
    assert_close_as_reference(golden.to(dtype), golden, golden.to(dtype).double(), kind=kind)
    eps, most = torch.finfo(dtype).eps, float(golden.abs().max())
    wrong = golden.clone()
    wrong[3] += {torch.float64: 70, torch.float32: 15}.get(dtype, 6) * eps * most
    with pytest.raises(AssertionError, match=r"at \[3\]"):
        assert_close_as_reference(wrong, golden, reference, kind=kind, dtype=dtype)


def test_the_bound_takes_no_other_infinity_and_no_nan() -> None:
    golden = torch.tensor([0.0, 1.0, float("-inf")], dtype=torch.float64)
    assert_close_as_reference(golden.float(), golden, golden.float())
    for place, value in ((2, 0.0), (0, float("-inf")), (1, float("nan")), (2, float("nan")), (2, float("inf"))):
        wrong = golden.float()
        wrong[place] = value
        with pytest.raises(AssertionError):
            assert_close_as_reference(wrong, golden, golden.float())
    with pytest.raises(AssertionError, match="shape"):
        assert_close_as_reference(golden[:2], golden, golden)


# ------------------------------------------------------------------------------------------------------ arguments
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"heads": "2"}, "heads is '2'; it must be an integer of 1 or more"),
        ({"heads": 0}, "heads is 0; it must be an integer of 1 or more"),
        ({"dim": -1}, "dim is -1; it must be an integer of 1 or more"),
        ({"num_queries": 2.5}, "num_queries is 2.5; it must be an integer of 1 or more"),
        ({"num_keys": "3"}, "num_keys is '3'; it must be an integer of 1 or more"),
        ({"coords": {}}, "coords is dict; it must be a Coords or a pair"),
        ({"coords": (attnops.Coords(),)}, "coords is tuple; it must be a Coords or a pair"),
        ({"edge": [1]}, "edge is list; it must be a mapping"),
        ({"edge": {"attr": 1}}, "edge holds int under 'attr'; it must hold tensors"),
        ({"edge": {1: torch.ones(3)}}, "edge holds Tensor under 1; it must hold tensors"),
        ({"edge": {"attr": torch.tensor(1.0)}}, r"edge data attr have shape \[\]"),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named(arguments: dict[str, object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        check_pattern(attnops.Causal(), **arguments)


def test_the_bound_names_what_it_cannot_compare() -> None:
    x = torch.ones(3)
    with pytest.raises(ValueError, match="kind is 'backward'; it must be one of 'forward', 'gradient', 'parameter'"):
        assert_close_as_reference(x, x, x, kind="backward")
    with pytest.raises(TypeError, match=r"golden is a tensor of torch\.int64; it must be a tensor of real numbers"):
        assert_close_as_reference(x, x.long(), x)
    with pytest.raises(TypeError, match="got is NoneType"):
        assert_close_as_reference(None, x, x)
