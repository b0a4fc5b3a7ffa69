"""The (query, key) pairs being scored now, in whatever form a backend wants them: a grid, a list, or one pair."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from attnops.coords import Coords


class Rows:
    """One side of the pairs: `rows.NAME` is the coord NAME at each pair, ready to broadcast against the other side."""

    def __init__(self, coords: Coords, index: Tensor | slice, view: tuple[int, ...], pairs: Pairs) -> None:
        self._coords, self._index, self._view, self._pairs = coords, index, view, pairs
        self._kept: dict[str, Tensor] = {}

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._kept:
            self._kept[name] = self._gather(name)
        return self._kept[name]

    def _gather(self, name: str) -> Tensor:
        index = self._index
        if name == "index" or (name == "position" and "position" not in self._coords):
            if isinstance(index, slice):
                index = torch.arange(index.start, index.stop, device=self._pairs.device)
            rows = index.view(self._view) if self._view else index
            return rows if name == "index" or self._coords.offset == 0 else rows + self._coords.offset
        if name not in self._coords:
            raise ValueError(
                f"coords.{name} is read by the pattern, bias or score, but was not given; coords carry "
                f"{', '.join(self._coords.names) or 'nothing'}"
            )
        data = self._coords.data[name]  # [1, N] or [B, N]
        if not self._view:  # one pair
            return data[self._pairs.batch if data.shape[0] > 1 else 0, index]
        at_rows = data[:, index].view(data.shape[0], *self._view[1:])
        if self._pairs.allowed is not None and not self._coords.finite(name):
            return torch.where(self._pairs.allowed, at_rows, 0)  # a forbidden pair may hold NaN
        return at_rows


class EdgeRows:
    """The data of the edge that joins each pair: `edge.NAME`, with the last axis of `[E, F]` data kept apart."""

    def __init__(self, data: Mapping[str, Tensor], pairs: Pairs, ids: Tensor | None, rank: int) -> None:
        self._data, self._pairs, self.ids, self._rank = data, pairs, ids, rank

    def __getattr__(self, name: str) -> Tensor:
        if name.startswith("__"):
            raise AttributeError(name)
        if name not in self._data:
            raise ValueError(
                f"edge.{name} is read by the pattern, bias or score, but the pattern has no edge data of that name; "
                f"it carries {', '.join(self._data) or 'none'} (Edges(edge_index, num_queries, num_keys, {name}=…))"
            )
        return self.read(self._data[name])

    def read(self, data: Tensor) -> Tensor:
        """`[E, …]` data at the pairs: `[1, 1, E, …]` on a list, `[1, 1, Nq, Nk, …]` by ids on a grid."""
        ids = self.ids
        if ids is None:
            lead = (1,) * (self._rank - 1)
            return self._kept_apart(data.view(*lead, *data.shape))
        if data.shape[0] == 0:
            return data.new_zeros(*ids.shape, *data.shape[1:])
        return self._kept_apart(data[ids.clamp(min=0)])

    def _kept_apart(self, data: Tensor) -> Tensor:
        """0 in the place of what is not finite at edges that are forbidden in every batch row and head."""
        allowed = self._pairs.allowed
        if allowed is None or not data.is_floating_point():
            return data
        somewhere = allowed.flatten(0, 1).any(0).view(1, 1, *allowed.shape[2:])
        somewhere = somewhere.view(*somewhere.shape, *(1,) * (data.ndim - somewhere.ndim))
        return torch.where(somewhere | torch.isfinite(data), data, 0)


class Pairs:
    """The pairs being scored: what a `Bias`, `Pattern` or `Score` is written over, whichever backend runs.

    `pairs.query.NAME` and `pairs.key.NAME` are coords at each pair (`index`, `position`, `segment`, `type`, …),
    `pairs.edge.NAME` is data of the edge that joins it, `pairs.head` and `pairs.batch` are indices. All broadcast
    against each other: to `[B, H, Nq, Nk]` on a dense block, to `[B, H, E]` on an edge list, to 0-d inside a
    FlexAttention mod. `pairs.dtype` is the dtype that logits are computed in (float32 at least).

    Example:
        >>> import torch, attnops
        >>> class Nearer(attnops.Bias):
        ...     def forward(self, pairs):
        ...         return -(pairs.query.position - pairs.key.position).abs().to(pairs.dtype)
        >>> x = torch.randn(2, 3, 4)                                    # [H, N, D]
        >>> attnops.attend(x, x, x, bias=Nearer()).shape
        torch.Size([2, 3, 4])
    """

    query: Rows
    key: Rows
    edge: EdgeRows
    head: Tensor
    batch: Tensor

    def __init__(self, batch_shape: tuple[int, ...], heads: int, dtype: torch.dtype, device: torch.device) -> None:
        self.batch_shape, self.heads, self.dtype, self.device = batch_shape, heads, dtype, device
        self.allowed: Tensor | None = None  # where set, coords that are not finite read 0 at forbidden pairs

    @classmethod
    def grid(
        cls,
        coords: tuple[Coords, Coords],
        batch_shape: tuple[int, ...],
        heads: int,
        queries: slice,
        keys: slice | Tensor,
        *,
        dtype: torch.dtype,
        device: torch.device,
        edge_data: Mapping[str, Tensor] | None = None,
        edge_ids: Tensor | None = None,
        keys_are_edges: bool = False,
    ) -> Pairs:
        """A block of queries against a block (or a list) of keys; rank 4.

        With `keys_are_edges`, the key axis lists edges: key column e is the source of edge e, and edge data lie on it.
        """
        pairs = cls(batch_shape, heads, dtype, device)
        num_batches = math.prod(batch_shape)
        num_queries = queries.stop - queries.start
        num_keys = keys.stop - keys.start if isinstance(keys, slice) else keys.shape[0]
        pairs.shape = (num_batches, heads, num_queries, num_keys)
        pairs.batch = torch.arange(num_batches, device=device).view(num_batches, 1, 1, 1)
        pairs.head = torch.arange(heads, device=device).view(1, heads, 1, 1)
        pairs.query = Rows(coords[0], queries, (1, 1, num_queries, 1), pairs)
        pairs.key = Rows(coords[1], keys, (1, 1, 1, num_keys), pairs)
        pairs.edge = EdgeRows(
            edge_data or {}, pairs, None if edge_ids is None else edge_ids.view(1, 1, num_queries, num_keys), rank=4
        )
        pairs.queries, pairs.keys, pairs.keys_are_edges = queries, keys, keys_are_edges
        return pairs

    @classmethod
    def listed(
        cls,
        coords: tuple[Coords, Coords],
        batch_shape: tuple[int, ...],
        heads: int,
        queries: Tensor,
        keys: Tensor,
        *,
        dtype: torch.dtype,
        device: torch.device,
        edge_data: Mapping[str, Tensor] | None = None,
        edge_ids: Tensor | None = None,
    ) -> Pairs:
        """A list of pairs, the e-th joining `queries[e]` and `keys[e]` by edge `edge_ids[e]` (None: e); rank 3."""
        pairs = cls(batch_shape, heads, dtype, device)
        num_batches, num_pairs = math.prod(batch_shape), queries.shape[0]
        pairs.shape = (num_batches, heads, num_pairs)
        pairs.batch = torch.arange(num_batches, device=device).view(num_batches, 1, 1)
        pairs.head = torch.arange(heads, device=device).view(1, heads, 1)
        pairs.query = Rows(coords[0], queries, (1, 1, num_pairs), pairs)
        pairs.key = Rows(coords[1], keys, (1, 1, num_pairs), pairs)
        pairs.edge = EdgeRows(
            edge_data or {}, pairs, None if edge_ids is None else edge_ids.view(1, 1, num_pairs), rank=3
        )
        pairs.queries, pairs.keys, pairs.keys_are_edges = queries, keys, True
        return pairs

    @classmethod
    def single(
        cls,
        coords: tuple[Coords, Coords],
        batch_shape: tuple[int, ...],
        heads: int,
        batch: Tensor,
        head: Tensor,
        query: Tensor,
        key: Tensor,
        *,
        dtype: torch.dtype,
        device: torch.device,
        edge_data: Mapping[str, Tensor] | None = None,
        edge_ids: Tensor | None = None,
    ) -> Pairs:
        """One pair given by 0-d indices, as inside FlexAttention's mods; rank 0."""
        pairs = cls(batch_shape, heads, dtype, device)
        pairs.shape = ()
        pairs.batch, pairs.head = batch, head
        pairs.query, pairs.key = Rows(coords[0], query, (), pairs), Rows(coords[1], key, (), pairs)
        pairs.edge = EdgeRows(edge_data or {}, pairs, edge_ids, rank=0)
        pairs.queries, pairs.keys, pairs.keys_are_edges = query, key, False
        return pairs

    shape: tuple[int, ...]
    queries: slice | Tensor
    keys: slice | Tensor
    keys_are_edges: bool

    def only(self, allowed: Tensor) -> None:
        """From now on read 0 at forbidden pairs in coords that are not finite: a forbidden pair may hold NaN."""
        self.allowed = allowed
        self.query._kept.clear()
        self.key._kept.clear()

    def read(self, table: Tensor) -> Tensor:
        """A tensor that broadcasts to `[*B, H, Nq, Nk]`, read at the pairs (a view where the block is whole)."""
        table = as_four_axes(table, self.batch_shape)
        if len(self.shape) == 4:
            if table.shape[2] > 1:
                table = table[:, :, self.queries]
            return table[:, :, :, self.keys] if table.shape[3] > 1 else table
        batch = self.batch if table.shape[0] > 1 else torch.zeros_like(self.batch)
        head = self.head if table.shape[1] > 1 else torch.zeros_like(self.head)
        query = self.query.index if table.shape[2] > 1 else torch.zeros_like(self.query.index)
        key = self.key.index if table.shape[3] > 1 else torch.zeros_like(self.key.index)
        return table[batch, head, query, key]

    def read_edges(self, values: Tensor) -> Tensor:
        """A tensor that broadcasts to `[*B, H, E]`, read at the edges of the pairs."""
        values = as_axes(values, self.batch_shape, 2)  # [B|1, H|1, E|1]
        if len(self.shape) == 3:
            return values if self.edge.ids is None or values.shape[2] == 1 else values[:, :, self.edge.ids.flatten()]
        if self.keys_are_edges:
            return values.unsqueeze(2)
        ids = self.edge.ids
        if ids is None:
            raise ValueError("bias is a tensor over edges, but the pattern lists no edges")
        if values.shape[2] == 1 and len(self.shape) == 4:
            return values.unsqueeze(3)
        batch = self.batch if values.shape[0] > 1 else torch.zeros_like(self.batch)
        head = self.head if values.shape[1] > 1 else torch.zeros_like(self.head)
        place = ids.clamp(min=0) if values.shape[2] > 1 else torch.zeros_like(ids)
        return values[batch, head, place] if values.shape[2] else values.new_zeros(ids.shape)


def as_axes(tensor: Tensor, batch_shape: tuple[int, ...], trailing: int) -> Tensor:
    """`tensor`, which broadcasts to `[*B, …trailing]`, with B as one flat axis: `[B or 1, …trailing]`."""
    if tensor.ndim < trailing:
        tensor = tensor.reshape((1,) * (trailing - tensor.ndim) + tuple(tensor.shape))
    lead, rest = tuple(tensor.shape[: tensor.ndim - trailing]), tuple(tensor.shape[tensor.ndim - trailing :])
    if all(size == 1 for size in lead):
        return tensor.reshape(1, *rest)
    if len(lead) == 1 and len(batch_shape) == 1:
        return tensor
    return tensor.expand(*batch_shape, *rest).reshape(math.prod(batch_shape), *rest)


def as_four_axes(tensor: Tensor, batch_shape: tuple[int, ...]) -> Tensor:
    """`tensor`, which broadcasts to `[*B, H, Nq, Nk]`, as `[B or 1, H or 1, Nq or 1, Nk or 1]`."""
    return as_axes(tensor, batch_shape, 3)
