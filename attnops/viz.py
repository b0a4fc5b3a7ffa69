"""Pictures of patterns, biases and weights. They need matplotlib, and those of graphs networkx: the extra `viz`.

Every function draws into axes that are given, or into a new figure, and returns the axes; `axes.figure.savefig(…)`
keeps the picture. Hatched cells are forbidden pairs.
"""

from __future__ import annotations

import math
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from attnops import convert
from attnops.biases.base import Bias
from attnops.checks import require_index
from attnops.grid import CoordsLike, evaluate
from attnops.patterns.base import Pattern
from attnops.patterns.edges import Edges

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# Okabe and Ito's blue; viridis and PuOr are told apart with any kind of colour vision, and in grey.
ALLOWED, ONE_SIDED, TWO_SIDED, HATCH = "#0072b2", "viridis", "PuOr", "////"
SIDES = {"key": "#0072b2", "query": "#d55e00"}


def draw_pattern(
    pattern: Pattern | Tensor,
    num_queries: int,
    num_keys: int | None = None,
    coords: CoordsLike = None,
    ax: Axes | None = None,
    *,
    batch_size: int = 1,
    batch: int = 0,
) -> Axes:
    """Draw which pairs a pattern allows: queries downwards, keys to the right.

    Args:
        pattern: a `Pattern`, or a bool mask `[Nq, Nk]`.
        num_queries, num_keys: Nq and Nk; Nk is Nq where it is not given.
        coords: what the pattern reads, as in `attend`.
        ax: axes to draw into; None makes a figure.
        batch_size, batch: B, and the row of it that is drawn, for a pattern or coords that differ over the batch.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a pattern that does not fit these sizes; nothing to draw.

    Example:
        >>> import attnops.viz
        >>> axes = attnops.viz.draw_pattern(attnops.SlidingWindow(2) | attnops.GlobalTokens([0]), 8)
        >>> axes.get_xlabel(), axes.get_ylabel()
        ('key j', 'query i')
    """
    num_keys = num_queries if num_keys is None else num_keys
    allowed, _ = evaluate(None, 1, num_queries, num_keys, coords, pattern, batch_size, batch)
    (axes,) = _panels(ax, 1)
    from matplotlib.colors import ListedColormap
    from matplotlib.patches import Patch

    shown = allowed[0]
    axes.imshow(_masked(shown.float(), ~shown), cmap=ListedColormap([ALLOWED]), vmin=0, vmax=1, interpolation="none")
    title = "mask" if isinstance(pattern, Tensor) else textwrap.fill(str(pattern), 36)
    _label(axes, title, bool((~shown).any()), [Patch(color=ALLOWED, label="allowed")])
    return axes


def draw_bias(
    bias: Bias | Pattern | Tensor,
    heads: int,
    num_queries: int,
    num_keys: int | None = None,
    coords: CoordsLike = None,
    pattern: Pattern | Tensor | None = None,
    ax: Axes | Sequence[Axes] | None = None,
    *,
    batch_size: int = 1,
    batch: int = 0,
) -> list[Axes]:
    """Draw b_ij, one heat map a head on one scale; what the pattern or a -inf forbids is hatched.

    Args:
        bias: a `Bias` (or a pattern, which is 0 or -inf), or a tensor that broadcasts to `[H, Nq, Nk]`, or to `[H, E]`
            where the pattern is an `Edges`. One that needs the content of queries is drawn as `bias.bind(query, key)`.
        heads: H.
        num_queries, num_keys: Nq and Nk; Nk is Nq where it is not given.
        coords: what bias and pattern read, as in `attend`.
        pattern: the pairs to draw; its edge data are those that the bias reads.
        ax: H axes to draw into (one will do for one head); None makes a figure.
        batch_size, batch: B, and the row of it that is drawn, for what differs over the batch.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a bias that adds nothing to logits (`Rotary`, `Sink`) or needs content; a b_ij that is NaN or inf;
            an edge list that lists a pair twice; sizes that do not fit.

    Example:
        >>> import attnops.viz
        >>> left, right = attnops.viz.draw_bias(attnops.ALiBi(2), heads=2, num_queries=6, pattern=attnops.Causal())
        >>> right.get_title()
        'head 1'
    """
    num_keys = num_queries if num_keys is None else num_keys
    allowed, values = evaluate(bias, heads, num_queries, num_keys, coords, pattern, batch_size, batch)
    forbidden = ~allowed | (values == -torch.inf)
    if not torch.isfinite(values[~forbidden]).all():
        head, i, j = torch.nonzero(~forbidden & ~torch.isfinite(values))[0].tolist()
        raise ValueError(
            f"bias is {float(values[head, i, j])} for head {head}, query {i}, key {j}; it must be a number"
        )
    return _heat_maps(values, forbidden, ax, "bias $b_{ij}$")


