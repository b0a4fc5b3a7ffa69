"""The forms in which torch-geometric's layers take a graph, brought to one."""

from __future__ import annotations

from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from attnops.graph.edge_cache import keep

Flow = Literal["source_to_target", "target_to_source"]


class Adjacency(NamedTuple):
    """Edges as a layer needs them, and as the caller gave them."""

    given: Any  # edge_index in the caller's form
    edge_index: Tensor  # [2, E], sources above targets
    attr: Tensor | None  # [E, F]
    num_sources: int | None  # where the form declares it
    num_targets: int | None

    def sizes(self, num_sources: int, num_targets: int) -> tuple[int, int]:
        """The counts of nodes, which must be those that the form declares."""
        declared_sizes, counts = (self.num_sources, self.num_targets), (num_sources, num_targets)
        for side, count, declared in zip(("sources", "targets"), counts, declared_sizes, strict=True):
            if declared is not None and declared != count:
                raise ValueError(f"edge_index is declared over {declared} {side}; x has {count}")
        return num_sources, num_targets


def read_adjacency(
    edge_index: Any, edge_attr: Tensor | None, edge_dim: int | None = None, flow: Flow = "source_to_target"
) -> Adjacency:
    """Sources, targets and features of the edges, whatever form they come in.

    Args:
        edge_index: an integer tensor `[2, E]`, an `EdgeIndex`, or the transposed adjacency, targets by sources, as a
            torch sparse COO, CSR or CSC tensor or a `torch_sparse.SparseTensor`. Values `[E, F]` of a sparse one are
            its edge features where `edge_attr` is None.
        edge_attr: real `[E, F]` or `[E]`, or None. edge_dim: what F must be, where it is known and not -1.
        flow: "target_to_source" swaps the two rows of `edge_index`.

    What is read off `edge_index` is kept for the next call on it, see `edge_cache`.

    Raises:
        TypeError: edge_index of another type or dtype.
        ValueError: edge_index of another shape, edge_attr of another length, a sparse graph whose flow is turned.
    """
    num_sources: int | None = None
    num_targets: int | None = None
    if is_sparse(edge_index):
        if flow != "source_to_target":
            raise ValueError(f"edge_index is sparse, and flow is {flow!r}; give the matrix transposed instead")
        num_targets, num_sources = (int(size) for size in matrix_size(edge_index))
        rows = keep(edge_index, "rows", lambda: _read_rows(edge_index))
        if edge_attr is None:
            values = read_matrix(edge_index)[2]
            edge_attr = values if values is not None and values.ndim > 1 else None
    else:
        rows = read_index(edge_index)
        sizes = edge_index.sparse_size() if is_edge_index(edge_index) else (None, None)
        num_sources, num_targets = sizes
        if flow == "target_to_source":
            rows = keep(rows, "flipped", lambda: rows.flip(0))
            num_sources, num_targets = num_targets, num_sources
    if edge_attr is not None:
        check_edge_attr(edge_attr, rows.shape[1], edge_dim)
        edge_attr = edge_attr.unsqueeze(-1) if edge_attr.ndim == 1 else edge_attr
    return Adjacency(edge_index, rows, edge_attr, num_sources, num_targets)


def read_index(edge_index: Any) -> Tensor:
    """`edge_index` as a plain int32 or int64 tensor `[2, E]`."""
    if not isinstance(edge_index, Tensor):
        raise TypeError(f"edge_index is {type(edge_index).__name__}; it must be a tensor [2, E] or sparse")
    if edge_index.is_floating_point() or edge_index.is_complex() or edge_index.dtype == torch.bool:
        raise TypeError(f"edge_index is {edge_index.dtype}; it must be an integer tensor [2, E]")
    if edge_index.ndim != 2 or edge_index.shape[0] != 2:
        raise ValueError(f"edge_index has shape {list(edge_index.shape)}; it must be [2, E]")
    rows: Tensor = plain(edge_index)
    return rows if rows.dtype in (torch.int32, torch.int64) else keep(rows, "long", rows.long)


