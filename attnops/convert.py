"""Graphs of networkx, scipy, torch sparse and PyG as edge lists, and edge lists as networkx graphs.

Every reader returns `(edge_index, num_queries, num_keys, data)`, what `Edges` is built from. `edge_index[0]` is the
source (the key), `edge_index[1]` the target (the query); a matrix's row is the source and its column the target, as in
PyG.
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

EdgeList = tuple[Tensor, int, int, dict[str, Tensor]]
PYG_NAMES = {"edge_attr": "attr", "edge_weight": "weight", "edge_type": "type"}


# ---------------------------------------------------------------------------------------------------- networkx
def networkx_edges(graph: Any, attributes: Mapping[str, str]) -> EdgeList:
    """The edges of a networkx graph, its nodes numbered 0 … N-1 in the graph's own order.

    An edge of an undirected graph goes both ways, its self-loops once; the edges of a multigraph are all kept. A graph
    that `to_networkx` wrote for differing counts (every node is `("key", j)` or `("query", i)`) is read back as it was.

    Args:
        graph: a `Graph`, `DiGraph`, `MultiGraph` or `MultiDiGraph`.
        attributes: the name of each edge datum, and the edge attribute that it is read from.

    Returns:
        edge_index int64 `[2, E]`, the counts, and each datum: bools bool, integers int64, other numbers float32, `[E]`;
        or `[E, F]` where the attribute is a sequence (tuple, list, array) of F numbers.

    Raises:
        TypeError: not a networkx graph; an attribute that is not a number or a flat sequence of numbers.
        ValueError: an edge without the attribute; sequences of unequal length; an edge from a query to a key.
    """
    if not hasattr(graph, "is_directed") or not hasattr(graph, "adj"):
        raise TypeError(f"graph is {type(graph).__name__}; it must be a networkx graph")
    for name, attribute in attributes.items():
        if not isinstance(attribute, str):
            raise TypeError(f"{name} is {attribute!r}; it must be the name of an edge attribute, a string")
    nodes = list(graph)
    bipartite = bool(nodes) and all(isinstance(node, tuple) and node[:1] in (("key",), ("query",)) for node in nodes)
    if bipartite and not graph.is_directed():
        raise ValueError("graph joins ('key', j) and ('query', i) nodes undirected; it must be directed, key to query")
    keys = [node for node in nodes if node[0] == "key"] if bipartite else nodes
    queries = [node for node in nodes if node[0] == "query"] if bipartite else nodes
    key_index = {node: index for index, node in enumerate(keys)}
    query_index = {node: index for index, node in enumerate(queries)}

    sources, targets, origins = [], [], []
    for source, target, values in graph.edges(data=True):
        if source not in key_index or target not in query_index:
            raise ValueError(f"edge {source!r} -> {target!r} of a graph of keys and queries must go from key to query")
        ways = [(source, target)] if graph.is_directed() or source == target else [(source, target), (target, source)]
        for key, query in ways:
            sources.append(key_index[key])
            targets.append(query_index[query])
            origins.append((source, target, values))
    data = {name: _read_attribute(attribute, origins) for name, attribute in attributes.items()}
    return torch.tensor([sources, targets], dtype=torch.int64).reshape(2, -1), len(queries), len(keys), data


def _read_attribute(attribute: str, edges: Sequence[tuple[Any, Any, Mapping[str, Any]]]) -> Tensor:
    """One tensor of the values that all edges have for an attribute."""
    rows: list[Any] = []
    for source, target, values in edges:
        edge = f"edge {source!r} -> {target!r}"
        if attribute not in values:
            raise ValueError(f"{edge} has no attribute {attribute!r}; every edge must have it")
        value = values[attribute]
        row = value.tolist() if hasattr(value, "tolist") else value
        numbers = row if isinstance(row, (list, tuple)) else [row]
        wrong = [number for number in numbers if not isinstance(number, (int, float))]
        if wrong:
            raise TypeError(
                f"attribute {attribute!r} of {edge} holds {wrong[0]!r}; it must be a number or a flat sequence of them"
            )
        rows.append(list(row) if isinstance(row, tuple) else row)
        length, first = (len(each) if isinstance(each, list) else None for each in (rows[-1], rows[0]))
        if length != first:
            here, there = ("one number" if size is None else f"{size} numbers" for size in (length, first))
            raise ValueError(f"attribute {attribute!r} of {edge} has {here}; the first edge has {there}, and all must")
    numbers = [number for row in rows for number in (row if isinstance(row, list) else [row])]
    dtype = torch.float32
    if numbers and all(isinstance(number, bool) for number in numbers):
        dtype = torch.bool
    elif numbers and all(isinstance(number, int) for number in numbers):
        dtype = torch.int64
    try:
        return torch.tensor(rows, dtype=dtype)
    except (OverflowError, RuntimeError, ValueError) as error:  # an integer beyond int64
        raise ValueError(f"attribute {attribute!r} holds a number that {dtype} cannot hold") from error


def to_networkx(
    edge_index: Tensor,
    num_queries: int,
    num_keys: int,
    data: Mapping[str, Tensor],
    weights: Tensor | None = None,
    nodes: Sequence[Any] | None = None,
    attention: str = "attention",
) -> Any:
    """A networkx `MultiDiGraph` of an edge list, with its data as edge attributes (numbers, or lists of them).

    Nodes are the integers 0 … N-1, or those of `nodes`, where there are as many queries as keys; otherwise keys are
    `("key", j)` and queries `("query", i)`, with networkx's node attribute `bipartite` 0 and 1. Nodes without an edge
    are there too.

    Args:
        weights: attention weights in the order of the edges: `[E]`, a number an edge, or `[*B, H, E]` with one row in
            the batch, a list of H numbers an edge.
        nodes: N names that hash, node by node: `list(graph)` of the graph that the edges were read from.
        attention: the name of the edge attribute that the weights become.

    Raises:
        ImportError: networkx is not installed.
        TypeError: weights that are not a tensor. ValueError: weights of another shape, or under the name of an edge
            datum; nodes that are too few, too many, listed twice, or given where queries and keys differ.
    """
    try:
        import networkx
    except ImportError as error:
        raise ImportError("Edges.to_networkx needs networkx: pip install attnops[networkx]") from error
    columns = {name: tensor.detach().tolist() for name, tensor in data.items()}
    if weights is not None:
        if attention in columns:
            raise ValueError(f"attention is {attention!r}, the name of an edge datum; it must be another name")
        columns[attention] = _weight_column(weights, edge_index.shape[1])
    graph = networkx.MultiDiGraph()
    keys: list[Any] = list(range(num_keys))
    queries: list[Any] = list(range(num_queries))
    if num_queries == num_keys:
        if nodes is not None:
            keys = queries = list(nodes)
            if len(keys) != num_keys or len(set(keys)) != num_keys:
                raise ValueError(
                    f"nodes has {len(keys)} names, {len(set(keys))} of them apart; it must have {num_keys}"
                )
        graph.add_nodes_from(keys)
    else:
        if nodes is not None:
            raise ValueError(f"nodes was given, but {num_keys} keys and {num_queries} queries are no one set of nodes")
        keys, queries = [("key", j) for j in keys], [("query", i) for i in queries]
        graph.add_nodes_from(keys, bipartite=0)
        graph.add_nodes_from(queries, bipartite=1)
    sources, targets = edge_index.tolist()
    graph.add_edges_from(
        (keys[j], queries[i], {name: column[e] for name, column in columns.items()})
        for e, (j, i) in enumerate(zip(sources, targets, strict=True))
    )
    return graph


def _weight_column(weights: Tensor, num_edges: int) -> list[Any]:
    """A number, or a list of one a head, for every edge."""
    if not isinstance(weights, Tensor):
        raise TypeError(f"weights is {type(weights).__name__}; it must be a tensor [E] or [*B, H, E]")
    if weights.ndim == 0 or weights.shape[-1] != num_edges or any(size != 1 for size in weights.shape[:-2]):
        raise ValueError(
            f"weights has shape {list(weights.shape)}; it must be [E = {num_edges}] or [*B, H, E] with one row in B"
        )
    if weights.ndim == 1:
        return list(weights.detach().tolist())
    return list(weights.detach().reshape(weights.shape[-2:]).t().tolist())


# ---------------------------------------------------------------------------------------------------- matrices
def scipy_edges(matrix: Any, name: str = "attr") -> EdgeList:
    """The stored entries of a scipy sparse matrix or array of any format, each an edge from its row to its column.

    Explicit zeros and repeated entries are edges too, as scipy's own conversion to COO keeps them (DIA has no explicit
    zeros). Rows are keys and columns queries, and values keep their dtype.

    Args:
        matrix: `[Nk, Nq]`.
        name: the edge datum that the values become.

    Raises:
        TypeError: not a scipy sparse matrix, or values of a dtype that torch does not have.
        ValueError: not two-dimensional.
    """
    if not hasattr(matrix, "tocoo"):
        raise TypeError(f"matrix is {type(matrix).__name__}; it must be a scipy sparse matrix or array")
    if len(matrix.shape) != 2:
        raise ValueError(f"matrix has shape {list(matrix.shape)}; it must be [Nk, Nq]")
    entries = matrix.tocoo()
    edge_index = torch.stack([torch.from_numpy(end.astype("int64")) for end in (entries.row, entries.col)])
    try:
        values = torch.from_numpy(entries.data.copy())
    except TypeError as error:
        raise TypeError(f"matrix holds {entries.data.dtype}; it must hold a dtype that torch has") from error
    num_keys, num_queries = matrix.shape
    return edge_index, int(num_queries), int(num_keys), {name: values}


def torch_sparse_edges(matrix: Tensor, name: str = "attr") -> EdgeList:
    """The stored entries of a torch sparse matrix (COO, CSR or CSC), each an edge from its row to its column.

    Explicit zeros are edges, and so is every entry of an uncoalesced COO matrix. Rows are keys and columns queries.

    Args:
        matrix: `[Nk, Nq]`, or `[Nk, Nq, F]` with F dense, whose values become `[E, F]`.
        name: the edge datum that the values become.

    Raises:
        TypeError: not a tensor.
        ValueError: a dense or blocked layout; batch dimensions; an uncoalesced matrix that requires grad, whose values
            torch does not hand out with their gradient.
    """
    if not isinstance(matrix, Tensor):
        raise TypeError(f"matrix is {type(matrix).__name__}; it must be a torch sparse tensor")
    if matrix.layout not in (torch.sparse_coo, torch.sparse_csr, torch.sparse_csc):
        raise ValueError(f"matrix has layout {matrix.layout}; it must be sparse_coo, sparse_csr or sparse_csc")
    if matrix.sparse_dim() != 2 or matrix.ndim - matrix.dense_dim() != 2:
        raise ValueError(
            f"matrix has shape {list(matrix.shape)}, {matrix.sparse_dim()} of it sparse; it must be [Nk, Nq] or "
            "[Nk, Nq, F], the first two sparse"
        )
    num_keys, num_queries = matrix.shape[:2]
    if matrix.layout == torch.sparse_coo:
        if matrix.is_coalesced():
            return matrix.indices(), num_queries, num_keys, {name: matrix.values()}
        if matrix.requires_grad:
            raise ValueError("matrix is uncoalesced and requires grad; it must be coalesced, or not require grad")
        return matrix._indices(), num_queries, num_keys, {name: matrix._values()}
    if matrix.layout == torch.sparse_csr:
        pointer, other = matrix.crow_indices(), matrix.col_indices()
    else:
        pointer, other = matrix.ccol_indices(), matrix.row_indices()
    index = torch.arange(pointer.shape[0] - 1, device=pointer.device, dtype=pointer.dtype)
    grouped = torch.repeat_interleave(index, pointer.diff())
    ends = (grouped, other) if matrix.layout == torch.sparse_csr else (other, grouped)
    return torch.stack(ends), num_queries, num_keys, {name: matrix.values()}


# ---------------------------------------------------------------------------------------------------- PyG
def pyg_edges(data: Any, relation: tuple[str, str, str] | None = None) -> EdgeList:
    """The edges of PyG `Data`, or of one relation of `HeteroData`.

    `edge_attr`, `edge_weight` and `edge_type` become `attr`, `weight` and `type`; every other tensor that PyG counts as
    an edge attribute keeps its own name. Keys are the nodes of the relation's source type, queries those of its target.

    Args:
        data: `torch_geometric.data.Data` or `HeteroData`.
        relation: `(source type, name, target type)`; of `HeteroData` alone.

    Raises:
        TypeError: neither of the two.
        ValueError: a relation that is not there, is missing or not wanted; no `edge_index`; a number of nodes that is
            not declared (`num_nodes`, `x`, …), since it is never guessed from the largest index.
    """
    if not hasattr(data, "edge_stores"):
        raise TypeError(f"data is {type(data).__name__}; it must be torch_geometric.data.Data or HeteroData")
    if hasattr(data, "edge_types"):
        kinds = data.edge_types
        if relation is None or tuple(relation) not in kinds:
            raise ValueError(f"relation is {relation!r}; of this HeteroData it must be one of {kinds}")
        store, sources, targets = data[tuple(relation)], data[relation[0]], data[relation[2]]
        num_keys, num_queries = _declared_nodes(sources, relation[0]), _declared_nodes(targets, relation[2])
    else:
        if relation is not None:
            raise ValueError(f"relation is {relation!r}; Data has one kind of edge, so it must be None")
        store = data.edge_stores[0]
        num_keys = num_queries = _declared_nodes(data, "Data")
    edge_index = store.get("edge_index")
    if not isinstance(edge_index, Tensor):
        raise ValueError("data has no edge_index; it must have one (an adj_t is not read)")
    if hasattr(edge_index, "as_tensor"):  # PyG's own subclass, EdgeIndex
        edge_index = edge_index.as_tensor()
    carried: dict[str, Tensor] = {}
    for key in store.edge_attrs():
        value = store[key]
        if key == "edge_index" or not isinstance(value, Tensor) or value.shape[0] != edge_index.shape[1]:
            continue
        name = PYG_NAMES.get(key, key)
        if name in carried:
            raise ValueError(f"data has two edge attributes that become {name!r}; rename one")
        carried[name] = value
    return edge_index, num_queries, num_keys, carried


def _declared_nodes(store: Any, kind: str) -> int:
    """How many nodes PyG knows of; it warns where it would guess them from the largest index."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        try:
            count = store.num_nodes
        except UserWarning:
            count = None
    if count is None:
        raise ValueError(f"the number of nodes of {kind} is not declared; set its num_nodes")
    return int(count)
