"""Every form in which torch-geometric's layers take a graph and give weights back, against its own layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

import attnops.graph

pyg = pytest.importorskip("torch_geometric.nn", reason="torch-geometric is not installed")
from torch_geometric import EdgeIndex  # noqa: E402
from torch_geometric.utils import to_torch_coo_tensor, to_torch_csc_tensor, to_torch_csr_tensor  # noqa: E402

pytestmark = [
    pytest.mark.filterwarnings("ignore:Sparse CSR tensor support is in beta"),
    pytest.mark.filterwarnings("ignore:Sparse invariant checks are implicitly disabled"),
]

NAMES = ["GATConv", "GATv2Conv", "TransformerConv"]
EDGES = torch.tensor([[0, 0, 1, 1, 2, 3, 3, 4], [1, 2, 0, 4, 2, 0, 1, 3]])  # one is a loop
SQUARE, ACROSS = (5, 5), (5, 6)


def transposed(layout: torch.layout, attr: Tensor | None, size: tuple[int, int]) -> Tensor:
    """The transposed adjacency, targets by sources, as PyG wants a sparse one."""
    make = {"coo": to_torch_coo_tensor, "csr": to_torch_csr_tensor, "csc": to_torch_csc_tensor}
    return make[str(layout)[-3:]](EDGES.flip(0), attr, size=(size[1], size[0]))


def both(name: str, channels: Any, **options: Any) -> tuple[Any, Any]:
    """Their layer and ours with the same parameters."""
    theirs = getattr(pyg, name)(channels, 3, heads=2, **options).double()
    ours = getattr(attnops.graph, name)(channels, 3, heads=2, **options).double()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def nodes(size: tuple[int, int]) -> Any:
    x = torch.randn(size[0], 4).double()
    return x if size[0] == size[1] else (x, torch.randn(size[1], 7).double())


def same(ours: Any, theirs: Any) -> None:
    """The same structure, types, layouts and numbers."""
    if isinstance(theirs, tuple):
        assert isinstance(ours, tuple) and len(ours) == len(theirs)
        for mine, right in zip(ours, theirs, strict=True):
            same(mine, right)
        return
    assert type(ours) is type(theirs)
    if isinstance(theirs, EdgeIndex):
        assert ours.sparse_size() == theirs.sparse_size()
        ours, theirs = ours.as_tensor(), theirs.as_tensor()
    assert ours.layout == theirs.layout and ours.dtype == theirs.dtype and ours.shape == theirs.shape
    if theirs.layout != torch.strided:
        ours, theirs = ours.to_dense(), theirs.to_dense()
    torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("size", [SQUARE, ACROSS])
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("features", [False, True])
def test_sparse(name: str, size: tuple[int, int], layout: torch.layout, features: bool) -> None:
    options = {} if name == "TransformerConv" else {"add_self_loops": size == SQUARE, "fill_value": "add"}
    attr = torch.randn(EDGES.shape[1], 2).double() if features else None
    theirs, ours = both(name, 4 if size == SQUARE else (4, 7), edge_dim=2 if features else None, **options)
    x, matrix = nodes(size), transposed(layout, attr, size)
    same(ours(x, matrix), theirs(x, matrix))
    found = ours(x, matrix, return_attention_weights=True)
    if not features or name == "TransformerConv":  # their others fail on weights over a matrix with features
        same(found, theirs(x, matrix, return_attention_weights=True))
    _, (_, listed) = ours(x, EDGES, attr, return_attention_weights=True)  # and as a list
    same(found[0], ours(x, EDGES, attr))
    torch.testing.assert_close(found[1][1].sum(0), listed.sum(0))
    if name != "TransformerConv":
        assert found[1][0].layout == layout and found[1][0].shape == (size[1], size[0], 2)


@pytest.mark.parametrize("name", NAMES)
def test_sparse_columns(name: str) -> None:
    """CSC, which theirs refuses: the same output as the list, the weights on the matrix."""
    _, ours = both(name, (4, 7), **({} if name == "TransformerConv" else {"add_self_loops": False}))
    x = nodes(ACROSS)
    matrix = transposed(torch.sparse_csc, None, ACROSS)
    same(ours(x, matrix), ours(x, EDGES))
    if name != "TransformerConv":
        _, (weighted, weights) = ours(x, matrix, return_attention_weights=True)
        _, (_, listed) = ours(x, EDGES, return_attention_weights=True)
        assert weighted.layout == torch.sparse_csc
        dense = torch.zeros(ACROSS[1], ACROSS[0], 2).double()
        dense[EDGES[1], EDGES[0]] = listed
        row, column = EDGES.flip(0)[:, torch.argsort(EDGES[0], stable=True)]  # in the order of storage
        torch.testing.assert_close(weights, dense[row, column])


def test_a_sparse_matrix_is_not_changed() -> None:
    """Theirs marks the user's COO matrix as coalesced; ours reads it."""
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 0, 1], [1, 1, 0]]), torch.ones(3).double(), (2, 2))
    ours = attnops.graph.TransformerConv(4, 3).double()
    x = torch.randn(2, 4).double()
    listed = ours(x, torch.tensor([[1, 1, 0], [0, 0, 1]]))
    same(ours(x, matrix), listed)
    assert not matrix.is_coalesced()


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("order", [None, "row", "col"])
@pytest.mark.parametrize("loops", [False, True])
def test_edge_index(name: str, order: str | None, loops: bool) -> None:
    index = EdgeIndex(EDGES[:, EDGES[0 if order == "row" else 1].argsort(stable=True)] if order else EDGES,
                      sparse_size=SQUARE, sort_order=order)  # fmt: skip
    theirs, ours = both(name, 4, edge_dim=2, **({} if name == "TransformerConv" else {"add_self_loops": loops}))
    x, attr = nodes(SQUARE), torch.randn(EDGES.shape[1], 2).double()
    same(ours(x, index, attr), theirs(x, index, attr))
    same(ours(x, index, attr, return_attention_weights=True), theirs(x, index, attr, return_attention_weights=True))


