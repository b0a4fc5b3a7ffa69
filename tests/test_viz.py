"""Pictures show the numbers: what is drawn is the mask, the bias or the weights, and not merely something."""

from __future__ import annotations

import builtins
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import matplotlib
import networkx
import numpy
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.patches import FancyArrowPatch
from torch import Tensor

import attnops
from attnops import viz

matplotlib.use("agg")
from matplotlib import pyplot


@pytest.fixture(autouse=True)
def _close() -> Iterator[None]:
    yield
    pyplot.close("all")


def shown(axes: Axes) -> Tensor:
    """The numbers of the picture, -inf where a cell is left to the hatch."""
    (image,) = axes.images
    array = image.get_array()
    assert isinstance(array, numpy.ma.MaskedArray)
    return torch.from_numpy(array.filled(-numpy.inf))


def logits_of(heads: int, num_queries: int, num_keys: int, **options: Any) -> Tensor:
    """b_ij as the operator uses it: the logits of vectors that are 0, by their weights and lse."""
    vectors = [torch.zeros(heads, count, 2, dtype=torch.float64) for count in (num_queries, num_keys, num_keys)]
    result = attnops.attend(*vectors, **options, return_weights=True, return_lse=True, backend="reference")
    weights, pattern = result.weights, options.get("pattern")
    if isinstance(pattern, attnops.Pattern) and pattern.edges is not None:
        at_edges, (source, target) = weights, pattern.edges.edge_index
        weights = torch.zeros(heads, num_queries, num_keys, dtype=torch.float64)
        weights[:, target, source] = at_edges
    return weights.log() + torch.where(result.lse == -torch.inf, 0, result.lse).unsqueeze(-1)


# ---------------------------------------------------------------------------------------------------- patterns
SEGMENT = attnops.Coords(segment=torch.tensor([0, 0, 1, 1, 1, 2]))
EDGES = attnops.Edges(
    torch.tensor([[0, 3, 1], [2, 0, 5]]), 6, 6, attr=torch.randn(3, 2), prior=torch.tensor([0.5, 0, 2])
)


@pytest.mark.parametrize(
    ("pattern", "coords"),
    [
        (attnops.Causal(), None),
        (attnops.SlidingWindow(1) | attnops.GlobalTokens([0]), None),
        (~attnops.Causal() & attnops.SameSegment(), SEGMENT),
        (EDGES, None),
        (EDGES & attnops.Causal(), None),
        (torch.eye(6).bool(), None),
        (attnops.Full(), None),
    ],
)
def test_a_pattern_is_what_the_operator_lets_through(pattern: Any, coords: Any) -> None:
    axes = viz.draw_pattern(pattern, 6, coords=coords)
    expected = logits_of(1, 6, 6, pattern=pattern, coords=coords)[0] > -torch.inf
    assert torch.equal(shown(axes) > -torch.inf, expected)
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("key j", "query i")
    legend = [text.get_text() for text in axes.get_legend().get_texts()]
    assert legend == (["allowed"] if expected.all() else ["allowed", "forbidden"])


def test_a_rectangle_has_queries_downwards() -> None:
    axes = viz.draw_pattern(attnops.Causal(), 2, 4)
    assert torch.equal(shown(axes) > -torch.inf, torch.tensor([[1, 1, 1, 0], [1, 1, 1, 1]]).bool())
    low, high = axes.get_ylim()
    assert low > high  # row 0 on top


def test_a_row_of_the_batch() -> None:
    pattern = attnops.Padding(torch.tensor([1, 3]))
    for batch, length in enumerate([1, 3]):
        axes = viz.draw_pattern(pattern, 4, batch_size=2, batch=batch)
        assert ((shown(axes) > -torch.inf) == (torch.arange(4) < length)).all()
    coords = attnops.Coords(position=torch.tensor([[0, 1], [1, 0]]))
    first, second = (viz.draw_pattern(attnops.Causal(), 2, coords=coords, batch_size=2, batch=row) for row in (0, 1))
    assert torch.equal(shown(first).flip(0, 1), shown(second)) and not torch.equal(shown(first), shown(second))


def test_forbidden_cells_are_hatched_and_allowed_ones_are_not() -> None:
    axes = viz.draw_pattern(attnops.Mask(torch.tensor([[True, False]])), 1, 2)
    assert axes.patch.get_hatch() == viz.HATCH
    (image,) = axes.images
    assert image.to_rgba(image.get_array())[0, :, 3].tolist() == [1, 0]


