"""A graph that layers are called on again is read, rewritten and sorted once; when it is kept, and when it is not."""

from __future__ import annotations

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from attnops.graph import GATConv, GATv2Conv, HGTConv, TransformerConv, edge_cache, self_loops
from attnops.patterns import edges as edges_module

LAYERS = [GATConv, GATv2Conv, TransformerConv]


@pytest.fixture
def sorts(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """How many edges each sort was given, from an empty cache."""
    counted: list[int] = []
    right = edges_module.sort_edges

    def count(source: Tensor, target: Tensor, num_queries: int, num_keys: int) -> Any:
        counted.append(len(source))
        return right(source, target, num_queries, num_keys)

    edge_cache.forget()
    monkeypatch.setattr(edges_module, "sort_edges", count)
    yield counted
    edge_cache.forget()


def problem() -> tuple[Tensor, Tensor, Tensor]:
    torch.manual_seed(0)
    return torch.randn(6, 4).double(), torch.randint(0, 6, (2, 15)), torch.randn(15, 2).double()


@pytest.mark.parametrize("layer", LAYERS)
@pytest.mark.parametrize("edge_dim", [None, 2])
def test_sorted_once(layer: Any, edge_dim: int | None, sorts: list[int]) -> None:
    """However often it is called, forward and backward, and with other features each time: the same numbers too."""
    x, edge_index, attr = problem()
    conv = layer(4, 3, heads=2, edge_dim=edge_dim).double()
    expected = [conv(step * x, edge_index.clone(), attr if edge_dim else None) for step in (1, 2)]
    edge_cache.forget()
    sorts.clear()
    for step, right in zip((1, 2), expected, strict=True):
        out = conv(step * x, edge_index, attr if edge_dim else None)
        assert torch.equal(out, right)
        out.sum().backward()
    assert len(sorts) == (2 if layer is TransformerConv and edge_dim else 1)  # edges are a second set of nodes there


def test_loops_written_once(sorts: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    right = self_loops._loops_of_a_list
    monkeypatch.setattr(self_loops, "_loops_of_a_list", lambda *a: written.append(1) or right(*a))
    x, edge_index, attr = problem()
    layers = [GATConv(4, 3).double(), GATConv(4, 3, edge_dim=2).double(), GATv2Conv(4, 3, edge_dim=2).double()]
    for conv in layers:
        for _ in range(2):
            conv(x, edge_index, attr)
    assert len(written) == 1 and len(sorts) == 1  # shared by the layers of a model


@pytest.mark.parametrize("loops", [False, True])
def test_an_edit_in_place_is_noticed(loops: bool, sorts: list[int]) -> None:
    x, edge_index, _ = problem()
    conv = GATv2Conv(4, 3, add_self_loops=loops).double()
    before = conv(x, edge_index)
    edge_index[1, 3] = (edge_index[1, 3] + 1) % 6
    after = conv(x, edge_index)
    assert torch.equal(after, conv(x, edge_index.clone())) and not torch.equal(after, before)
    edge_index[0] = 5  # all values at once
    assert torch.equal(conv(x, edge_index), conv(x, edge_index.clone()))
    view = edge_index[:, :9]  # an edit of the whole is one of the part
    conv(x, view)
    edge_index[0, :4] = 1
    assert torch.equal(conv(x, view), conv(x, view.clone()))
    edge_index[0, 0] = 77
    with pytest.raises(ValueError, match=r"edge_index\[0\] holds the source \(key\) 77; it must be from 0 to 5"):
        conv(x, edge_index)


def test_released_with_the_tensor(sorts: list[int]) -> None:
    x, edge_index, attr = problem()
    for layer in LAYERS:
        conv = layer(4, 3, edge_dim=2).double()
        conv(x, edge_index, attr)
    kept = edge_cache.keep(edge_index, ("edges", 6, 6), lambda: pytest.fail("it was not kept"))
    gone = [weakref.ref(kept), weakref.ref(kept.edge_index), weakref.ref(edge_index)]
    assert len(edge_cache._kept) > 0
    del kept, edge_index
    gc.collect()
    assert all(ref() is None for ref in gone)
    assert len(edge_cache._kept) == 0


def test_equal_values_are_not_the_same_graph(sorts: list[int]) -> None:
    """Kept by identity: another tensor, and another number of nodes, are sorted for themselves."""
    x, edge_index, _ = problem()
    conv = TransformerConv(4, 3).double()
    conv(x, edge_index), conv(x, edge_index.clone()), conv(torch.cat([x, x]), edge_index)
    assert len(sorts) == 3
    conv(x, edge_index), conv(torch.cat([x, x]), edge_index)
    assert len(sorts) == 3


def test_two_threads_sort_once(sorts: list[int]) -> None:
    x, edge_index, _ = problem()
    conv = GATConv(4, 3).double()
    expected = conv(x, edge_index.clone())
    sorts.clear()
    results: list[Tensor] = []
    start = threading.Barrier(4)

    def run() -> None:
        start.wait()
        results.extend(conv(x, edge_index) for _ in range(20))

    threads = [threading.Thread(target=run) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 80 and all(torch.equal(out, expected) for out in results)
    assert len(sorts) == 1


@pytest.mark.parametrize("layer", LAYERS)
def test_nothing_is_kept_inside_a_transform(layer: Any, sorts: list[int]) -> None:
    x, edge_index, _ = problem()
    conv = layer(4, 3).double()
    expected = conv(x, edge_index.clone())
    gc.collect()
    assert len(edge_cache._kept) == 0
    compiled = torch.compile(conv, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(compiled(x, edge_index), expected)
    torch.testing.assert_close(torch.vmap(lambda rows: conv(rows, edge_index))(torch.stack([x, x]))[1], expected)
    gc.collect()
    assert len(edge_cache._kept) == 0
    conv(x, edge_index)  # and what is kept outside serves neither
    edge_index[0, 0] = (edge_index[0, 0] + 1) % 6
    torch.testing.assert_close(compiled(x, edge_index), conv(x, edge_index.clone()))


def test_inference_first_then_training(sorts: list[int]) -> None:
    """Kept forms made in inference serve training; a list made in inference has no version and is never kept."""
    x, edge_index, attr = problem()
    conv = GATv2Conv(4, 3, edge_dim=2).double()
    with torch.inference_mode():
        expected = conv(x, edge_index, attr)
        unversioned = edge_index.clone()
        assert torch.equal(conv(x, unversioned, attr), expected)
        unversioned[1, 0] = (unversioned[1, 0] + 1) % 6
        assert not torch.equal(conv(x, unversioned, attr), expected)
    out = conv(x, edge_index, attr)
    out.sum().backward()
    torch.testing.assert_close(out, expected)
    assert conv.att.grad is not None


def test_what_is_returned_is_the_callers_own(sorts: list[int]) -> None:
    """An edit of the edges that came back with the weights does not reach the next call."""
    x, edge_index, _ = problem()
    conv = GATConv(4, 3).double()
    out, (listed, _) = conv(x, edge_index, return_attention_weights=True)
    right = listed.clone()
    listed.zero_()
    again, (other, _) = conv(x, edge_index, return_attention_weights=True)
    assert torch.equal(again, out) and torch.equal(other, right)


@pytest.mark.filterwarnings("ignore:Sparse (CSR|CSC|invariant)")
@pytest.mark.parametrize("layout", [torch.sparse_coo, torch.sparse_csr])
@pytest.mark.parametrize("loops", [False, True])
def test_a_matrix_is_read_once(layout: torch.layout, loops: bool, sorts: list[int]) -> None:
    if loops:
        pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
    torch.manual_seed(0)
    x, dense = torch.randn(6, 4).double(), torch.rand(6, 6).double()
    matrix = (dense * (dense > 0.5)).to_sparse(layout=layout)
    conv = GATConv(4, 3, add_self_loops=loops).double()
    out = conv(x, matrix)
    assert torch.equal(conv(x, matrix), out) and len(sorts) == 1
    other = conv(x, (dense * (dense > 0.7)).to_sparse(layout=layout))
    assert not torch.equal(other, out)


def test_an_edge_index_is_read_once(sorts: list[int]) -> None:
    torch_geometric = pytest.importorskip("torch_geometric", reason="torch-geometric is not installed")
    x, edge_index, _ = problem()
    wrapped = torch_geometric.EdgeIndex(edge_index, sparse_size=(6, 6))
    for conv in (GATConv(4, 3).double(), TransformerConv(4, 3, flow="target_to_source").double()):
        expected = conv(x, edge_index.clone())
        sorts.clear()
        for _ in range(2):
            assert torch.equal(conv(x, wrapped), expected)
        assert len(sorts) == 1
    narrow = edge_index.to(torch.int16)
    sorts.clear()
    assert torch.equal(conv(x, narrow), conv(x, narrow)) and len(sorts) == 1


def test_other_data_in_the_same_tensor_are_noticed() -> None:
    layer, x = GATConv(4, 4).eval(), torch.randn(5, 4)
    edge_index = torch.tensor([[0, 1, 2], [1, 2, 3]])
    layer(x, edge_index)
    edge_index.data = torch.tensor([[4, 3], [0, 1]])
    torch.testing.assert_close(layer(x, edge_index), layer(x, edge_index.clone()))


@pytest.mark.parametrize("dropped", [0, 1])
def test_joined_relations_are_released_with_any_of_their_tensors(dropped: int) -> None:
    cites, writes = ("paper", "cites", "paper"), ("author", "writes", "paper")
    layer = HGTConv(4, 8, (["author", "paper"], [cites, writes]), heads=2)
    x = {"author": torch.randn(5, 4), "paper": torch.randn(6, 4)}
    edges = [torch.randint(0, 5, (2, 9)) for _ in range(2)]
    edge_cache.forget()
    layer(x, dict(zip((cites, writes), edges, strict=True)))
    lists = [made for kept in edge_cache._kept.values() for made in kept.made.values() if isinstance(made, list)]
    assert [len(each) for each in lists] == [1]
    held = weakref.ref(lists[0][0].made.edges)
    del edges[dropped], lists
    assert held() is None
