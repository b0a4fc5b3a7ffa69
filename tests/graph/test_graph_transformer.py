"""Graph transformers: nodes renumbered, graphs packed, a path is a sequence, parts merge, parity with GPSConv."""

from __future__ import annotations

from typing import Any

import networkx
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

import attnops
from attnops.graph import (
    ExphormerAttention,
    ExphormerGraph,
    GraphTransformer,
    LocalGlobal,
    NodeAttention,
    expander_edges,
)
from attnops.graph.packed import pad, read_batch

ATTENTIONS = ["graphormer", "local+global", "local+linear", "exphormer"]
SIZES, EDGES = (4, 1, 6, 0, 3), (7, 0, 14, 0, 2)


def graphs(seed: int) -> list[tuple[Tensor, Tensor, Tensor]]:
    """Features, edges and edge features of graphs of several sizes, one without a node."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for nodes, edges in zip(SIZES, EDGES, strict=True):
        edge_index = torch.randint(0, max(1, nodes), (2, edges), generator=generator)
        x, attr = (torch.randn(n, 3, generator=generator, dtype=torch.float64) for n in (nodes, edges))
        made.append((x, edge_index, attr))
    return made


def packed(parts: list[tuple[Tensor, Tensor, Tensor]]) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    firsts = torch.tensor([0, *(x.shape[0] for x, _, _ in parts)]).cumsum(0)
    x = torch.cat([x for x, _, _ in parts])
    edge_index = torch.cat([edges + first for (_, edges, _), first in zip(parts, firsts, strict=False)], dim=1)
    batch = torch.repeat_interleave(torch.arange(len(parts)), firsts.diff())
    return x, edge_index, torch.cat([attr for _, _, attr in parts]), batch


def build(attention: Any, **options: Any) -> GraphTransformer:
    """A model in float64, none of whose tables is 0."""
    torch.manual_seed(0)
    model = GraphTransformer(
        3, 8, num_layers=2, out_channels=2, heads=2, attention=attention, edge_dim=3, max_path=2, **options
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)
    return model.eval()


@pytest.mark.parametrize("readout", [None, "mean", "sum"])
@pytest.mark.parametrize("attention", ATTENTIONS)
def test_a_batch_is_each_graph_alone(attention: Any, readout: Any) -> None:
    model, parts = build(attention, readout=readout), graphs(1)
    x, edge_index, attr, batch = packed(parts)
    together = model(x, edge_index, attr, batch, batch_size=len(parts))
    alone = torch.cat([model(*part) for part in parts])
    assert together.shape[0] == (x.shape[0] if readout is None else len(parts))
    torch.testing.assert_close(together, alone)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_the_numbering_of_nodes_and_edges_changes_nothing(attention: Any) -> None:
    options = {"degree": 0} if attention == "exphormer" else {}  # the expander is drawn by number
    model, (x, edge_index, attr) = build(attention, **options), graphs(2)[2]
    new_name = torch.randperm(x.shape[0])
    order = torch.randperm(attr.shape[0])
    renamed = torch.empty_like(x).index_copy(0, new_name, x)
    out = model(renamed, new_name[edge_index][:, order], attr[order])
    torch.testing.assert_close(out[new_name], model(x, edge_index, attr))


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_every_parameter_learns(attention: Any) -> None:
    model = build(attention, laplacian=2, random_walk=2)
    x, edge_index, attr, batch = packed(graphs(3))
    positions = {name: torch.randn(x.shape[0], 2, dtype=torch.float64) for name in ("laplacian", "random_walk")}
    model(x, edge_index, attr, batch, **positions).square().sum().backward()
    still = [name for name, p in model.named_parameters() if p.grad is None or not bool(p.grad.abs().sum() > 0)]
    assert not still


@pytest.mark.parametrize("window", [(1, 0), (2, 1)])
def test_a_path_graph_is_a_sliding_window(window: tuple[int, int]) -> None:
    """One set of weights, two patterns: the edges of a path, and a window over a sequence."""
    left, right = window
    layer = NodeAttention(8, heads=2)
    x = torch.randn(10, 8)
    path = networkx.DiGraph()
    path.add_nodes_from(range(10))
    path.add_edges_from((j, i) for i in range(10) for j in range(max(0, i - left), min(10, i + right + 1)))
    edges = attnops.Edges.from_networkx(path)
    torch.testing.assert_close(layer(x, edges), layer(x, attnops.SlidingWindow(left, right)))


def test_hops_on_a_path_graph_are_relative_positions() -> None:
    """Graphormer's table over a path that is walked both ways is a bias of |p_i - p_j|, as ALiBi's."""
    there = torch.stack([torch.arange(7), torch.arange(1, 8)])
    pairs = attnops.graph.all_pairs(torch.cat([there, there.flip(0)], dim=1), 8)
    bias = attnops.graph.GraphormerBias(2, max_distance=8)
    alibi = attnops.ALiBi(2)
    with torch.no_grad():
        for hops in range(8):
            slope = torch.tensor([2.0**-4, 2.0**-8])
            next(iter(bias.parameters()))[hops] = -slope * hops
    q, k, v = torch.randn(3, 2, 8, 4).unbind(0)
    torch.testing.assert_close(attnops.attend(q, k, v, pattern=pairs, bias=bias), attnops.attend(q, k, v, bias=alibi))


# ---------------------------------------------------------------------------------------------------- GPS
class Conv(nn.Module):
    """A layer of PyG's interface as a local part."""

    def __init__(self, conv: nn.Module) -> None:
        super().__init__()
        self.conv = conv

    def forward(self, x: Tensor, edges: attnops.Edges) -> Any:
        return self.conv(x, edges.edge_index)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("norm", ["layer", "batch", None])