# ---------------------------------------------------------------------------------------------------- biases
def learned(bias: attnops.Bias) -> attnops.Bias:
    for parameter in bias.parameters():
        torch.nn.init.normal_(parameter)
    return bias


@pytest.mark.parametrize(
    ("bias", "options"),
    [
        (attnops.ALiBi(2), {}),
        (attnops.ALiBi(2) + attnops.Causal(), {}),
        (attnops.ALiBi(2) + attnops.Rotary(2), {}),
        (learned(attnops.RelativeBias(2, buckets=8, max_distance=16)), {"pattern": attnops.SlidingWindow(2, 2)}),
        (learned(attnops.TimeGap(2)), {"coords": attnops.Coords(time=torch.tensor([0, 0.5, 1, 4, 9, 9.5]))}),
        (learned(attnops.EdgeBias(2, 2)), {"pattern": EDGES}),
        (attnops.LogPrior(), {"pattern": EDGES}),
        (torch.randn(2, 6, 6), {"pattern": attnops.Causal()}),
        (torch.randn(6, 1), {}),
        (torch.randn(2, 3), {"pattern": EDGES}),
        (attnops.SlidingWindow(1), {"pattern": attnops.Full()}),
    ],
)
def test_a_bias_is_what_the_operator_adds(bias: Any, options: dict[str, Any]) -> None:
    panels = viz.draw_bias(bias, 2, 6, **options)
    given = bias.double() if isinstance(bias, Tensor) else bias
    named = {"pattern": bias} if isinstance(bias, attnops.Pattern) else {"bias": given, **options}
    expected = logits_of(2, 6, 6, **named)
    for head, axes in enumerate(panels):
        torch.testing.assert_close(shown(axes).double(), expected[head], atol=1e-5, rtol=1e-5)
        assert axes.get_title() == f"head {head}"
        assert (axes.get_xlabel(), axes.get_ylabel()) == ("key j", "query i")


def test_heads_share_one_scale_and_one_colour_bar() -> None:
    panels = viz.draw_bias(torch.tensor([-1.0, 3.0]).view(2, 1, 1), 2, 4, 5)
    assert [axes.images[0].get_clim() for axes in panels] == [(-3, 3)] * 2  # both signs: 0 in the middle
    assert {axes.images[0].get_cmap().name for axes in panels} == {viz.TWO_SIDED}
    bars = [axes for axes in panels[0].figure.axes if axes not in panels]
    assert len(bars) == 1 and "bias" in bars[0].get_ylabel()
    (axes,) = viz.draw_bias(torch.tensor([[-1.0, -3.0, -torch.inf]]), 1, 2, 3)
    assert axes.images[0].get_clim() == (-3, -1) and axes.images[0].get_cmap().name == viz.ONE_SIDED
    (axes,) = viz.draw_bias(torch.zeros(1, 1), 1, 2)
    assert axes.images[0].get_clim() == (-0.5, 0.5)
    (axes,) = viz.draw_bias(torch.full((1, 1), -torch.inf), 1, 2)
    assert (shown(axes) == -torch.inf).all()


def test_a_row_of_the_batch_of_a_bias() -> None:
    values = torch.randn(2, 1, 3, 3)
    for batch in range(2):
        (axes,) = viz.draw_bias(values, 1, 3, batch_size=2, batch=batch)
        assert torch.equal(shown(axes), values[batch, 0])


def test_a_bias_that_needs_content_is_drawn_bound() -> None:
    bias = learned(attnops.RelativeKeys(2, dim=4, max_distance=2))
    query, key = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)
    with pytest.raises(ValueError, match="depends on the content of queries"):
        viz.draw_bias(bias, 2, 5)
    panels = viz.draw_bias(bias.bind(query, key), 2, 5)
    steps = torch.arange(5)
    table = bias.weight[:, (steps - steps[:, None]).clamp(-2, 2) + 2]  # [H, Nq, Nk, D]
    expected = torch.einsum("hid,hijd->hij", query[0], table) / 2
    for head, axes in enumerate(panels):
        torch.testing.assert_close(shown(axes), expected[head].detach(), atol=1e-5, rtol=1e-5)


# ---------------------------------------------------------------------------------------------------- weights
def test_weights_are_drawn_as_they_are() -> None:
    x = torch.randn(3, 2, 5, 4)
    weights = attnops.attend(x, x, x, return_weights=True).weights
    for batch in range(3):
        panels = viz.draw_weights(weights, batch=batch)
        for head, axes in enumerate(panels):
            assert torch.equal(shown(axes), weights[batch, head])
            assert axes.images[0].get_clim() == (0, weights[batch].max())
    (axes,) = viz.draw_weights(weights[0, 0])
    assert torch.equal(shown(axes), weights[0, 0])