def draw_weights(
    weights: Tensor, edges: Edges | None = None, ax: Axes | Sequence[Axes] | None = None, *, batch: int = 0
) -> list[Axes]:
    """Draw attention weights, one heat map a head on one scale from 0.

    Args:
        weights: `[*B, H, Nq, Nk]` or `[Nq, Nk]`; with `edges`, `[*B, H, E]` or `[E]`, where duplicates of a pair add up
            and pairs without an edge are hatched.
        edges: the edge list whose weights they are.
        ax: H axes to draw into (one will do for one head); None makes a figure.
        batch: the row of the batch, taken as one axis, that is drawn.

    Raises:
        ImportError: matplotlib is not installed.
        ValueError: a shape that does not fit, a weight that is not a number, nothing to draw.

    Example:
        >>> import torch, attnops.viz
        >>> x = torch.randn(2, 5, 4)                                              # [H, N, D]
        >>> result = attnops.attend(x, x, x, pattern=attnops.Causal(), return_weights=True)
        >>> len(attnops.viz.draw_weights(result.weights))
        2
    """
    if edges is None:
        shown = _per_head(weights, 2, batch, "[*B, H, Nq, Nk]")
        forbidden = torch.zeros_like(shown, dtype=torch.bool)
    else:
        listed = _edge_weights(weights, edges, batch)
        place = edges.target.cpu().long() * edges.num_keys + edges.source.cpu().long()
        flat = torch.zeros(listed.shape[0], edges.num_queries * edges.num_keys).index_add(1, place, listed)
        shown = flat.view(-1, edges.num_queries, edges.num_keys)
        forbidden = torch.ones(flat.shape[1], dtype=torch.bool).index_fill(0, place, False).view(shown.shape[1:])
        forbidden = forbidden.expand_as(shown)
    if not torch.isfinite(shown).all():
        raise ValueError("weights hold a NaN or an inf; they must be numbers")
    return _heat_maps(shown, forbidden, ax, "weight $w_{ij}$", low=0.0)


