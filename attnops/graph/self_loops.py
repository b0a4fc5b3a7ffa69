"""Self-loops as torch-geometric's layers add them: those that are there are removed, and every node gets one."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from attnops.coords import is_concrete
from attnops.graph.adjacency import (
    check_edge_attr,
    is_edge_index,
    is_sparse,
    is_sparse_tensor_class,
    plain,
    read_index,
)
from attnops.graph.edge_cache import keep
from attnops.problem import UnsupportedError

REDUCTIONS = {"mean": "mean", "add": "sum", "sum": "sum", "min": "amin", "max": "amax", "mul": "prod"}
Fill = float | Tensor | str


class _LeftAtDefault(int):
    """True as a default, told from the True that a caller wrote."""

    def __repr__(self) -> str:
        return "True"


DEFAULT: bool = _LeftAtDefault(True)  # type: ignore[assignment]


def by_name(add_self_loops: bool) -> bool:
    """Whether a caller asked for self-loops, rather than left them at their default."""
    return bool(add_self_loops) and not isinstance(add_self_loops, _LeftAtDefault)


def loops_wanted(add_self_loops: bool, asked: bool, one_set: bool) -> bool:
    """Whether a layer adds self-loops: within one set of nodes, and never between two.

    Raises:
        ValueError: loops asked for by name between two sets of nodes.
    """
    if add_self_loops and asked and not one_set:
        raise ValueError(
            "add_self_loops is True, but x is a pair of two node sets, which have no self-loops; it must be False or "
            "left out (where both are one set, give one tensor, or the same tensor twice)"
        )
    return add_self_loops and one_set


class Loops(NamedTuple):
    """Edges whose self-loops were replaced."""

    edge_index: Any
    edge_attr: Tensor | None
    kept: Tensor | None  # bool [E]: False where an edge is listed but not used; None where all are


def replace_self_loops(
    edge_index: Any, edge_attr: Tensor | None, fill_value: Fill, num_nodes: int, edge_dim: int | None
) -> Loops:
    """The edges without their self-loops, then one loop a node, 0 … num_nodes-1; in the form they came in.

    What is done to the edges is kept for the next call on them, see `edge_cache`.

    In a traced function the count of edges must not depend on their values: there the loops that were given stay listed
    and are marked as not kept.

    Args:
        fill_value: features of a loop: a number, a tensor `[F]`, or "mean", "add", "min", "max", "mul" over the edges
            that enter its node.

    Raises:
        ValueError: an unknown fill_value. UnsupportedError: a `SparseTensor` where the layer reads edge features.
    """
    if isinstance(fill_value, str) and fill_value not in REDUCTIONS:
        names = ", ".join(REDUCTIONS)
        raise ValueError(f"fill_value is {fill_value!r}; it must be a number, a tensor or one of {names}")
    if is_sparse_tensor_class(edge_index):
        if edge_dim is not None:
            raise UnsupportedError("add_self_loops with edge_dim takes no SparseTensor; add the loops to it beforehand")
        from torch_sparse import set_diag  # type: ignore[import-not-found, unused-ignore]

        return Loops(set_diag(edge_index), edge_attr, None)
    if is_sparse(edge_index):
        return _loops_of_a_matrix(edge_index, edge_attr, fill_value, num_nodes)
    listed = read_index(edge_index)
    if edge_attr is not None:
        check_edge_attr(edge_attr, listed.shape[1], edge_dim)
    if not is_concrete(listed):
        return _loops_traced(listed, edge_attr, fill_value, num_nodes)
    looped, used = keep(listed, ("loops", num_nodes), lambda: _loops_of_a_list(listed, num_nodes))
    if edge_attr is not None:
        entering = looped[1, : looped.shape[1] - num_nodes]
        edge_attr = edge_attr if used is None else edge_attr[used]
        edge_attr = torch.cat([edge_attr, loop_features(edge_attr, entering, fill_value, num_nodes)])
    return Loops(
        _loops_of_an_edge_index(edge_index, num_nodes) if is_edge_index(edge_index) else looped, edge_attr, None
    )


def _loops_of_a_list(edge_index: Tensor, num_nodes: int) -> tuple[Tensor, Tensor | None]:
    """The edges that are no loops, then the loops, `[2, E']`; and which edges were used, None for all of them."""
    check_targets(edge_index[1], num_nodes)
    used = (edge_index[0] != edge_index[1]).nonzero().flatten()
    others = edge_index[:, used]
    loops = torch.arange(num_nodes, device=edge_index.device)
    looped = torch.cat([others, loops.expand(2, -1)], dim=1)
    return looped, None if used.shape[0] == edge_index.shape[1] else used


def _loops_traced(edge_index: Tensor, edge_attr: Tensor | None, fill_value: Fill, num_nodes: int) -> Loops:
    """With a count of edges that does not depend on their values: the given loops are listed and not kept."""
    kept = edge_index[0] != edge_index[1]
    counted = torch.where(kept, edge_index[1].clamp(0, num_nodes), num_nodes)  # at one more node, then left out
    kept = torch.cat([kept, kept.new_ones(num_nodes)])
    loops = torch.arange(num_nodes, device=edge_index.device)
    if edge_attr is not None:
        edge_attr = torch.cat([edge_attr, loop_features(edge_attr, counted, fill_value, num_nodes)])
    return Loops(torch.cat([edge_index, loops.expand(2, -1)], dim=1), edge_attr, kept)


def _loops_of_a_matrix(matrix: Tensor, edge_attr: Tensor | None, fill_value: Fill, num_nodes: int) -> Loops:
    """By torch-geometric, whose form and order of entries the result has; kept where its values are constants."""
    from torch_geometric.utils import add_self_loops, remove_self_loops

    def make() -> Loops:
        given = matrix
        if matrix.layout == torch.sparse_coo and not matrix.requires_grad:
            # one of its own, since torch-geometric marks what it is given as coalesced
            given = torch.sparse_coo_tensor(matrix._indices(), matrix._values(), matrix.shape)
        others, attr = remove_self_loops(given, edge_attr)
        looped, attr = add_self_loops(others, attr, fill_value, num_nodes)
        return Loops(looped, attr, None)

    if edge_attr is not None or matrix.requires_grad or isinstance(fill_value, Tensor):
        return make()
    return keep(matrix, ("loops", num_nodes, fill_value), make)


def _loops_of_an_edge_index(edge_index: Any, num_nodes: int) -> Any:
    """As torch-geometric wraps them, with what it knows of the list's form."""
    from torch_geometric.utils import add_self_loops, remove_self_loops

    name = ("loops", num_nodes, edge_index.sparse_size(), edge_index.is_undirected)
    return keep(
        plain(edge_index), name, lambda: add_self_loops(remove_self_loops(edge_index)[0], num_nodes=num_nodes)[0]
    )