def test_local_and_global_are_those_of_gpsconv(norm: Any, training: bool) -> None:
    pyg = pytest.importorskip("torch_geometric.nn", reason="the extra graph is not installed")
    theirs = pyg.GPSConv(8, pyg.GATConv(8, 4, heads=2), heads=2, norm=None if norm is None else f"{norm}_norm")
    if norm == "layer":  # PyG's default is one mean over all nodes of a graph; ours is a node's, as in transformers
        theirs.norm1, theirs.norm2, theirs.norm3 = (pyg.LayerNorm(8, mode="node") for _ in range(3))
    ours = LocalGlobal(8, heads=2, local=Conv(attnops.graph.GATConv(8, 4, heads=2)), norm=norm)
    names = {
        "conv.": "local.conv.",
        "attn.in_proj_": "everyone.qkv.",
        "attn.out_proj.": "everyone.out.",
        "mlp.": "feed_forward.",
        "norm1.module.": "local_norm.",
        "norm2.module.": "global_norm.",
        "norm3.module.": "norm.",
        "norm1.": "local_norm.",
        "norm2.": "global_norm.",
        "norm3.": "norm.",
    }
    state = {}
    for key, tensor in theirs.state_dict().items():
        prefix = next(prefix for prefix in names if key.startswith(prefix))
        state[names[prefix] + key[len(prefix) :]] = tensor
    ours.load_state_dict(state)
    theirs.train(training), ours.train(training)
    x, edge_index, _, batch = packed(graphs(4))
    x, kept = torch.randn(x.shape[0], 8, requires_grad=True), torch.arange(5)[torch.tensor(SIZES) > 0]
    batch = torch.searchsorted(kept, batch)  # PyG takes a graph without a node for one of zeros
    edges = attnops.Edges(edge_index, x.shape[0], x.shape[0])
    expected = theirs(x, edge_index, batch)
    out = ours(x, edges, batch)
    torch.testing.assert_close(out, expected, atol=1e-5, rtol=1e-5)
    (gradient,), (right,) = (torch.autograd.grad(result.square().sum(), x) for result in (out, expected))
    torch.testing.assert_close(gradient, right, atol=1e-4, rtol=1e-4)


def test_linear_attention_of_packed_graphs_is_that_of_each() -> None:
    layer = LocalGlobal(8, heads=2, attention="linear").double()
    _, edge_index, _, batch = packed(graphs(5))
    x = torch.randn(batch.shape[0], 8, dtype=torch.float64)
    out = layer(x, attnops.Edges(edge_index, x.shape[0], x.shape[0]), batch, 5)
    assert not torch.allclose(out, layer(x, attnops.Edges(edge_index, x.shape[0], x.shape[0])))
    for graph in range(5):
        nodes = (batch == graph).nonzero().flatten()
        inside = torch.isin(edge_index[0], nodes)
        first = int(nodes[0]) if len(nodes) else 0
        alone = layer(x[nodes], attnops.Edges(edge_index[:, inside] - first, len(nodes), len(nodes)))
        torch.testing.assert_close(out[nodes], alone)


# ---------------------------------------------------------------------------------------------------- Exphormer
@given(seed=st.integers(0, 99), virtual=st.integers(0, 3), degree=st.sampled_from([0, 2, 4]))
def test_parts_merge_into_one_softmax(seed: int, virtual: int, degree: int) -> None:
    """Local edges and an expander on one backend, virtual nodes on another: the numbers of one list."""
    torch.manual_seed(seed)
    x, edge_index, attr, batch = packed(graphs(seed))
    graph = ExphormerGraph(
        attnops.Edges(edge_index, x.shape[0], x.shape[0], attr=attr),
        read_batch(batch, 14, 5, x.device),
        virtual,
        degree,
    )
    layer = ExphormerAttention(8, heads=2, edge_dim=3).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    rows = torch.randn(14 + 5 * virtual, 8, dtype=torch.float64, requires_grad=True)
    results = []
    for merged in (False, True):
        layer.merged = merged
        out = layer(rows, graph)
        results.append((out, *torch.autograd.grad(out.square().sum(), [rows, *layer.parameters()])))
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other)


