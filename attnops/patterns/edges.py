"""Edge lists: the pattern of a graph, with data on its edges."""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from attnops import convert
from attnops.checks import require_number
from attnops.coords import Coords, is_concrete
from attnops.pairs import Pairs
from attnops.patterns.base import Pattern, Ranges, unite_ranges
from attnops.patterns.sorting import Sorted, sort_edges


@torch.library.custom_op("attnops::edge_table", mutates_args=())
def edge_table(row: Tensor, column: Tensor, names: Tensor, num_rows: int, num_columns: int) -> Tensor:
    """`names` at (row, column), -1 elsewhere; one operation, since inductor's FlexAttention reads a table too early."""
    table = torch.full((num_rows, num_columns), -1, dtype=torch.long, device=row.device)
    table[row, column] = names
    return table


@edge_table.register_fake
def _(row: Tensor, column: Tensor, names: Tensor, num_rows: int, num_columns: int) -> Tensor:
    return row.new_empty((num_rows, num_columns), dtype=torch.long)


def _filled(name: str, fill: object, num_edges: int, like: Tensor) -> Tensor:
    """The fill of a datum for `num_edges` edges, as `like`."""
    if not isinstance(fill, int | float | Tensor):
        raise TypeError(f"fill {name} is {fill!r}; it must be a number or a tensor")
    value = torch.as_tensor(fill, device=like.device)
    an_edge = tuple(like.shape[1:])
    if tuple(value.shape) not in ((), (1,), an_edge, (1, *an_edge), (num_edges, *an_edge)):
        raise ValueError(f"fill {name} has shape {list(value.shape)}; it must be a number, {list(an_edge)} or one each")
    exact = value.to(like.dtype)
    if not like.is_floating_point() and is_concrete(value) and not torch.equal(exact.to(value.dtype), value):
        raise ValueError(f"fill {name} is {fill}; the data are {like.dtype}, which cannot hold it")
    return exact.expand(num_edges, *an_edge)


class _Forms:
    """What was made of an edge list, shared by all that carry other data on the same edges."""

    sorted: Sorted | None = None
    unique: bool | None = None