@pytest.mark.parametrize("name", NAMES)
def test_edge_index_between_two_sets(name: str) -> None:
    index = EdgeIndex(EDGES, sparse_size=ACROSS)
    theirs, ours = both(name, (4, 7), **({} if name == "TransformerConv" else {"add_self_loops": False}))
    x = nodes(ACROSS)
    same(ours(x, index, return_attention_weights=True), theirs(x, index, return_attention_weights=True))
    with pytest.raises(ValueError, match="edge_index is declared over 5 sources; x has 7"):
        ours((torch.randn(7, 4).double(), x[1]), index)


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
@pytest.mark.parametrize("name", NAMES)
def test_integer_dtypes(name: str, dtype: torch.dtype) -> None:
    theirs, ours = both(name, 4)
    x, edges = nodes(SQUARE), EDGES.to(dtype)
    same(ours(x, edges, return_attention_weights=True), theirs(x, edges, return_attention_weights=True))


@pytest.mark.parametrize("targets", [5, 3, 6])
def test_size_and_targets_without_features(targets: int) -> None:
    """`size` says how many targets there are where they have no features; without it, as many as sources."""
    theirs, ours = both("GATConv", (4, 7), add_self_loops=False)
    x, edges = torch.randn(5, 4).double(), EDGES[:, EDGES[1] < targets]
    expected = theirs((x, None), edges, size=(5, targets), return_attention_weights=True)
    same(ours((x, None), edges, size=(5, targets), return_attention_weights=True), expected)
    assert ours((x, None), edges, size=(5, targets)).shape == (targets, 6)
    matrix = to_torch_coo_tensor(edges.flip(0), size=(targets, 5))
    same(ours((x, None), matrix), ours((x, None), edges, size=(5, targets)))
    if targets == 5:
        same(ours((x, None), edges), theirs((x, None), edges))
    other = torch.randn(targets, 7).double()
    same(ours((x, other), edges, size=(5, targets)), theirs((x, other), edges, size=(5, targets)))


def test_a_shared_map_over_a_pair() -> None:
    theirs, ours = both("GATConv", 4, add_self_loops=False, residual=True)
    x = (torch.randn(5, 4).double(), torch.randn(6, 4).double())
    same(ours(x, EDGES), theirs(x, EDGES))
    same(ours((x[0], None), EDGES), theirs((x[0], None), EDGES))