def draw_graph_weights(
    edges: Edges | Any,
    weights: Tensor | str,
    head: int = 0,
    positions: Mapping[Any, Sequence[float]] | None = None,
    labels: Mapping[Any, str] | None = None,
    ax: Axes | None = None,
    *,
    batch: int = 0,
) -> Axes:
    """Draw the weight of each edge on the graph, from key to query, wide and dark where it is large.

    Nodes are named as by `Edges.to_networkx`: 0 … N-1, or `("key", j)` left, `("query", i)` right where counts differ;
    those of a networkx graph keep their names.

    Args:
        edges: the edge list, duplicates included; or a networkx graph (`Edges.to_networkx` writes weights into one).
        weights: `[*B, H, E]` or `[E]`, in the order of the edges; of a networkx graph the name of the edge attribute
            that holds a number, or one a head.
        head: the head that is drawn.
        positions: the place of each node, `{node: (x, y)}`; None lays them out, always alike.
        labels: what is written on nodes, `{node: text}`; None writes their index, or their name.
        ax: axes to draw into; None makes a figure.
        batch: the row of the batch that is drawn.

    Raises:
        ImportError: matplotlib or networkx is not installed.
        TypeError: weights of another kind. ValueError: a shape that does not fit, a head that is not there, a node
            without a position, an edge without the attribute.

    Example:
        >>> import torch, attnops.viz
        >>> edges = attnops.Edges(torch.tensor([[1, 2, 0], [0, 0, 2]]), num_queries=3, num_keys=3)
        >>> x = torch.randn(1, 3, 4)
        >>> weights = attnops.attend(x, x, x, pattern=edges, return_weights=True).weights
        >>> attnops.viz.draw_graph_weights(edges, weights).get_title()
        'head 0'
    """
    own_names: list[Any] | None = None
    if hasattr(edges, "is_directed"):
        edges, weights, own_names = _read_graph(edges, weights)
    listed = _edge_weights(weights, edges, batch)
    require_index(listed.shape[0], head=head)
    if not torch.isfinite(listed).all() or bool((listed < 0).any()):
        raise ValueError("weights hold a negative number, a NaN or an inf; a width must be a number of 0 or more")
    for name, given in (("positions", positions), ("labels", labels)):
        if given is not None and not isinstance(given, Mapping):
            raise TypeError(f"{name} is {type(given).__name__}; it must be a mapping of nodes")
    (axes,) = _panels(ax, 1)
    try:
        import networkx
    except ImportError as error:
        raise ImportError("drawing graphs needs networkx: pip install attnops[viz]") from error
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    number = {"edge": torch.arange(edges.num_edges)}
    graph = convert.to_networkx(edges.edge_index, edges.num_queries, edges.num_keys, number, nodes=own_names)
    if edges.num_queries == edges.num_keys:
        placed = networkx.spring_layout(graph, seed=0) if positions is None else positions
        names = {node: str(node) for node in graph}
        color = ["#777777"] * len(names)
    else:
        height = {"key": max(1, edges.num_keys - 1), "query": max(1, edges.num_queries - 1)}
        columns = {(side, row): (float(side == "query"), -row / height[side]) for side, row in graph}
        placed = columns if positions is None else positions
        names = {(side, row): str(row) for side, row in graph}
        color = [SIDES[side] for side, _ in graph]
    for node in graph:
        if node not in placed:
            raise ValueError(f"positions have no place for node {node!r}; every node must have one")
        _check_place(node, placed[node])
    for node in labels or {}:
        if node not in graph:
            raise ValueError(f"labels name a node {node!r} that is not there; nodes are {_some(list(graph))}")
    networkx.draw_networkx_nodes(graph, placed, node_color=color, ax=axes)
    networkx.draw_networkx_labels(
        graph, placed, names if labels is None else labels, font_color="white", font_size=9, ax=axes
    )
    drawn = list(graph.edges(keys=True, data="edge"))
    strength = listed[head, [edge for *_, edge in drawn]]
    top = max(strength.tolist(), default=0.0) or 1.0
    scale = ScalarMappable(Normalize(0.0, top), "viridis_r")
    duplicates = 1 + max((key for *_, key, _ in drawn), default=0)
    networkx.draw_networkx_edges(
        graph,
        placed,
        edgelist=[edge[:3] for edge in drawn],
        edge_color=list(scale.to_rgba(strength.numpy())),
        width=(0.5 + 2.5 * strength / top).tolist(),
        # An edge and its reverse bend apart, and so do duplicates, by their number.
        connectionstyle=[f"arc3,rad={0.12 + 0.15 * duplicate:.2f}" for duplicate in range(duplicates)],
        ax=axes,
    )
    axes.figure.colorbar(scale, ax=axes, label="weight $w_{ij}$")
    axes.set_title(f"head {head}")
    axes.set_axis_off()
    return axes


# ---------------------------------------------------------------------------------------------------- what is drawn
def _per_head(weights: Tensor | str, trailing: int, batch: int, shape: str) -> Tensor:
    """`[H, …]` of one row of the batch, float32 on the CPU."""
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights is {type(weights).__name__}; it must be a tensor {shape}")
    if weights.is_complex():
        raise TypeError(f"weights is a tensor of {weights.dtype}; it must hold real numbers")
    if weights.ndim < trailing or 0 in weights.shape:
        raise ValueError(f"weights has shape {list(weights.shape)}; it must be {shape} with something to draw")
    last = tuple(weights.shape[-trailing:])
    heads = weights.shape[-trailing - 1] if weights.ndim > trailing else 1
    rows = weights.detach().float().cpu().reshape(-1, heads, *last)
    require_index(rows.shape[0], batch=batch)
    return rows[batch]


def _read_graph(graph: Any, attribute: Any) -> tuple[Edges, Tensor, list[Any] | None]:
    """The edges of a networkx graph, the weights `[H, E]` that an attribute of theirs holds, and the nodes' names."""
    if not isinstance(attribute, str):
        raise TypeError(f"weights is {type(attribute).__name__}; of a networkx graph it must name an edge attribute")
    edge_index, num_queries, num_keys, data = convert.networkx_edges(graph, {"weights": attribute})
    weights = data["weights"].float()
    names = list(graph) if len(graph) == num_keys == num_queries else None
    return Edges(edge_index, num_queries, num_keys), weights.t() if weights.ndim > 1 else weights, names