def check_edge_attr(edge_attr: Any, num_edges: int, edge_dim: int | None) -> None:
    """Raise where edge features are not a tensor of one row an edge, or not of `edge_dim` where that is known."""
    if not isinstance(edge_attr, Tensor):
        raise TypeError(f"edge_attr is {type(edge_attr).__name__}; it must be a tensor [E, F] or None")
    if edge_attr.ndim == 0 or edge_attr.shape[0] != num_edges:
        raise ValueError(f"edge_attr has shape {list(edge_attr.shape)}; its first axis must be E = {num_edges}")
    features = 1 if edge_attr.ndim == 1 else edge_attr.shape[1]
    if edge_dim is not None and edge_dim > 0 and (features != edge_dim or edge_attr.ndim > 2):
        raise ValueError(f"edge_attr has shape {list(edge_attr.shape)}; it must be [E, edge_dim = {edge_dim}]")


# ----------------------------------------------------------------------------------------------- sparse matrices
def is_edge_index(edge_index: Any) -> bool:
    """Whether it is torch-geometric's `EdgeIndex`, known by what it offers."""
    return isinstance(edge_index, Tensor) and hasattr(edge_index, "sparse_size") and hasattr(edge_index, "as_tensor")


def plain(edge_index: Any) -> Any:
    """The tensor that torch-geometric's `EdgeIndex` or `Index` wraps; any other form as it is."""
    wraps = is_edge_index(edge_index) or (type(edge_index).__name__ == "Index" and isinstance(edge_index, Tensor))
    return edge_index.as_tensor() if wraps else edge_index


def is_sparse_tensor_class(edge_index: Any) -> bool:
    """Whether it is a `torch_sparse.SparseTensor`, known by its name."""
    return type(edge_index).__name__ == "SparseTensor" and hasattr(edge_index, "coo")


def is_sparse(edge_index: Any) -> bool:
    """Whether it is a matrix rather than a list of edges."""
    if is_sparse_tensor_class(edge_index):
        return True
    return isinstance(edge_index, Tensor) and edge_index.layout != torch.strided


def matrix_size(matrix: Any) -> tuple[int, int]:
    """Rows and columns."""
    return matrix.size(0), matrix.size(1)


def read_matrix(matrix: Any) -> tuple[Tensor, Tensor, Tensor | None]:
    """The row, column and value of every stored entry, in the order of storage."""
    if is_sparse_tensor_class(matrix):
        row, column, value = matrix.coo()
        return row, column, value
    if matrix.layout == torch.sparse_coo:
        if matrix.requires_grad and not matrix.is_coalesced():
            raise ValueError("edge_index asks for a gradient of its values, but is not coalesced; call its coalesce()")
        row, column = matrix._indices().detach()
        return row, column, matrix.values() if matrix.is_coalesced() else matrix._values()
    if matrix.layout == torch.sparse_csr:
        return _expand(matrix.crow_indices()), matrix.col_indices().detach(), matrix.values()
    if matrix.layout == torch.sparse_csc:
        return matrix.row_indices().detach(), _expand(matrix.ccol_indices()), matrix.values()
    raise TypeError(f"edge_index is {matrix.layout}; it must be COO, CSR or CSC, or a list of edges [2, E]")


def _read_rows(matrix: Any) -> Tensor:
    """Sources above targets, `[2, E]`, of the transposed adjacency."""
    target, source, _ = read_matrix(matrix)
    return torch.stack([source, target])


def with_values(matrix: Any, values: Tensor) -> Any:
    """The same matrix with `values [E, H]` (or `[E]`) on its entries."""
    if is_sparse_tensor_class(matrix):
        return matrix.set_value(values, layout="coo")
    size = (*matrix.shape[:2], *values.shape[1:])
    if matrix.layout == torch.sparse_coo:
        return torch.sparse_coo_tensor(matrix._indices(), values, size).coalesce()
    if matrix.layout == torch.sparse_csr:
        return torch.sparse_csr_tensor(matrix.crow_indices(), matrix.col_indices(), values, size)
    return torch.sparse_csc_tensor(matrix.ccol_indices(), matrix.row_indices(), values, size)


def _expand(pointer: Tensor) -> Tensor:
    """Row numbers from CSR's pointers."""
    pointer = pointer.detach()
    return torch.repeat_interleave(torch.arange(len(pointer) - 1, device=pointer.device), pointer.diff())