def test_weights_of_edges_are_laid_out_and_duplicates_add_up() -> None:
    edges = attnops.Edges(torch.tensor([[0, 2, 0], [1, 0, 1]]), 2, 3)
    weights = torch.tensor([[0.25, 1.0, 0.5], [0.5, 0.75, 0.125]])
    none = -torch.inf
    for axes, expected in zip(viz.draw_weights(weights, edges), ([0.75, 1.0], [0.625, 0.75]), strict=True):
        assert shown(axes).tolist() == [[none, none, expected[1]], [expected[0], none, none]]


def arrows(axes: Axes) -> list[FancyArrowPatch]:
    return [patch for patch in axes.patches if isinstance(patch, FancyArrowPatch)]


@pytest.mark.parametrize("sizes", [(3, 3), (3, 4)])
def test_each_edge_of_a_graph_is_an_arrow_as_wide_as_its_weight(sizes: tuple[int, int]) -> None:
    index = torch.tensor([[2, 0, 1, 2, 0], [0, 1, 1, 0, 2]])
    edges = attnops.Edges(index, *sizes)
    weights = torch.tensor([[0.1, 0.2, 0.3, 0.4, 0.5], [0.5, 0.4, 0.3, 0.2, 0.1]])
    places = {node: (float(place), float(place**2)) for place, node in enumerate(edges.to_networkx())}
    axes = viz.draw_graph_weights(edges, weights, head=1, positions=places)
    assert axes.get_title() == "head 1"
    names = list(places) if sizes[0] == sizes[1] else None
    found = []
    for arrow in arrows(axes):
        ends = [tuple(float(number) for number in end) for end in arrow._posA_posB]
        strength = (arrow.get_linewidth() - 0.5) / 2.5 * 0.5
        found.append((*ends, round(strength, 6)))
    keys = names or [("key", j) for j in range(4)]
    queries = names or [("query", i) for i in range(3)]
    expected = [
        (places[keys[j]], places[queries[i]], round(float(weight), 6))
        for j, i, weight in zip(*index.tolist(), weights[1], strict=True)
    ]
    assert sorted(found) == sorted(expected)
    bars = [each for each in axes.figure.axes if each is not axes]
    assert len(bars) == 1 and bars[0].get_ylim() == (0, 0.5)
    texts = sorted(text.get_text() for text in axes.texts)
    assert texts == sorted(str(row) for count in (sizes if sizes[0] != sizes[1] else sizes[:1]) for row in range(count))


@pytest.mark.parametrize("kind", [networkx.DiGraph, networkx.MultiGraph])
def test_attention_of_a_networkx_graph_is_drawn(kind: type) -> None:
    """Written onto a graph and drawn from it, on its own nodes: the arrows of the edge list."""
    graph = kind([("z", "a"), ("a", "m"), ("m", "z")])
    edges = attnops.Edges.from_networkx(graph)
    weights = torch.rand(2, edges.num_edges)
    places = {"z": (0.0, 0.0), "a": (1.0, 0.0), "m": (0.0, 1.0)}
    written = edges.to_networkx(weights, nodes=list(graph))
    axes = viz.draw_graph_weights(written, "attention", head=1, positions=places)
    numbered = {place: places[node] for place, node in enumerate(graph)}
    plain = viz.draw_graph_weights(edges, weights, head=1, positions=numbered)

    def drawn(axes: Axes) -> list[Any]:
        return sorted(
            (tuple(tuple(map(float, end)) for end in arrow._posA_posB), round(float(arrow.get_linewidth()), 5))
            for arrow in arrows(axes)
        )

    assert drawn(axes) == drawn(plain) and len(drawn(axes)) == edges.num_edges
    assert sorted(text.get_text() for text in axes.texts) == ["a", "m", "z"]


def test_a_number_an_edge_between_keys_and_queries_is_drawn() -> None:
    edges = attnops.Edges(torch.tensor([[0, 2], [1, 0]]), 2, 3)
    axes = viz.draw_graph_weights(edges.to_networkx(torch.tensor([0.25, 0.75])), "attention")
    assert len(arrows(axes)) == 2 and sorted(text.get_text() for text in axes.texts) == ["0", "0", "1", "1", "2"]