class Edges(Pattern):
    """The pairs of an edge list, each edge a pair of its own: a multigraph keeps its duplicates.

    `edge_index[0]` is the source (the key), `edge_index[1]` the target (the query), as in PyG. Sizes are declared,
    never read off the largest index, and no self-loop is added unasked. `edge_index` is copied; its sorted forms are
    kept once computed.

    Args:
        edge_index: int32 or int64 `[2, E]`.
        num_queries, num_keys: how many targets and sources there are.
        **data: tensors `[E]` or `[E, F]` that edges carry: `attr`, `type`, `prior`, `distance`, or any name.

    Raises:
        TypeError: indices that are not int32 or int64; data that are not tensors.
        ValueError: an index out of range or negative; data whose first axis is not E.

    Example:
        >>> import torch, attnops
        >>> graph = attnops.Edges(torch.tensor([[1, 2, 0], [0, 0, 2]]), num_queries=4, num_keys=4)
        >>> x = torch.ones(1, 4, 2)                                    # [H, N, D]
        >>> attnops.attend(x, x, x, pattern=graph)[0, :, 0]            # nodes 1 and 3 hear nobody
        tensor([1., 0., 1., 0.])
    """

    def __init__(self, edge_index: Tensor, num_queries: int, num_keys: int, **data: Tensor) -> None:
        if not isinstance(edge_index, Tensor) or edge_index.dtype not in (torch.int32, torch.int64):
            kind = edge_index.dtype if isinstance(edge_index, Tensor) else type(edge_index).__name__
            raise TypeError(f"edge_index is {kind}; it must be an int32 or int64 tensor [2, E]")
        if edge_index.ndim != 2 or edge_index.shape[0] != 2:
            raise ValueError(f"edge_index has shape {list(edge_index.shape)}; it must be [2, E]")
        if edge_index.layout != torch.strided:
            raise TypeError(
                f"edge_index is {edge_index.layout}; it must be strided (Edges.from_torch_sparse reads matrices)"
            )
        for name, size in (("num_queries", num_queries), ("num_keys", num_keys)):
            require_number(**{name: size})
            if isinstance(size, float | torch.SymFloat) or size < 0:
                raise ValueError(f"{name} is {size}; it must be an integer of 0 or more")
        self.num_queries, self.num_keys = num_queries, num_keys
        self.num_edges = edge_index.shape[1]
        self._bounds: dict[str, tuple[float, float]] = {}
        self._forms = _Forms()
        if is_concrete(edge_index):
            with torch.inference_mode(False):  # an edge list first used in inference serves training too
                self.edge_index = edge_index.clone(memory_format=torch.contiguous_format)
            self._check_ends()
        else:  # values cannot be checked: keep every end inside, so that none is read outside
            last = torch.tensor([[num_keys - 1], [num_queries - 1]], dtype=edge_index.dtype, device=edge_index.device)
            self.edge_index = torch.minimum(edge_index.clamp(min=0), last.clamp(min=0))
        self.data: dict[str, Tensor] = {}
        self._take(data)

    def _take(self, data: dict[str, Tensor]) -> None:
        for name, tensor in data.items():
            self._check_data(name, tensor)
            self.data[name] = tensor

    def _check_ends(self) -> None:
        if self.num_edges == 0:
            return
        for row, name, size in ((0, "source (key)", self.num_keys), (1, "target (query)", self.num_queries)):
            low, high = (int(value) for value in torch.aminmax(self.edge_index[row]))
            if low < 0 or high >= size:
                wrong = low if low < 0 else high
                raise ValueError(f"edge_index[{row}] holds the {name} {wrong}; it must be from 0 to {size - 1}")

    def _check_data(self, name: str, tensor: Tensor) -> None:
        if not isinstance(tensor, Tensor):
            raise TypeError(f"edge data {name} is a {type(tensor).__name__}; it must be a tensor [E] or [E, F]")
        if tensor.dtype.is_complex or tensor.layout != torch.strided:
            raise TypeError(
                f"edge data {name} is {tensor.dtype}, {tensor.layout}; it must be integer, boolean or real, strided"
            )
        if tensor.ndim == 0 or tensor.shape[0] != self.num_edges:
            raise ValueError(
                f"edge data {name} has shape {list(tensor.shape)}; its first axis must be E = {self.num_edges}"
            )
        if tensor.device != self.edge_index.device:
            raise ValueError(
                f"edge data {name} lies on {tensor.device}; it must lie on {self.edge_index.device}, as edge_index"
            )
        if is_concrete(tensor) and tensor.numel() and tensor.dtype != torch.bool:
            low, high = torch.aminmax(tensor.detach())
            self._bounds[name] = (float(low), float(high)) if tensor.is_floating_point() else (int(low), int(high))

    def finite(self, name: str) -> bool:
        """Whether an edge datum is known to hold no NaN and no infinity (an integer never does)."""
        if not self.data[name].is_floating_point() or self.num_edges == 0:
            return True
        return name in self._bounds and all(math.isfinite(bound) for bound in self._bounds[name])

    def bounds(self, name: str) -> tuple[float, float] | None:
        """The least and largest value of an edge datum (both NaN where it holds one), or None where it was not read."""
        return self._bounds.get(name)

    # ------------------------------------------------------------------------------------------------ as a pattern
    @property
    def source(self) -> Tensor:
        """`[E]`, the key of each edge."""
        return self.edge_index[0]

    @property
    def target(self) -> Tensor:
        """`[E]`, the query of each edge."""
        return self.edge_index[1]

    @property
    def edges(self) -> Edges:
        return self

    @property
    def filter(self) -> None:
        return None

    def sorted(self) -> Sorted:
        """The edges in the order of their targets; kept once computed, where indices can be read."""
        if self._forms.sorted is not None:
            return self._forms.sorted
        if not is_concrete(self.edge_index):
            return sort_edges(self.source, self.target, self.num_queries, self.num_keys)
        with torch.inference_mode(False):
            self._forms.sorted = sort_edges(self.source, self.target, self.num_queries, self.num_keys)
        return self._forms.sorted

    @property
    def unique(self) -> bool | None:
        """Whether no pair is listed twice; None where indices cannot be read."""
        if self._forms.unique is None and is_concrete(self.edge_index):
            codes = self._codes()
            self._forms.unique = bool((codes[1:] != codes[:-1]).all())
        return self._forms.unique

    def _codes(self) -> Tensor:
        """Each pair as one number, ascending."""
        return torch.sort(self.target.long() * max(1, self.num_keys) + self.source.long()).values

    def allows(self, pairs: Pairs) -> Tensor:
        if len(pairs.shape) == 4 and not pairs.keys_are_edges:
            return (self.ids(pairs.queries, pairs.keys) >= 0).view(1, 1, *pairs.shape[2:])
        wanted = pairs.query.index.long() * max(1, self.num_keys) + pairs.key.index.long()
        if self.num_edges == 0:
            return torch.zeros_like(wanted, dtype=torch.bool)
        codes = self._codes()
        place = torch.searchsorted(codes, wanted).clamp(max=self.num_edges - 1)
        return codes[place] == wanted

    def ids(self, queries: slice | Tensor, keys: slice | Tensor) -> Tensor:
        """The id of the edge that joins each pair of a block, `[Nq', Nk']`, -1 where there is none."""
        whole = isinstance(queries, slice) and queries.start == 0 and queries.stop == self.num_queries
        first, target, source = 0, self.target, self.source
        names = torch.arange(self.num_edges, device=self.edge_index.device)
        rows = self.num_queries
        if not whole and isinstance(queries, slice) and is_concrete(self.edge_index):
            csr = self.sorted()
            begin, end = int(csr.pointer[queries.start]), int(csr.pointer[queries.stop])
            names, target, source = csr.order[begin:end], csr.target[begin:end], csr.source[begin:end]
            first, rows, whole = queries.start, queries.stop - queries.start, True
        ids: Tensor = edge_table(target.long() - first, source.long(), names, rows, self.num_keys)
        return (ids if whole else ids[queries])[:, keys]

    def key_ranges(self, coords: tuple[Coords, Coords], queries: slice, num_keys: int) -> Ranges:
        if not is_concrete(self.edge_index):
            return [(0, num_keys)]
        csr = self.sorted()
        reached = csr.source[int(csr.pointer[queries.start]) : int(csr.pointer[queries.stop])]
        blocks = torch.unique(reached // 128).tolist()
        return unite_ranges([], [(block * 128, min(num_keys, block * 128 + 128)) for block in blocks])

    def most_pairs(self, num_queries: int, num_keys: int, aligned: bool) -> int:
        return self.num_edges

    def check(
        self, batch_shape: tuple[int, ...], heads: int, num_queries: int, num_keys: int, device: torch.device
    ) -> None:
        if (self.num_queries, self.num_keys) != (num_queries, num_keys):
            raise ValueError(
                f"Edges joins {self.num_queries} queries and {self.num_keys} keys; query and key have {num_queries} "
                f"and {num_keys}"
            )
        if self.edge_index.device != device:
            raise ValueError(
                f"Edges lies on {self.edge_index.device}; it must lie on {device}, as query, key and value do"
            )

    # ------------------------------------------------------------------------------------------------ new edge lists
    def with_data(self, **data: Tensor) -> Edges:
        """The same edges with these data, beside those of other names; the edges are neither checked nor sorted again.

        For edges that stay while what they carry changes, as in training: sorted forms are shared, whichever of the two
        lists is attended over first.

        Args:
            **data: tensors `[E]` or `[E, F]`, as in the constructor.

        Raises:
            TypeError, ValueError: data that are not tensors of one row an edge, on the device of the edges.

        Example:
            >>> import torch, attnops
            >>> graph = attnops.Edges(torch.tensor([[1, 2], [0, 0]]), 3, 3, type=torch.tensor([0, 1]))
            >>> graph.with_data(prior=torch.tensor([0.9, 0.1]))
            Edges(2 edges, 3 queries, 3 keys, type=[2], prior=[2])
        """
        fresh = copy.copy(self)
        fresh.data = dict(self.data)
        fresh._bounds = {name: known for name, known in self._bounds.items() if name not in data}
        fresh._take(data)
        return fresh

    def to(self, device: torch.device | str) -> Edges:
        """The same edges on another device."""
        return self._with(self.edge_index.to(device), {name: tensor.to(device) for name, tensor in self.data.items()})

    def _with(self, edge_index: Tensor, data: dict[str, Tensor]) -> Edges:
        return Edges(edge_index, self.num_queries, self.num_keys, **data)

    def reverse(self) -> Edges:
        """Every edge turned round: queries become keys. Data stay with their edges."""
        return Edges(self.edge_index.flip(0), self.num_keys, self.num_queries, **self.data)

    def with_self_loops(self, **fill: float | Tensor) -> Edges:
        """These edges and, appended, the self-loops that are missing; `fill` gives their data, by name.

        Raises:
            ValueError: queries and keys are not the same nodes; data without a fill, a fill without data.
        """
        if self.num_queries != self.num_keys:
            raise ValueError(
                f"self-loops need one set of nodes; these edges join {self.num_keys} sources and "
                f"{self.num_queries} targets"
            )
        looped = torch.zeros(self.num_queries, dtype=torch.bool, device=self.edge_index.device)
        looped[self.target[self.source == self.target].long()] = True
        missing = (~looped).nonzero().flatten().to(self.edge_index.dtype)
        loops = Edges(missing.expand(2, -1), self.num_queries, self.num_keys)
        for name in fill:
            if name not in self.data:
                raise ValueError(f"fill {name} was given, but the edges carry no data of that name")
        return Edges.cat([self, loops], **fill)

    @staticmethod
    def cat(lists: Sequence[Edges], **fill: float | Tensor) -> Edges:
        """Edge lists over the same nodes, one after the other; order, duplicates and data are kept.

        Args:
            lists: at least one `Edges`.
            **fill: the value of a datum for the lists that do not carry it.

        Raises:
            ValueError: no list; sizes that differ; a datum that some list lacks and no fill gives.
        """
        if not isinstance(lists, Sequence) or not all(isinstance(each, Edges) for each in lists):
            raise TypeError("lists must be a sequence of Edges")
        if not lists:
            raise ValueError("lists is empty; Edges.cat needs at least one Edges")
        first = lists[0]
        for other in lists[1:]:
            if (other.num_queries, other.num_keys) != (first.num_queries, first.num_keys):
                raise ValueError(
                    f"Edges.cat joins lists over the same nodes; one has {first.num_queries} queries and "
                    f"{first.num_keys} keys, another {other.num_queries} and {other.num_keys}"
                )
        names = list(dict.fromkeys(name for each in lists for name in each.data))
        data = {}
        for name in names:
            like = next(each.data[name] for each in lists if name in each.data)
            parts = []
            for each in lists:
                if name in each.data:
                    parts.append(each.data[name])
                elif name in fill:
                    parts.append(_filled(name, fill[name], each.num_edges, like))
                elif each.num_edges:
                    raise ValueError(f"edge data {name} has no value for some edges; give one as {name}=…")
            data[name] = torch.cat(parts)
        return first._with(torch.cat([each.edge_index for each in lists], dim=1), data)

    # ------------------------------------------------------------------------------------------------ conversions
    @classmethod
    def from_networkx(cls, graph: Any, /, **attributes: str) -> Edges:
        """The edges of a networkx graph, with data read from edge attributes; see `attnops.convert.networkx_edges`.

        Example:
            >>> import attnops, networkx
            >>> graph = networkx.Graph()
            >>> graph.add_edge("a", "b", weight=0.5)
            >>> edges = attnops.Edges.from_networkx(graph, prior="weight")      # datum=attribute
            >>> edges.edge_index.tolist(), edges.data["prior"].tolist()
            ([[0, 1], [1, 0]], [0.5, 0.5])
        """
        edge_index, num_queries, num_keys, data = convert.networkx_edges(graph, attributes)
        return cls(edge_index, num_queries, num_keys, **data)

    @classmethod
    def from_scipy(cls, matrix: Any, name: str = "attr") -> Edges:
        """The stored entries of a scipy sparse matrix, row to column; see `attnops.convert.scipy_edges`."""
        edge_index, num_queries, num_keys, data = convert.scipy_edges(matrix, name)
        return cls(edge_index, num_queries, num_keys, **data)

    @classmethod
    def from_torch_sparse(cls, matrix: Tensor, name: str = "attr") -> Edges:
        """The stored entries of a torch sparse matrix, row to column; see `attnops.convert.torch_sparse_edges`."""
        edge_index, num_queries, num_keys, data = convert.torch_sparse_edges(matrix, name)
        return cls(edge_index, num_queries, num_keys, **data)

    @classmethod
    def from_pyg(cls, data: Any, relation: tuple[str, str, str] | None = None) -> Edges:
        """The edges of PyG `Data`, or of one relation of `HeteroData`; see `attnops.convert.pyg_edges`."""
        edge_index, num_queries, num_keys, edge_data = convert.pyg_edges(data, relation)
        return cls(edge_index, num_queries, num_keys, **edge_data)

    def to_networkx(
        self, weights: Tensor | None = None, nodes: Sequence[Any] | None = None, attention: str = "attention"
    ) -> Any:
        """A networkx `MultiDiGraph` (bipartite where queries and keys differ), with attention weights where given.

        See `attnops.convert.to_networkx`.

        Example:
            >>> import attnops, networkx, torch
            >>> graph = networkx.DiGraph([("a", "c"), ("b", "c")])
            >>> edges = attnops.Edges.from_networkx(graph)
            >>> x = torch.zeros(2, 3, 4)                                              # [H, N, D]
            >>> weights = attnops.attend(x, x, x, pattern=edges, return_weights=True).weights
            >>> edges.to_networkx(weights, nodes=list(graph)).edges["a", "c", 0]
            {'attention': [0.5, 0.5]}
        """
        return convert.to_networkx(
            self.edge_index, self.num_queries, self.num_keys, self.data, weights, nodes, attention
        )

    def __repr__(self) -> str:
        data = "".join(f", {name}={list(tensor.shape)}" for name, tensor in self.data.items())
        return f"Edges({self.num_edges} edges, {self.num_queries} queries, {self.num_keys} keys{data})"