def loop_features(edge_attr: Tensor, target: Tensor, fill_value: Fill, num_nodes: int) -> Tensor:
    """`[num_nodes, F]`: what each loop carries, from the edges that enter its node; a target `num_nodes` is none."""
    if isinstance(fill_value, Tensor):
        return fill_value.to(edge_attr.device, edge_attr.dtype).expand(num_nodes, *edge_attr.shape[1:])
    if not isinstance(fill_value, str):
        return edge_attr.new_full((num_nodes, *edge_attr.shape[1:]), fill_value)
    reduction = REDUCTIONS[fill_value]
    index = target.long().view(-1, *[1] * (edge_attr.ndim - 1)).expand_as(edge_attr)
    start = edge_attr.new_zeros(num_nodes + 1, *edge_attr.shape[1:])
    if reduction == "prod":  # of no edge it is 1
        return (start + 1).scatter_reduce(0, index, edge_attr, "prod")[:num_nodes]
    return start.scatter_reduce(0, index, edge_attr, reduction, include_self=False)[:num_nodes]


def check_targets(target: Tensor, num_nodes: int) -> None:
    """Raise `ValueError` where an edge enters a node that is not there."""
    if target.numel():
        low, high = (int(end) for end in torch.aminmax(target))
        if low < 0 or high >= num_nodes:
            wrong = low if low < 0 else high
            raise ValueError(f"edge_index[1] holds the target {wrong}; it must be from 0 to {num_nodes - 1}")