def test_the_parts_run_on_different_backends() -> None:
    ring = torch.stack([torch.arange(3000), (torch.arange(3000) + 1) % 3000])
    graph = ExphormerGraph(attnops.Edges(ring, 3000, 3000), virtual_nodes=4)
    layer = ExphormerAttention(8, heads=2, merged=True)
    with attnops.trace() as plans:
        layer(torch.randn(3004, 8), graph)
    used = [plan.backend for plan in plans]
    assert len(used) == 3 and len(set(used)) > 1


def test_exphormer_lists_three_parts() -> None:
    local = attnops.Edges(torch.tensor([[0, 1], [1, 0]]), 5, 5, attr=torch.ones(2, 3))
    sizes = read_batch(torch.tensor([0, 0, 1, 1, 1]), 5, 2, torch.device("cpu"))
    edges = ExphormerGraph(local, sizes, virtual_nodes=2, degree=2).edges
    kinds = edges.data["type"]
    assert (edges.num_queries, kinds.bincount().tolist()) == (9, [2, 2 + 6, 20])
    assert edges.data["attr"].sum(1).tolist() == [3.0] * 2 + [0.0] * 28
    joined = edges.edge_index[:, kinds == 2].t().tolist()
    assert all(([i, j] in joined) for j, i in joined)
    assert {j for j, i in joined if i == 5} == {0, 1} and {j for j, i in joined if i == 8} == {2, 3, 4}


@pytest.mark.parametrize("degree", [4, 8])
def test_an_expander_has_a_spectral_gap(degree: int) -> None:
    """Regular but for a few edges, and its second eigenvalue near that of the best there can be, 2√(d − 1)."""
    edges = expander_edges([400], degree)
    assert (edges[0] != edges[1]).all() and torch.unique(edges, dim=1).shape == edges.shape
    adjacency = torch.zeros(400, 400).index_put((edges[0], edges[1]), torch.tensor(1.0))
    assert torch.equal(adjacency, adjacency.t()) and int(adjacency.sum(0).min()) >= degree - 2
    values = torch.linalg.eigvalsh(adjacency)
    assert float(values[-2]) < 1.1 * 2 * (degree - 1) ** 0.5 < degree * 0.98


def test_padding_of_packed_graphs() -> None:
    sizes = read_batch(torch.tensor([0, 0, 2]), 3, 4, torch.device("cpu"))
    padded, real = pad(torch.tensor([[1.0], [2.0], [3.0]]), sizes)
    assert padded.flatten(1).tolist() == [[1, 2], [0, 0], [3, 0], [0, 0]]
    assert real.tolist() == [[True, True], [False, False], [True, False], [False, False]]


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: GraphTransformer(3, 8, 1, 1, attention="full"), ValueError, "attention is 'full'"),
        (lambda: GraphTransformer(3, 8, 1, 1, readout="max"), ValueError, "readout is 'max'"),
        (lambda: GraphTransformer(3, 9, 1, 1, heads=2), ValueError, "dim is 9; it must be a multiple of heads = 2"),
        (lambda: build("exphormer")(torch.randn(2, 3), torch.zeros(2, 0).long()), ValueError, "edge_attr is None"),
        (
            lambda: build("graphormer")(*graphs(0)[0], laplacian=torch.zeros(4, 2)),
            ValueError,
            "laplacian is [4, 2]; it must be None",
        ),
        (lambda: LocalGlobal(8, 2, attention="none"), ValueError, "attention is 'none'"),
        (lambda: LocalGlobal(8, 2, norm="rms"), ValueError, "norm is 'rms'"),
        (lambda: LocalGlobal(8, 2, nn.Identity(), bias=attnops.Sink(2)), ValueError, "bias was given beside local"),
        (lambda: expander_edges([4], 3), ValueError, "degree is 3; it must be even"),
        (
            lambda: ExphormerGraph(attnops.Edges(torch.tensor([[0], [0]]), 1, 1, type=torch.tensor([0]))),
            ValueError,
            "local carries type",
        ),
        (
            lambda: ExphormerGraph(attnops.Edges(torch.tensor([[0], [0]]), 1, 1), virtual_nodes=-1),
            ValueError,
            "virtual_nodes is -1",
        ),
    ],
)
def test_errors(make: Any, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as raised:
        make()
    assert words in str(raised.value)


@pytest.mark.parametrize("attention", ATTENTIONS)
def test_bad_inputs_are_named(attention: str) -> None:
    """Features of another width or dtype, and an edge between two graphs, whatever the attention."""
    model = build(attention)
    x, edge_index, attr, batch = packed(graphs(0))
    with pytest.raises(ValueError, match=r"x has shape \[14, 2\]; it must be \[N, in_channels = 3\]"):
        model(x[:, :2], edge_index, attr, batch)
    with pytest.raises(TypeError, match=r"x is torch\.float32; it must be torch\.float64"):
        model(x.float(), edge_index, attr, batch)
    edge_index[:, 2] = torch.tensor([3, 5])
    with pytest.raises(ValueError, match="edge_index joins node 3 and node 5, which batch puts into two graphs"):
        model(x, edge_index, attr, batch)
    assert model(x, edge_index, attr).shape == (14, 2)