def test_graphs_are_laid_out_alike_each_time() -> None:
    for sizes in ((4, 4), (3, 4)):
        edges = attnops.Edges(torch.tensor([[0, 1, 3], [1, 2, 0]]), *sizes)
        one, two = (viz.draw_graph_weights(edges, torch.rand(3)).collections[0].get_offsets() for _ in range(2))
        assert numpy.array_equal(one, two) and len(one) == (4 if sizes == (4, 4) else 7)
    nothing = attnops.Edges(torch.zeros(2, 0, dtype=torch.int64), 2, 2)
    assert not arrows(viz.draw_graph_weights(nothing, torch.zeros(1, 0)))
    zero = attnops.Edges(torch.tensor([[0], [1]]), 2, 2)
    assert len(arrows(viz.draw_graph_weights(zero, torch.zeros(1, 1), labels={0: "a", 1: "b"}))) == 1


# ---------------------------------------------------------------------------------------------------- axes, errors
def test_axes_that_are_given_are_drawn_into() -> None:
    _, (left, right) = pyplot.subplots(1, 2)
    assert viz.draw_pattern(attnops.Causal(), 3, ax=left) is left
    assert viz.draw_bias(attnops.ALiBi(1), 1, 3, ax=right) == [right]
    _, grid = pyplot.subplots(1, 2)
    assert viz.draw_weights(torch.rand(2, 3, 3), ax=list(grid)) == list(grid)
    with pytest.raises(ValueError, match="ax holds 1 axes; it must hold 2, one a head"):
        viz.draw_weights(torch.rand(2, 3, 3), ax=left)


def test_many_heads_go_into_rows_of_four() -> None:
    panels = viz.draw_weights(torch.rand(6, 3, 3))
    assert len(panels) == 6 and len(panels[0].figure.axes) == 7  # and the colour bar
    assert len({round(axes.get_position().y0, 3) for axes in panels}) == 2


