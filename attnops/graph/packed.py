"""Several graphs packed into one: the vector that says which graph a node is in."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Packed(NamedTuple):
    """How the nodes of G graphs lie one graph below the other."""

    batch: Tensor  # int64 [N], the graph of each node, ascending
    sizes: Tensor  # int64 [G], the nodes of each graph
    first: Tensor  # int64 [G], the first node of each graph


def read_batch(batch: Tensor | None, num_nodes: int, batch_size: int | None, device: torch.device) -> Packed:
    """PyG's `batch [N]`, checked; None is one graph.

    Args:
        batch: integer `[N]`, ascending. batch_size: G; None is one more than the largest of `batch`.

    Raises:
        TypeError: not an integer tensor. ValueError: another length, not ascending, a graph that is not there.
    """
    if batch is None:
        if batch_size not in (None, 1):
            raise ValueError(f"batch_size is {batch_size}; without batch there is one graph")
        batch, batch_size = torch.zeros(num_nodes, dtype=torch.int64, device=device), 1
    if not isinstance(batch, Tensor) or batch.is_floating_point() or batch.is_complex() or batch.dtype == torch.bool:
        kind = batch.dtype if isinstance(batch, Tensor) else type(batch).__name__
        raise TypeError(f"batch is {kind}; it must be an integer tensor [N]")
    if batch.shape != (num_nodes,):
        raise ValueError(f"batch has shape {list(batch.shape)}; it must be [N = {num_nodes}]")
    batch = batch.long()
    if num_nodes and bool((batch.diff() < 0).any()):
        raise ValueError("batch is not ascending; the nodes of a graph must lie together")
    last = int(batch[-1]) if num_nodes else -1
    if num_nodes and int(batch[0]) < 0:
        raise ValueError(f"batch holds {int(batch[0])}; a graph's number must be 0 or more")
    graphs = last + 1 if batch_size is None else batch_size
    if last >= graphs:
        raise ValueError(f"batch holds {last}; with batch_size={graphs} it must be from 0 to {graphs - 1}")
    sizes = torch.bincount(batch, minlength=graphs)
    return Packed(batch, sizes, sizes.cumsum(0) - sizes)


def graph_of_edges(edge_index: Tensor, packed: Packed) -> Tensor:
    """The graph of each edge, `[E]`.

    Raises:
        ValueError: an edge between two graphs.
    """
    graph = packed.batch[edge_index[0].long()]
    across = (graph != packed.batch[edge_index[1].long()]).nonzero()
    if across.numel():
        j, i = edge_index[:, across[0, 0]].tolist()
        raise ValueError(f"edge_index joins node {j} and node {i}, which batch puts into two graphs")
    return graph


def pad(x: Tensor, packed: Packed) -> tuple[Tensor, Tensor]:
    """`[N, F]` as `[G, M, F]`, M the nodes of the largest graph, and bool `[G, M]`, True where there is a node."""
    graphs, most = packed.sizes.shape[0], int(packed.sizes.max()) if packed.sizes.numel() else 0
    real = torch.arange(most, device=x.device) < packed.sizes.unsqueeze(1)
    rows = packed.first.unsqueeze(1) + torch.arange(most, device=x.device)
    padded = x[rows.clamp(max=max(0, x.shape[0] - 1))] if x.shape[0] else x.new_zeros(graphs, most, x.shape[1])
    return torch.where(real.unsqueeze(-1), padded, 0), real