@pytest.mark.parametrize("name", ["GATConv", "GATv2Conv"])
def test_loops_within_one_set(name: str) -> None:
    """The same tensor twice is one set of nodes, as is one tensor through two maps: theirs, loops included."""
    theirs, ours = both(name, (4, 4), edge_dim=2)
    x, attr = nodes(SQUARE), torch.randn(EDGES.shape[1], 2).double()
    expected = theirs((x, x), EDGES, attr, return_attention_weights=True)
    same(ours((x, x), EDGES, attr, return_attention_weights=True), expected)
    same(ours(x, EDGES, attr), theirs(x, EDGES, attr))


@pytest.mark.parametrize("name", NAMES)
def test_edge_features_of_one_number(name: str) -> None:
    """`[E]` is `[E, 1]`, as theirs reads it (its TransformerConv reads no `[E]`)."""
    theirs, ours = both(name, 4, edge_dim=1, **({} if name == "TransformerConv" else {"fill_value": 2.0}))
    x, attr = nodes(SQUARE), torch.randn(EDGES.shape[1]).double()
    wide = attr.unsqueeze(-1)
    same(ours(x, EDGES, attr), theirs(x, EDGES, wide if name == "TransformerConv" else attr))
    same(ours(x, EDGES, wide), theirs(x, EDGES, wide))


def test_in_a_model_of_theirs() -> None:
    """In `Sequential` and `HeteroConv`, and after a batch of their `DataLoader`."""
    from torch_geometric.data import Batch, Data

    torch.manual_seed(0)
    graphs = [Data(x=torch.randn(n, 4), edge_index=torch.randint(0, n, (2, 3 * n))) for n in (3, 5, 2)]
    batch = Batch.from_data_list(graphs)
    layer = attnops.graph.GATv2Conv(4, 3, heads=2)
    model = pyg.Sequential("x, edge_index", [(layer, "x, edge_index -> x"), torch.nn.ReLU()])
    out = model(batch.x, batch.edge_index)
    alone = torch.cat([model(graph.x, graph.edge_index) for graph in graphs])
    torch.testing.assert_close(out, alone)
    to, fro = ("a", "to", "b"), ("b", "fro", "a")
    ours, theirs = (
        pyg.HeteroConv({to: layer((4, 7), 3, add_self_loops=False), fro: layer((7, 4), 3, add_self_loops=False)})
        for layer in (attnops.graph.GATConv, pyg.GATConv)
    )
    theirs.load_state_dict(ours.state_dict())
    x_dict, edges = {"a": torch.randn(5, 4), "b": torch.randn(6, 7)}, {to: EDGES, fro: EDGES}
    found, expected = ours(x_dict, edges), theirs(x_dict, edges)
    torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("make", [to_torch_coo_tensor, to_torch_csr_tensor])
def test_gradients_reach_the_values_of_a_matrix(name: str, make: Any) -> None:
    """What an edge encoder gave is learned through a sparse adjacency too."""
    torch.manual_seed(0)
    options = {} if name == "TransformerConv" else {"add_self_loops": False}
    theirs = getattr(pyg, name)(4, 3, edge_dim=2, **options).double()
    ours = getattr(attnops.graph, name)(4, 3, edge_dim=2, **options).double()
    ours.load_state_dict(theirs.state_dict())
    index, x = torch.tensor([[0, 1, 2, 0], [1, 2, 0, 2]]), torch.randn(3, 4, dtype=torch.float64)
    grads = []
    for layer in (theirs, ours):
        attr = torch.arange(8.0, dtype=torch.float64).view(4, 2).requires_grad_()
        matrix = make(index.flip(0), attr, size=(3, 3))
        layer(x, matrix).square().sum().backward()
        grads.append(attr.grad)
    assert grads[1] is not None
    torch.testing.assert_close(grads[1], grads[0], rtol=1e-9, atol=1e-10)


def test_a_matrix_that_is_not_coalesced_and_asks_for_a_gradient_is_refused() -> None:
    values = torch.ones(2, 2, requires_grad=True)
    matrix = torch.sparse_coo_tensor(torch.tensor([[0, 0], [1, 1]]), values, (3, 3, 2))
    with pytest.raises(ValueError, match="not coalesced"):
        attnops.graph.GATConv(4, 3, edge_dim=2, add_self_loops=False)(torch.randn(3, 4), matrix)