@pytest.mark.parametrize(
    ("draw", "error", "words"),
    [
        (lambda: viz.draw_pattern(attnops.Causal(), 0), ValueError, "num_queries is 0"),
        (lambda: viz.draw_pattern("causal", 3), TypeError, "pattern is str"),
        (lambda: viz.draw_pattern(torch.ones(2, 2), 2), TypeError, "mask is torch.float32"),
        (lambda: viz.draw_pattern(torch.ones(2, 2).bool(), 3), ValueError, "mask has shape"),
        (lambda: viz.draw_pattern(attnops.Padding(torch.tensor([1, 2])), 3), ValueError, "Padding has shape"),
        (lambda: viz.draw_pattern(attnops.SameSegment(), 3), ValueError, "coords.segment is read"),
        (lambda: viz.draw_pattern(attnops.Causal(), 3, batch=1), ValueError, "batch is 1"),
        (lambda: viz.draw_bias(3, 2, 3), TypeError, "bias is int"),
        (lambda: viz.draw_bias(attnops.ALiBi(2), 4, 3), ValueError, "made for 2 heads; heads is 4"),
        (lambda: viz.draw_bias(attnops.Rotary(4), 2, 3), ValueError, "adds nothing to the logits"),
        (lambda: viz.draw_bias(attnops.Sink(2), 2, 3), ValueError, "adds nothing to the logits"),
        (lambda: viz.draw_bias(torch.ones(3, 2, 2), 2, 2), ValueError, "bias has shape"),
        (
            lambda: viz.draw_bias(torch.full((2, 2), torch.nan), 1, 2),
            ValueError,
            "bias is nan for head 0, query 0, key 0",
        ),
        (
            lambda: viz.draw_bias(torch.ones(2), 1, 2, pattern=attnops.Edges(torch.zeros(2, 2).long(), 2, 2)),
            ValueError,
            "pattern lists a pair twice",
        ),
        (lambda: viz.draw_weights([[1.0]]), TypeError, "weights is list"),
        (lambda: viz.draw_weights(torch.rand(3)), ValueError, "weights has shape"),
        (lambda: viz.draw_weights(torch.rand(0, 3)), ValueError, "something to draw"),
        (lambda: viz.draw_weights(torch.rand(2, 3, 3), batch=1), ValueError, "batch is 1"),
        (lambda: viz.draw_weights(torch.full((2, 2), torch.nan)), ValueError, "weights hold a NaN"),
        (lambda: viz.draw_weights(torch.rand(4), EDGES), ValueError, "with E = 3"),
        (lambda: viz.draw_graph_weights(EDGES, torch.rand(2, 4)), ValueError, "with E = 3"),
        (lambda: viz.draw_graph_weights(EDGES, torch.rand(2, 3), head=2), ValueError, "head is 2"),
        (
            lambda: viz.draw_graph_weights(EDGES, torch.rand(3), positions={0: (0, 0)}),
            ValueError,
            "no place for node 1",
        ),
        (lambda: viz.draw_graph_weights(torch.rand(3), torch.rand(3)), TypeError, "edges is Tensor"),
        (lambda: viz.draw_graph_weights(EDGES, "attention"), TypeError, "weights is str"),
        (lambda: viz.draw_graph_weights(EDGES.to_networkx(), torch.rand(3)), TypeError, "must name an edge attribute"),
        (lambda: viz.draw_graph_weights(EDGES.to_networkx(), "attention"), ValueError, "has no attribute 'attention'"),
    ],
)
def test_errors(draw: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        draw()
    assert words in str(raised.value)


@pytest.mark.parametrize("missing", ["matplotlib", "networkx"])
def test_a_missing_extra_is_named(missing: str, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.split(".")[0] == missing:
            raise ImportError(f"No module named {missing!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    draws = [lambda: viz.draw_graph_weights(EDGES, torch.rand(3))]
    if missing == "matplotlib":
        draws += [lambda: viz.draw_pattern(attnops.Causal(), 3), lambda: viz.draw_bias(attnops.ALiBi(1), 1, 3)]
        draws += [lambda: viz.draw_weights(torch.rand(3, 3))]
    for draw in draws:
        with pytest.raises(ImportError, match=rf"{missing}: pip install attnops\[viz\]"):
            draw()


def test_importing_viz_loads_no_extra() -> None:
    code = "import sys, attnops.viz; print([m for m in ('matplotlib', 'networkx', 'scipy') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


# ---------------------------------------------------------------------------------------------------- arguments
TRIANGLE = attnops.Edges(torch.tensor([[1, 2, 0], [0, 0, 2]]), 3, 3)


@pytest.mark.parametrize(
    ("draw", "message"),
    [
        (lambda: viz.draw_pattern(attnops.Causal(), "3"), "num_queries is '3'; it must be an integer"),
        (lambda: viz.draw_pattern(attnops.Causal(), 3, 2.5), "num_keys is 2.5; it must be an integer"),
        (lambda: viz.draw_pattern(attnops.Causal(), 3, batch_size=None), "batch_size is None; it must be an integer"),
        (lambda: viz.draw_pattern(attnops.Causal(), 3, batch="0"), "batch is '0'; it must be an integer"),
        (lambda: viz.draw_pattern(attnops.Causal(), 3, coords={}), "coords is dict; it must be a Coords"),
        (lambda: viz.draw_pattern(attnops.Causal(), 3, ax=3), "ax holds int; it must hold matplotlib's Axes"),
        (lambda: viz.draw_bias(attnops.ALiBi(2), None, 3), "heads is None; it must be an integer"),
        (lambda: viz.draw_bias(attnops.ALiBi(2), 2, 3, ax="ab"), "ax holds str; it must hold matplotlib's Axes"),
        (lambda: viz.draw_weights(torch.ones(3, 3), batch=True), "batch is True; it must be an integer"),
        (lambda: viz.draw_weights(torch.ones(3, 3, dtype=torch.complex64)), "weights is a tensor of torch.complex64"),
        (lambda: viz.draw_graph_weights(TRIANGLE, torch.ones(3), head=1.0), "head is 1.0; it must be an integer"),
        (lambda: viz.draw_graph_weights(TRIANGLE, -torch.ones(3)), "weights hold a negative number"),
        (lambda: viz.draw_graph_weights(TRIANGLE, torch.ones(3) * torch.nan), "weights hold a negative number, a NaN"),
        (
            lambda: viz.draw_graph_weights(TRIANGLE, torch.ones(3), positions=3),
            "positions is int; it must be a mapping",
        ),
        (lambda: viz.draw_graph_weights(TRIANGLE, torch.ones(3), labels=["a"]), "labels is list; it must be a mapping"),
        (lambda: viz.draw_graph_weights(TRIANGLE, torch.ones(3), labels={7: "a"}), "labels name a node 7 that is not"),
        (
            lambda: viz.draw_graph_weights(TRIANGLE, torch.ones(3), positions={0: (0, 0), 1: (0, torch.nan), 2: (1,)}),
            "positions has .* for node 1; it must be two finite numbers",
        ),
    ],
)
def test_an_argument_of_a_wrong_kind_is_named(draw: Callable[[], object], message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        draw()