def _edge_weights(weights: Tensor | str, edges: Edges, batch: int) -> Tensor:
    """`[H, E]` of one row of the batch."""
    if not isinstance(edges, Edges):
        raise TypeError(f"edges is {type(edges).__name__}; it must be an Edges")
    if isinstance(weights, Tensor) and (weights.ndim == 0 or weights.shape[-1] != edges.num_edges):
        raise ValueError(f"weights has shape {list(weights.shape)}; it must be [*B, H, E] with E = {edges.num_edges}")
    if isinstance(weights, Tensor) and edges.num_edges == 0:
        return torch.zeros(1, 0)
    return _per_head(weights, 1, batch, "[*B, H, E]")


def _check_place(node: object, place: object) -> None:
    """Raise unless a place is two finite numbers."""
    try:
        x, y = (float(number) for number in place)  # type: ignore[attr-defined]
    except (TypeError, ValueError):
        x = y = math.nan
    if not (math.isfinite(x) and math.isfinite(y)):
        raise ValueError(f"positions has {place!r} for node {node!r}; it must be two finite numbers (x, y)")


def _some(nodes: list[Any]) -> str:
    return ", ".join(map(repr, nodes[:5])) + (", …" if len(nodes) > 5 else "")


# ---------------------------------------------------------------------------------------------------- how
def _panels(ax: Axes | Sequence[Axes] | None, count: int) -> list[Axes]:
    """`count` axes: those given, or those of a new figure, four in a row."""
    try:
        from matplotlib import pyplot
        from matplotlib.axes import Axes
    except ImportError as error:
        raise ImportError("attnops.viz needs matplotlib: pip install attnops[viz]") from error
    if ax is not None:
        given = [ax] if isinstance(ax, Axes) else list(ax) if isinstance(ax, Iterable) else [ax]
        for each in given:
            if not isinstance(each, Axes):
                raise TypeError(f"ax holds {type(each).__name__}; it must hold matplotlib's Axes")
        if len(given) != count:
            raise ValueError(f"ax holds {len(given)} axes; it must hold {count}, one a head")
        return given
    columns = min(count, 4)
    rows = math.ceil(count / columns)
    figure, grid = pyplot.subplots(
        rows, columns, squeeze=False, figsize=(1 + 3 * columns, 1 + 3 * rows), layout="constrained"
    )
    panels = list(grid.flat)
    for spare in panels[count:]:
        figure.delaxes(spare)
    return panels[:count]


def _heat_maps(
    values: Tensor, forbidden: Tensor, ax: Axes | Sequence[Axes] | None, label: str, low: float | None = None
) -> list[Axes]:
    """One heat map a head, on one scale: about 0 where there are both signs."""
    panels = _panels(ax, values.shape[0])
    shown = values[~forbidden]
    least, most = (float(shown.min()), float(shown.max())) if shown.numel() else (0.0, 0.0)
    least = least if low is None else low
    color_map = ONE_SIDED
    if least < 0 < most:
        color_map, most = TWO_SIDED, max(-least, most)
        least = -most
    elif least == most:  # one value: the middle of a scale
        least, most = least - 0.5, most + 0.5
    image = None
    for head, axes in enumerate(panels):
        image = axes.imshow(
            _masked(values[head], forbidden[head]), cmap=color_map, vmin=least, vmax=most, interpolation="none"
        )
        _label(axes, f"head {head}", head == 0 and bool(forbidden.any()), [])
    assert image is not None
    panels[0].figure.colorbar(image, ax=panels, label=label)
    return panels


def _masked(values: Tensor, hidden: Tensor) -> Any:
    """A numpy array whose hidden cells are left transparent."""
    import numpy

    return numpy.ma.masked_array(values.numpy(), hidden.numpy())


def _label(axes: Axes, title: str, hatched: bool, handles: list[Any]) -> None:
    """Names of axes, whole numbers at ticks, and what shines through transparent cells: a hatch."""
    from matplotlib.patches import Patch
    from matplotlib.ticker import MaxNLocator

    axes.set(title=title, xlabel="key j", ylabel="query i")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_locator(MaxNLocator(nbins=8, integer=True))
    axes.patch.set(facecolor="white", edgecolor="0.75", hatch=HATCH, linewidth=0)
    if hatched:
        handles = [*handles, Patch(facecolor="white", edgecolor="0.75", hatch=HATCH, label="forbidden")]
    if handles:
        axes.legend(handles=handles, loc="upper center", bbox_to_anchor=(0.5, -0.18), ncols=2, frameon=False)
