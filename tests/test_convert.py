"""Edge lists come in from, and go out to, the libraries that people keep graphs in; nothing is lost or guessed."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import networkx
import numpy
import pytest
import scipy.sparse
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from torch_geometric.data import Data, HeteroData
from torch_geometric.utils import from_networkx as pyg_from_networkx
from torch_geometric.utils import from_scipy_sparse_matrix

import attnops
from attnops.patterns.edges import Edges

with warnings.catch_warnings():  # torch says once per process that CSR is in beta and that invariants are unchecked
    warnings.simplefilter("ignore")
    torch.sparse_coo_tensor(torch.zeros(2, 1, dtype=torch.int64), torch.ones(1), (1, 1)).coalesce().to_sparse_csr()


def listed(edges: Edges, *names: str) -> list[tuple[Any, ...]]:
    """Each edge as (source, target, data…), in the order of the list."""
    columns = [edges.edge_index[0].tolist(), edges.edge_index[1].tolist()]
    columns += [[tuple(x) if isinstance(x, list) else x for x in edges.data[name].tolist()] for name in names]
    return list(zip(*columns, strict=True))


@st.composite
def edge_lists(draw: st.DrawFn, square: bool = False) -> Edges:
    num_keys = draw(st.integers(0, 5))
    num_queries = num_keys if square else draw(st.integers(0, 5))
    count = draw(st.integers(0, 8)) if num_keys and num_queries else 0
    ends = draw(
        st.lists(
            st.tuples(st.integers(0, max(0, num_keys - 1)), st.integers(0, max(0, num_queries - 1))),
            min_size=count,
            max_size=count,
        )
    )
    values = draw(st.lists(st.floats(-9, 9, width=32), min_size=count, max_size=count))
    return Edges(
        torch.tensor(ends, dtype=torch.int64).reshape(-1, 2).T,
        num_queries,
        num_keys,
        attr=torch.tensor(values).reshape(-1, 1) * torch.tensor([1.0, -2.0]),
        prior=torch.tensor(values),
        type=torch.arange(count),
    )


# ---------------------------------------------------------------------------------------------------- networkx
@given(edge_lists())
def test_networkx_round_trip(edges: Edges) -> None:
    graph = edges.to_networkx()
    assert isinstance(graph, networkx.MultiDiGraph)
    back = Edges.from_networkx(graph, attr="attr", prior="prior", type="type")
    assert (back.num_queries, back.num_keys) == (edges.num_queries, edges.num_keys)
    if edges.num_edges:
        # networkx lists edges by source; `type` is the place in the list that they came from.
        names = ("attr", "prior", "type")
        assert sorted(listed(back, *names)) == sorted(listed(edges, *names))
        assert {name: back.data[name].dtype for name in names} == {name: edges.data[name].dtype for name in names}
        pairs = [(source, target) for source, target, _ in listed(back, "type")]
        for pair in set(pairs):  # duplicates of one pair keep their order
            places = [place for source, target, place in listed(back, "type") if (source, target) == pair]
            assert places == sorted(places)


def test_nodes_of_a_written_graph() -> None:
    index = torch.tensor([[0], [1]])
    assert list(Edges(index, 3, 3).to_networkx()) == [0, 1, 2]
    graph = Edges(
        index, 2, 3, key=torch.tensor([7])
    ).to_networkx()  # a datum may be called like an argument of networkx
    assert list(graph) == [("key", 0), ("key", 1), ("key", 2), ("query", 0), ("query", 1)]
    assert list(graph.edges(data=True)) == [(("key", 0), ("query", 1), {"key": 7})]
    assert networkx.bipartite.is_bipartite_node_set(
        graph.to_undirected(), [node for node, of in graph.nodes("bipartite") if of == 0]
    )


def test_data_on_edges_of_a_written_graph() -> None:
    edges = Edges(
        torch.tensor([[0, 0], [1, 1]]), 2, 2, attr=torch.tensor([[1.0, 2.0], [3.0, 4.0]]), type=torch.arange(2)
    )
    found = [values for _, _, values in edges.to_networkx().edges(data=True)]
    assert found == [{"attr": [1.0, 2.0], "type": 0}, {"attr": [3.0, 4.0], "type": 1}]


GRAPHS = [networkx.Graph, networkx.DiGraph, networkx.MultiGraph, networkx.MultiDiGraph]


@pytest.mark.parametrize("kind", GRAPHS)
def test_attention_goes_back_onto_the_graph_it_was_read_from(kind: type) -> None:
    """Names of nodes and their order are kept, and each edge has its own weights, parallel edges theirs."""
    graph = kind()
    graph.add_nodes_from(["z", "a", "m"])
    graph.add_edges_from([("z", "a"), ("a", "m"), ("m", "z"), ("z", "a"), ("m", "m")])
    edges = Edges.from_networkx(graph)
    x = torch.randn(2, 3, 4)
    weights = attnops.attend(x, x, x, pattern=edges, return_weights=True).weights
    back = edges.to_networkx(weights, nodes=list(graph))
    assert list(back) == ["z", "a", "m"]
    names = list(graph)
    written = sorted((names.index(j), names.index(i), values["attention"]) for j, i, values in back.edges(data=True))
    expected = sorted((*pair, weights[:, e].tolist()) for e, pair in enumerate(edges.edge_index.t().tolist()))
    assert written == [(j, i, w) for j, i, w in expected]
    assert sum(w[0] for *_, w in back.in_edges("a", data="attention")) == pytest.approx(1.0, abs=1e-6)


def test_attention_between_two_sets_of_nodes_and_by_another_name() -> None:
    edges = Edges(torch.tensor([[0, 2], [1, 0]]), 2, 3, attr=torch.tensor([5.0, 6.0]))
    graph = edges.to_networkx(torch.tensor([0.25, 0.75]), attention="weight")
    assert list(graph.edges(data=True)) == [
        (("key", 0), ("query", 1), {"attr": 5.0, "weight": 0.25}),
        (("key", 2), ("query", 0), {"attr": 6.0, "weight": 0.75}),
    ]
    again = Edges.from_networkx(graph, prior="weight")
    assert (again.num_queries, again.num_keys, again.data["prior"].tolist()) == (2, 3, [0.25, 0.75])
    batched = edges.to_networkx(torch.tensor([[[0.5, 1.0]]]))
    assert batched.edges[("key", 2), ("query", 0), 0]["attention"] == [1.0]
    assert not Edges(torch.zeros(2, 0).long(), 2, 2).to_networkx(torch.zeros(3, 0)).number_of_edges()


@pytest.mark.parametrize(
    ("arguments", "error", "words"),
    [
        ({"weights": [0.5]}, TypeError, "weights is list"),
        ({"weights": torch.rand(2)}, ValueError, r"weights has shape \[2\]; it must be \[E = 1\]"),
        ({"weights": torch.rand(2, 3, 1)}, ValueError, "with one row in B"),
        ({"weights": torch.rand(1), "attention": "attr"}, ValueError, "attention is 'attr', the name of an edge datum"),
        ({"nodes": ["a"]}, ValueError, "nodes has 1 names"),
        ({"nodes": ["a", "a"]}, ValueError, "nodes has 2 names, 1 of them apart"),
    ],
)
def test_attention_that_cannot_be_written(arguments: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        Edges(torch.tensor([[0], [1]]), 2, 2, attr=torch.ones(1)).to_networkx(**arguments)
    with pytest.raises(ValueError, match="no one set of nodes"):
        Edges(torch.tensor([[0], [1]]), 2, 3).to_networkx(nodes=["a", "b"])


@pytest.mark.parametrize("kind", GRAPHS)
@given(pairs=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), max_size=8))
def test_every_kind_of_graph(kind: type, pairs: list[tuple[int, int]]) -> None:
    names = ["e", "c", "a", "d", "b"]  # the graph's own order, not the alphabet's
    graph = kind()
    graph.add_nodes_from(names)
    graph.add_edges_from(
        (names[source], names[target], {"weight": place}) for place, (source, target) in enumerate(pairs)
    )
    edges = Edges.from_networkx(graph, prior="weight")
    expected: Counter[tuple[int, int, int]] = Counter()
    for source, target, place in graph.edges(data="weight"):
        source, target = names.index(source), names.index(target)
        expected[source, target, place] += 1
        if not graph.is_directed() and source != target:
            expected[target, source, place] += 1
    assert (edges.num_queries, edges.num_keys) == (5, 5)
    assert Counter(listed(edges, "prior")) == expected
    if not graph.number_of_edges() or graph.is_directed() or not any(source == target for source, target in pairs):
        theirs = pyg_from_networkx(graph)  # which, unlike us, also doubles the loops of an undirected multigraph
        assert sorted(zip(*theirs.edge_index.tolist(), strict=True)) == sorted(
            (s, t) for s, t, _ in listed(edges, "prior")
        )


def test_loops_of_an_undirected_graph_appear_once() -> None:
    graph = networkx.MultiGraph([(0, 0), (0, 0), (0, 1)])
    assert listed(Edges.from_networkx(graph)) == [(0, 0), (0, 0), (0, 1), (1, 0)]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([1, 2], torch.tensor([1, 2])),
        ([1, 2.5], torch.tensor([1, 2.5])),
        ([True, False], torch.tensor([True, False])),
        ([True, 2], torch.tensor([1, 2])),
        ([numpy.int32(1), numpy.int64(2)], torch.tensor([1, 2])),
        ([numpy.float64(1), numpy.float32(2)], torch.tensor([1.0, 2.0])),
        ([(1, 2), [3, 4]], torch.tensor([[1, 2], [3, 4]])),
        ([(1, 2.5), numpy.array([3, 4])], torch.tensor([[1, 2.5], [3, 4]])),
        ([torch.tensor([1.0]), [2]], torch.tensor([[1.0], [2.0]])),
        ([torch.tensor(3), 4], torch.tensor([3, 4])),
        ([[], ()], torch.zeros(2, 0)),
        ([], torch.zeros(0)),
    ],
)
def test_attributes_become_tensors(values: list[Any], expected: Tensor) -> None:
    graph = networkx.DiGraph()
    graph.add_edges_from((0, target, {"x": value}) for target, value in enumerate(values))
    found = Edges.from_networkx(graph, attr="x").data["attr"]
    torch.testing.assert_close(found, expected, atol=0, rtol=0)


@pytest.mark.parametrize(
    ("first", "second", "error", "words"),
    [
        ({"x": 1}, {}, ValueError, "edge 'b' -> 'c' has no attribute 'x'"),
        ({"x": 1}, {"x": None}, TypeError, "attribute 'x' of edge 'b' -> 'c' holds None"),
        ({"x": 1}, {"x": "far"}, TypeError, "attribute 'x' of edge 'b' -> 'c' holds 'far'"),
        ({"x": [1]}, {"x": [[1]]}, TypeError, r"holds \[1\]; it must be a number or a flat sequence"),
        ({"x": [1]}, {"x": [1, 2]}, ValueError, "edge 'b' -> 'c' has 2 numbers; the first edge has 1 numbers"),
        ({"x": [1]}, {"x": 1}, ValueError, "edge 'b' -> 'c' has one number; the first edge has 1 numbers"),
        ({"x": 1}, {"x": 2**70}, ValueError, "'x' holds a number that torch.int64 cannot hold"),
    ],
)
def test_attributes_that_cannot_be_read(first: dict, second: dict, error: type[Exception], words: str) -> None:
    graph = networkx.DiGraph()
    graph.add_edge("a", "b", **first)
    graph.add_edge("b", "c", **second)
    with pytest.raises(error, match=words):
        Edges.from_networkx(graph, attr="x")


def test_what_is_not_a_networkx_graph() -> None:
    with pytest.raises(TypeError, match="graph is list"):
        Edges.from_networkx([(0, 1)])
    with pytest.raises(TypeError, match="prior is 3; it must be the name of an edge attribute"):
        Edges.from_networkx(networkx.Graph(), prior=3)
    with pytest.raises(ValueError, match="must go from key to query"):
        Edges.from_networkx(networkx.DiGraph([(("query", 0), ("key", 0))]))


# ---------------------------------------------------------------------------------------------------- matrices
@pytest.mark.parametrize("form", ["coo", "csr", "csc", "lil", "dok", "bsr", "dia"])
@pytest.mark.parametrize("kind", ["array", "matrix"])
@given(edges=edge_lists())
def test_scipy_round_trip(kind: str, form: str, edges: Edges) -> None:
    once = sorted(set(listed(edges)))  # most formats hold an entry once
    values = torch.arange(1, len(once) + 1, dtype=torch.float64)
    rows, columns = [source for source, _ in once], [target for _, target in once]
    shape = (edges.num_keys, edges.num_queries)
    if form in ("bsr", "dia") and 0 in shape:
        return  # scipy itself cannot
    coo = getattr(scipy.sparse, f"coo_{kind}")((values.numpy(), (rows, columns)), shape=shape, dtype="float64")
    matrix = coo.tobsr(blocksize=(1, 1)) if form == "bsr" else coo.asformat(form)
    found = Edges.from_scipy(matrix, name="weight")
    assert (found.num_keys, found.num_queries) == shape
    assert sorted(listed(found, "weight")) == [
        (*pair, value) for pair, value in zip(once, values.tolist(), strict=True)
    ]
    assert found.data["weight"].dtype == torch.float64


def test_scipy_keeps_zeros_and_duplicates() -> None:
    coo = scipy.sparse.coo_array(([0.0, 1.0, 2.0], ([0, 1, 1], [2, 0, 0])), shape=(2, 3))
    edges = Edges.from_scipy(coo)
    assert listed(edges, "attr") == [(0, 2, 0.0), (1, 0, 1.0), (1, 0, 2.0)]
    csr = scipy.sparse.csr_array(([0.0, 1.0, 2.0], [2, 0, 0], [0, 1, 3]), shape=(2, 3))
    assert listed(Edges.from_scipy(csr), "attr") == listed(edges, "attr")
    index, weight = from_scipy_sparse_matrix(coo)  # PyG's row is the source too
    assert torch.equal(index, edges.edge_index) and torch.equal(weight, edges.data["attr"])


def test_scipy_values_are_copied_and_keep_their_dtype() -> None:
    coo = scipy.sparse.coo_array((numpy.array([1.5], dtype="float32"), ([0], [1])), shape=(2, 2))
    edges = Edges.from_scipy(coo)
    coo.data[0] = 9
    assert edges.data["attr"].tolist() == [1.5] and edges.data["attr"].dtype == torch.float32


def test_what_is_not_a_scipy_matrix() -> None:
    with pytest.raises(TypeError, match="matrix is ndarray; it must be a scipy sparse matrix"):
        Edges.from_scipy(numpy.eye(2))
    with pytest.raises(TypeError, match="matrix holds float128"):
        Edges.from_scipy(scipy.sparse.coo_array((numpy.array([1], dtype="longdouble"), ([0], [1])), shape=(2, 2)))
    with pytest.raises(ValueError, match=r"matrix has shape \[3\]; it must be \[Nk, Nq\]"):
        Edges.from_scipy(scipy.sparse.coo_array(numpy.ones(3)))


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
@given(edges=edge_lists())
def test_torch_sparse_round_trip(form: str, edges: Edges) -> None:
    shape = (edges.num_keys, edges.num_queries)
    once = sorted(set(listed(edges)))
    values = torch.arange(len(once), dtype=torch.float32)  # the first is an explicit zero
    matrix = torch.sparse_coo_tensor(
        torch.tensor(once, dtype=torch.int64).reshape(-1, 2).T.contiguous(), values, shape
    ).coalesce()
    matrix = {"coo": matrix, "csr": matrix.to_sparse_csr(), "csc": matrix.to_sparse_csc()}[form]
    found = Edges.from_torch_sparse(matrix, "weight")
    assert (found.num_keys, found.num_queries) == shape
    assert sorted(listed(found, "weight")) == [
        (*pair, value) for pair, value in zip(once, values.tolist(), strict=True)
    ]


def test_torch_coo_keeps_duplicates_order_and_features() -> None:
    index = torch.tensor([[1, 0, 1], [2, 0, 2]])
    values = torch.tensor([[1.0, 2.0], [0.0, 0.0], [3.0, 4.0]])
    edges = Edges.from_torch_sparse(torch.sparse_coo_tensor(index, values, (2, 3, 2)))
    assert torch.equal(edges.edge_index, index) and torch.equal(edges.data["attr"], values)
    assert (edges.num_keys, edges.num_queries) == (2, 3)


@pytest.mark.parametrize("form", ["coo", "csr", "csc"])
def test_gradients_reach_the_matrix(form: str) -> None:
    dense = torch.tensor([[0.0, 2.0], [3.0, 0.0]], requires_grad=True)
    matrix = {"coo": dense.to_sparse, "csr": dense.to_sparse_csr, "csc": dense.to_sparse_csc}[form]()
    edges = Edges.from_torch_sparse(matrix)
    (edges.data["attr"] ** 2).sum().backward()
    assert dense.grad.tolist() == [[0, 4], [6, 0]]


def test_what_is_not_a_torch_sparse_matrix() -> None:
    with pytest.raises(TypeError, match="matrix is list"):
        Edges.from_torch_sparse([[1.0]])
    with pytest.raises(ValueError, match=r"matrix has layout torch\.strided"):
        Edges.from_torch_sparse(torch.ones(2, 2))
    with pytest.raises(ValueError, match=r"matrix has layout torch\.sparse_bsr"):
        Edges.from_torch_sparse(torch.ones(2, 2).to_sparse_bsr((1, 1)))
    with pytest.raises(ValueError, match=r"matrix has shape \[2, 2, 2\], 3 of it sparse"):
        Edges.from_torch_sparse(torch.ones(2, 2, 2).to_sparse())
    with pytest.raises(ValueError, match=r"matrix has shape \[2, 2, 2\], 2 of it sparse"):
        Edges.from_torch_sparse(torch.ones(2, 2, 2).to_sparse_csr())
    values = torch.ones(2, requires_grad=True)
    with pytest.raises(ValueError, match="uncoalesced and requires grad"):
        Edges.from_torch_sparse(torch.sparse_coo_tensor(torch.zeros(2, 2, dtype=torch.int64), values, (1, 1)))


# ---------------------------------------------------------------------------------------------------- PyG
def test_pyg_data() -> None:
    data = Data(
        x=torch.zeros(5, 2),
        edge_index=torch.tensor([[0, 1, 1], [2, 3, 3]]),
        edge_attr=torch.randn(3, 2),
        edge_weight=torch.randn(3),
        edge_type=torch.tensor([0, 1, 1]),
        prior=torch.rand(3),
        names=["a", "b", "c"],
        y=torch.zeros(5),
    )
    edges = Edges.from_pyg(data)
    assert torch.equal(edges.edge_index, data.edge_index) and (edges.num_queries, edges.num_keys) == (5, 5)
    expected = {"attr": data.edge_attr, "weight": data.edge_weight, "type": data.edge_type, "prior": data.prior}
    assert edges.data.keys() == expected.keys()
    assert all(torch.equal(edges.data[name], expected[name]) for name in expected)


def test_pyg_relation() -> None:
    data = HeteroData()
    data["camera"].x, data["tracklet"].num_nodes = torch.zeros(2, 3), 4
    data["camera", "sees", "tracklet"].edge_index = torch.tensor([[0, 1, 1], [3, 0, 3]])
    data["camera", "sees", "tracklet"].edge_attr = torch.randn(3, 1)
    data["camera", "sees", "tracklet"].time = torch.arange(3)
    data["tracklet", "near", "tracklet"].edge_index = torch.zeros(2, 0, dtype=torch.int64)
    edges = Edges.from_pyg(data, ("camera", "sees", "tracklet"))
    assert (edges.num_queries, edges.num_keys) == (4, 2)  # queries are the targets
    assert torch.equal(edges.edge_index, data["camera", "sees", "tracklet"].edge_index)
    assert edges.data.keys() == {"attr", "time"}
    near = Edges.from_pyg(data, ("tracklet", "near", "tracklet"))
    assert (near.num_queries, near.num_keys, near.num_edges) == (4, 4, 0)
    for relation in (None, ("camera", "adjacent", "camera")):
        with pytest.raises(ValueError, match=r"relation is .*; of this HeteroData it must be one of .*'near'"):
            Edges.from_pyg(data, relation)
    assert len(data.edge_types) == 2  # asking for a relation that is not there has not made it


def test_pyg_sizes_are_declared_not_guessed() -> None:
    index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(ValueError, match="the number of nodes of Data is not declared"):
        Edges.from_pyg(Data(edge_index=index))
    data = HeteroData()
    data["a"].num_nodes = 2
    data["a", "to", "b"].edge_index = index
    with pytest.raises(ValueError, match="the number of nodes of b is not declared"):
        Edges.from_pyg(data, ("a", "to", "b"))


def test_what_is_not_pyg_data() -> None:
    index = torch.tensor([[0, 1], [1, 0]])
    with pytest.raises(TypeError, match="data is dict"):
        Edges.from_pyg({"edge_index": index})
    with pytest.raises(ValueError, match="data has no edge_index"):
        Edges.from_pyg(Data(num_nodes=3))
    with pytest.raises(ValueError, match=r"relation is .*; Data has one kind of edge"):
        Edges.from_pyg(Data(edge_index=index, num_nodes=2), ("a", "to", "b"))
    with pytest.raises(ValueError, match="two edge attributes that become 'attr'"):
        Edges.from_pyg(Data(edge_index=index, num_nodes=3, edge_attr=torch.zeros(2), attr=torch.zeros(2)))
