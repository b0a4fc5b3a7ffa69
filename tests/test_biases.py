"""Laws of the biases: their formulas by plain loops, alike on every form of pairs, with checked and clamped tables."""

from __future__ import annotations

import math
from collections.abc import Callable
from types import ModuleType

import pytest
import torch
from torch import Tensor

import attnops
from attnops import Coords
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
from attnops.biases.gaps import clipped_gap
from attnops.coords import resolve_coords
from attnops.pairs import Pairs

CPU = torch.device("cpu")
B, H, NQ, NK, D, F, TYPES = 2, 3, 5, 4, 8, 4, 3


class Scene:
    """Queries and keys that carry every coord, and one edge from each key to each query that carries every datum."""

    def __init__(self, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self.vectors = torch.randn(B, H, NQ, D, dtype=dtype)
        query = Coords(
            position=torch.randint(0, 90, (B, NQ)),
            type=torch.randint(0, TYPES, (NQ,)),
            time=torch.randn(B, NQ).double(),
        )
        key = Coords(position=torch.randint(0, 90, (NK,)), type=torch.randint(0, 2, (B, NK)), time=torch.randn(NK))
        self.coords = resolve_coords((query, key), (B,), NQ, NK, CPU)
        self.data = {
            "attr": torch.randn(NQ * NK, F),
            "type": torch.randint(0, TYPES, (NQ * NK,)),
            "prior": torch.rand(NQ * NK).mul(torch.rand(NQ * NK) > 0.2),
            "distance": torch.randint(-1, 9, (NQ * NK,)),
        }
        self.ids = torch.arange(NQ * NK).view(NQ, NK)

    def grid(self, queries: slice = slice(0, NQ), keys: slice | Tensor = slice(0, NK)) -> Pairs:
        ids = self.ids[queries][:, keys]
        return Pairs.grid(
            self.coords, (B,), H, queries, keys, dtype=self.dtype, device=CPU, edge_data=self.data, edge_ids=ids
        )

    def listed(self, edges: Tensor) -> Pairs:
        data = {name: value[edges] for name, value in self.data.items()}
        query, key = edges // NK, edges % NK
        return Pairs.listed(self.coords, (B,), H, query, key, dtype=self.dtype, device=CPU, edge_data=data)

    def single(self, batch: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Pairs:
        return Pairs.single(
            self.coords,
            (B,),
            H,
            batch,
            head,
            query,
            key,
            dtype=self.dtype,
            device=CPU,
            edge_data=self.data,
            edge_ids=self.ids[query, key],
        )

    def coord(self, side: int, name: str, batch: int, row: int) -> float:
        data = self.coords[side].data[name]
        return float(data[batch if data.shape[0] > 1 else 0, row].item())


def drawn(bias: Bias) -> Bias:
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    return bias


def t5_bucket(ahead: int, side: int, most: int) -> int:
    """In float64: fair away from the edges of buckets, which the parity with transformers covers."""
    distance, exact = abs(ahead), side // 2
    if distance >= exact:
        share = math.log(distance / exact) / math.log(most / exact)
        distance = min(exact + int(share * (side - exact)), side - 1)
    return distance + side * (ahead > 0)


def loop_alibi(bias: ALiBi, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    slope = [2**-4, 2**-8, 2**-2][h]
    return -slope * abs(scene.coord(0, "position", b, i) - scene.coord(1, "position", b, j))


def loop_relative(bias: RelativeBias, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    ahead = int(scene.coord(1, "position", b, j) - scene.coord(0, "position", b, i))
    return float(bias.weight[t5_bucket(ahead, 16, 60), h])


def loop_relative_keys(bias: RelativeKeys, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    ahead = int(scene.coord(1, "position", b, j) - scene.coord(0, "position", b, i))
    row = bias.weight[h, min(max(ahead, -10), 10) + 10].double()
    return float(scene.vectors[b, h, i].double() @ row) / math.sqrt(D)


def loop_edge(bias: EdgeBias, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    return float(bias.weight[h].double() @ scene.data["attr"][i * NK + j].double())


def loop_edge_type(bias: EdgeTypePrior, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    return float(bias.weight[scene.data["type"][i * NK + j], h])


def loop_type(bias: TypePrior, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    return float(bias.weight[int(scene.coord(0, "type", b, i)), int(scene.coord(1, "type", b, j)), h])


def loop_log_prior(bias: LogPrior, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    prior = float(scene.data["prior"][i * NK + j])
    return math.log(prior) if prior else -math.inf


def loop_time(bias: TimeGap, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    return -math.exp(float(bias.log_rate[h])) * abs(scene.coord(0, "time", b, i) - scene.coord(1, "time", b, j))


def loop_distance(bias: Distance, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    hops = int(scene.data["distance"][i * NK + j])
    return float(bias.weight[6 if hops == -1 else min(hops, 5), h])


def loop_sink(bias: Sink, scene: Scene, b: int, h: int, i: int, j: int) -> float:
    return 0.0


MODELS: dict[str, tuple[Callable[[], Bias], Callable[..., float]]] = {
    "ALiBi": (lambda: ALiBi(H), loop_alibi),
    "RelativeBias": (lambda: RelativeBias(H, 32, 60), loop_relative),
    "RelativeKeys": (lambda: RelativeKeys(H, D, 10), loop_relative_keys),
    "EdgeBias": (lambda: EdgeBias(F, H), loop_edge),
    "EdgeTypePrior": (lambda: EdgeTypePrior(TYPES, H), loop_edge_type),
    "TypePrior": (lambda: TypePrior(TYPES, 2, H), loop_type),
    "LogPrior": (LogPrior, loop_log_prior),
    "TimeGap": (lambda: TimeGap(H), loop_time),
    "Distance": (lambda: Distance(H, 5), loop_distance),
    "Sink": (lambda: Sink(H), loop_sink),
}
every_bias = pytest.mark.parametrize("name", MODELS)


@every_bias
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_formula(name: str, dtype: torch.dtype) -> None:
    build, loop = MODELS[name]
    scene, bias = Scene(dtype), drawn(build())
    got = bias.bind(scene.vectors, scene.vectors)(scene.grid())
    assert got.dtype == dtype
    with torch.no_grad():
        exact = [
            [[[loop(bias, scene, b, h, i, j) for j in range(NK)] for i in range(NQ)] for h in range(H)]
            for b in range(B)
        ]
    near = 1e-12 if dtype == torch.float64 else 1e-5
    torch.testing.assert_close(
        got.double().broadcast_to(B, H, NQ, NK), torch.tensor(exact, dtype=torch.float64), rtol=near, atol=near
    )


@every_bias
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_grid_list_and_single_agree(name: str, dtype: torch.dtype) -> None:
    scene = Scene(dtype)
    bias = drawn(MODELS[name][0]()).bind(scene.vectors, scene.vectors)
    grid = bias(scene.grid()).broadcast_to(B, H, NQ, NK)
    near = {"rtol": 1e-14, "atol": 1e-14} if dtype == torch.float64 else {"rtol": 1e-6, "atol": 1e-6}

    edges = torch.randint(0, NQ * NK, (30,))  # in any order, with duplicates
    listed = bias(scene.listed(edges)).broadcast_to(B, H, 30)
    torch.testing.assert_close(listed, grid.flatten(2)[:, :, edges], **near)

    block = bias(scene.grid(slice(2, 4), slice(1, 4))).broadcast_to(B, H, 2, 3)
    torch.testing.assert_close(block, grid[:, :, 2:4, 1:4], **near)
    columns = torch.tensor([3, 0])
    some = bias(scene.grid(slice(1, 5), columns)).broadcast_to(B, H, 4, 2)
    torch.testing.assert_close(some, grid[:, :, 1:5, columns], **near)

    one: Callable[..., Tensor] = lambda *index: bias(scene.single(*index))  # noqa: E731
    for axis in (3, 2, 1, 0):
        one = torch.vmap(one, in_dims=tuple(0 if axis == other else None for other in range(4)))
    alone = one(torch.arange(B), torch.arange(H), torch.arange(NQ), torch.arange(NK))
    torch.testing.assert_close(alone, grid, **near)


@every_bias
def test_learned_tables_start_at_0_and_say_what_they_are(name: str) -> None:
    bias = MODELS[name][0]()
    assert all(bool((parameter == 0).all()) for parameter in bias.parameters())
    assert bias.heads == (None if name == "LogPrior" else H)
    assert name in str(bias)


@every_bias
def test_gradients_are_right(name: str) -> None:
    """Against finite differences: parameters, and what edges, tokens and queries carry."""
    scene, bias = Scene(torch.float64), drawn(MODELS[name][0]()).double()
    scene.data = {key: value.double() if value.is_floating_point() else value for key, value in scene.data.items()}
    scene.data["prior"] = scene.data["prior"] + 0.1
    inputs = [*bias.parameters(), scene.vectors, scene.data["attr"], scene.data["prior"]]
    inputs = [tensor.detach().requires_grad_() for tensor in inputs]
    names = [parameter for parameter, _ in bias.named_parameters()]

    def value(*tensors: Tensor) -> Tensor:
        *parameters, vectors, attr, prior = tensors
        scene.data |= {"attr": attr, "prior": prior}
        with torch.nn.utils.stateless._reparametrize_module(bias, dict(zip(names, parameters, strict=True))):
            return bias.bind(vectors, vectors)(scene.grid()) + 0 * sum(tensor.sum() for tensor in tensors)

    assert torch.autograd.gradcheck(value, inputs)


# ------------------------------------------------------------------------------------------------------------ ALiBi
def test_case_b14_slopes_and_steps(cases: ModuleType) -> None:
    inputs, expected = cases.CASES["B14"]()
    for heads in inputs["head_counts"]:
        slopes = ALiBi(heads).slopes(torch.arange(heads), torch.float64)
        torch.testing.assert_close(slopes, expected[f"slopes_{heads}"], rtol=1e-15, atol=0)
    query, key, value = (inputs[name].squeeze() for name in "qkv")
    bias = ALiBi(inputs["heads"]).to(torch.bfloat16)  # must not round the slopes

    def attend(rows: slice, length: int) -> Tensor:
        return attnops.attend(
            query[:, rows], key[:, :length], value[:, :length], pattern=attnops.Causal(), bias=bias, backend="reference"
        )

    out = expected["out"].squeeze()
    torch.testing.assert_close(attend(slice(0, 5), 5), out, rtol=1e-12, atol=1e-12)
    steps = torch.cat([attend(slice(step, step + 1), step + 1) for step in range(5)], dim=1)
    torch.testing.assert_close(steps, out, rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(attend(slice(3, 5), 5), out[:, -2:], rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "position", [torch.tensor([0, 255], dtype=torch.uint8), torch.tensor([0, 127], dtype=torch.int8)]
)
def test_small_integers_do_not_wrap(position: Tensor) -> None:
    coords = resolve_coords(Coords(position=position), (1,), 2, 2, CPU)
    pairs = Pairs.grid(coords, (1,), 1, slice(0, 2), slice(0, 2), dtype=torch.float64, device=CPU)
    gap = float(position[1])
    assert (ALiBi(1)(pairs) * 256).flatten().tolist() == [0, -gap, -gap, 0]


def test_timestamps_keep_their_precision_in_float32() -> None:
    """A gap of milliseconds between float64 times of today: their difference is taken before it is rounded."""
    time = torch.tensor([1.7e9, 1.7e9 + 0.001], dtype=torch.float64)
    coords = resolve_coords(Coords(time=time, position=time), (1,), 2, 2, CPU)
    pairs = Pairs.grid(coords, (1,), 1, slice(0, 2), slice(0, 2), dtype=torch.float32, device=CPU)
    for bias, rate in ((TimeGap(1), 1), (ALiBi(1), 1 / 256)):
        assert float(bias(pairs).detach()[0, 0, 0, 1]) == pytest.approx(-0.001 * rate, rel=1e-3)


# -------------------------------------------------------------------------------------------------- relative positions
def test_shaws_keys_are_bound_to_a_call() -> None:
    bias, query = drawn(RelativeKeys(H, D, 2)), torch.randn(B, H, NQ, D)
    before = dict(bias.__dict__)
    bound = bias.bind(query, query)
    assert isinstance(bound.table, Tensor) and bound.table.shape == (B, H, NQ, 5)
    assert bias.__dict__ == before  # no state is kept
    assert bias.bind(query.half(), query.half()).table.dtype == torch.float32  # type: ignore[union-attr]
    with pytest.raises(RuntimeError, match="bind"):
        bias(Scene(torch.float32).grid())
    with pytest.raises(ValueError, match="query has 3 heads and D = 4"):
        bias.bind(query[..., :4], query)
    with pytest.raises(ValueError, match="query has 2 heads"):
        bias.bind(query[:, :2], query)


@pytest.mark.parametrize("build", [lambda: RelativeBias(1, 8, 20), lambda: RelativeKeys(1, 4, 5)])
def test_real_positions_are_cut_to_whole_differences(build: Callable[[], Bias]) -> None:
    bias, vectors = drawn(build()), torch.randn(1, 1, 3, 4)
    whole, real = torch.tensor([0, 3, 90]), torch.tensor([0.0, 3.4, 1e30])
    values = []
    for position in (whole, real):
        coords = resolve_coords(Coords(position=position), (1,), 3, 3, CPU)
        pairs = Pairs.grid(coords, (1,), 1, slice(0, 3), slice(0, 3), dtype=torch.float32, device=CPU)
        values.append(bias.bind(vectors, vectors)(pairs))
    assert torch.equal(*values)


# -------------------------------------------------------------------------------------------------------------- tables
def test_table_gradients_have_the_same_bits_from_run_to_run() -> None:
    """Many pairs add to one row, with two threads too."""
    coords = resolve_coords(Coords(type=torch.randint(0, TYPES, (300,))), (1,), 300, 300, CPU)
    pairs = Pairs.grid(coords, (1,), 8, slice(0, 300), slice(0, 300), dtype=torch.float32, device=CPU)
    vectors, cotangent = torch.randn(1, 8, 300, 16), torch.randn(1, 8, 300, 300)
    for bias in (TypePrior(TYPES, TYPES, 8), RelativeBias(8), drawn(RelativeKeys(8, 16, 50))):
        gradients = []
        torch.set_num_threads(2)
        for _ in range(3):
            bias.zero_grad()
            bias.bind(vectors, vectors)(pairs).backward(cotangent)
            gradients.append(next(bias.parameters()).grad)
        torch.set_num_threads(1)
        assert torch.equal(gradients[0], gradients[1]) and torch.equal(gradients[0], gradients[2])


@pytest.mark.parametrize("wrong", [-5, 99])
def test_an_index_out_of_range_is_never_read(wrong: int) -> None:
    """Values that could not be checked are clamped: the nearest row is read, and no memory outside."""
    scene = Scene(torch.float64)
    nearest = 0 if wrong < 0 else TYPES - 1
    edge, nodes = drawn(EdgeTypePrior(TYPES, H)), drawn(TypePrior(TYPES, TYPES, H))
    scene.data["type"] = torch.full((NQ * NK,), wrong)
    assert torch.equal(edge(scene.grid())[0, :, 0, 0], edge.weight[nearest].double())
    scene.coords[0].data["type"] = torch.full((1, NQ), wrong)
    scene.coords[1].data["type"] = torch.full((1, NK), wrong)
    for value in (nodes(scene.grid())[0, :, 0, 0], nodes(scene.listed(torch.arange(3)))[0, :, 0]):
        assert torch.equal(value, nodes.weight[nearest, nearest].double())
    assert torch.equal(nodes(scene.single(*torch.tensor([0, 1, 2, 3]))), nodes.weight[nearest, nearest, 1].double())
    hops = drawn(Distance(H, 5))
    scene.data["distance"] = torch.full((NQ * NK,), wrong)
    assert torch.equal(hops(scene.grid())[0, :, 0, 0], hops.weight[6 if wrong < 0 else 5].double())


def test_a_gap_that_is_no_number_stays_inside() -> None:
    """Where a NaN could not be refused: what it is cast to is anything, and must not leave the table."""
    for wrong in (math.nan, math.inf, -math.inf):
        column = clipped_gap(torch.tensor([wrong]), torch.tensor([0]), 5, torch.float32)
        assert column.dtype == torch.int64 and -5 <= int(column) <= 5


@pytest.mark.parametrize("name", ["EdgeBias", "RelativeKeys"])
def test_autocast_lowers_no_product(name: str) -> None:
    scene, bias = Scene(torch.float32), drawn(MODELS[name][0]())
    exact = bias.bind(scene.vectors, scene.vectors)(scene.grid())
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(bias.bind(scene.vectors, scene.vectors)(scene.grid()), exact)
