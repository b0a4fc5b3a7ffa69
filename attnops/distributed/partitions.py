"""Which rank holds which nodes."""

from __future__ import annotations

import ctypes
import hashlib
from array import array
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import torch
from torch import Tensor

from attnops.checks import require_flag, require_positive
from attnops.patterns import Edges

INSTALL_METIS = "pip install 'attnops[distributed]' (pymetis), or method='range', or a Partition of your own"


@dataclass(frozen=True, eq=False)
class Partition:
    """The part of every query and of every key of a graph, numbered 0 … num_parts-1; a part may be empty.

    Within a part nodes keep their order. `partition` makes one; one of your own, from any other tool or from where your
    data lie, serves as well.

    Attributes:
        query_part: int64 `[Nq]`. key_part: int64 `[Nk]`; the same where queries and keys are one set of nodes.
        num_parts: how many there are, which is the number of ranks.

    Raises:
        TypeError, ValueError: parts that are not int64 on the CPU, not 1-d, or out of range.

    Example:
        >>> import torch
        >>> from attnops.distributed import Partition
        >>> owner = torch.tensor([1, 0, 1, 1])
        >>> Partition(owner, owner, num_parts=3).keys_of(1)
        tensor([0, 2, 3])
    """

    query_part: Tensor
    key_part: Tensor
    num_parts: int

    def __post_init__(self) -> None:
        require_positive(num_parts=self.num_parts)
        for name, part in (("query_part", self.query_part), ("key_part", self.key_part)):
            if not isinstance(part, Tensor) or part.dtype != torch.int64 or part.device.type != "cpu":
                kind = f"{part.dtype} on {part.device}" if isinstance(part, Tensor) else type(part).__name__
                raise TypeError(f"{name} is {kind}; it must be int64 on the CPU")
            if part.ndim != 1:
                raise ValueError(f"{name} has shape {list(part.shape)}; it must be [N]")
            if part.numel() and not 0 <= int(part.min()) <= int(part.max()) < self.num_parts:
                low, high = int(part.min()), int(part.max())
                raise ValueError(f"{name} holds parts {low} to {high}; they must be from 0 to {self.num_parts - 1}")

    def queries_of(self, part: int) -> Tensor:
        """The queries of a part, ascending."""
        return (self.query_part == part).nonzero().flatten()

    def keys_of(self, part: int) -> Tensor:
        """The keys of a part, ascending."""
        return (self.key_part == part).nonzero().flatten()

    @cached_property
    def fingerprint(self) -> str:
        """What ranks compare, to know that they divide nodes alike."""
        return f"{self.num_parts} parts {digest(self.query_part, self.key_part)}"


def partition(
    edges: Edges,
    parts: int,
    method: Literal["metis", "range"] = "metis",
    *,
    bipartite: bool | None = None,
    seed: int = 0,
) -> Partition:
    """Divide the nodes of a graph into parts, so that few keys are needed outside of their own part.

    "metis" minimises the number of (key, other part that needs it) pairs, which is what a halo exchange sends, while
    no part gets much more than its share of edges to attend over (METIS, k-way, total communication volume; a query
    weighs 1, and 1 more for each edge that enters it). "range" cuts the nodes, in their order, into pieces of equal
    length: right where the order already says who belongs together.

    Args:
        edges: the whole graph; duplicates and directions are of no matter, and an edge crosses a cut or does not.
        parts: how many; some may come out empty where there are few nodes.
        bipartite: whether queries and keys are two sets of nodes, each divided; None for "where their numbers differ".
        seed: of METIS; the same seed gives the same parts.

    Raises:
        ImportError: "metis" without pymetis, saying what to install.
        ValueError: another method; parts that are not positive; one set of nodes of two sizes.

    Source: Karypis and Kumar 1998, "A fast and high quality multilevel scheme for partitioning irregular graphs".

    Example:
        >>> import attnops, torch
        >>> from attnops.distributed import partition
        >>> ring = attnops.Edges(torch.stack([torch.arange(8), torch.arange(8).roll(-1)]), 8, 8)
        >>> partition(ring, 3, method="range").query_part
        tensor([0, 0, 0, 1, 1, 1, 2, 2])
    """
    require_positive(parts=parts)
    require_seed(seed)
    if not isinstance(edges, Edges):
        raise TypeError(f"edges is {type(edges).__name__}; it must be an Edges")
    if bipartite is not None:
        require_flag(bipartite=bipartite)
    if bipartite is None:
        bipartite = edges.num_queries != edges.num_keys
    if not bipartite and edges.num_queries != edges.num_keys:
        sizes = f"{edges.num_queries} queries and {edges.num_keys} keys"
        raise ValueError(f"bipartite is False, but the edges join {sizes}; one set of nodes has one size")
    # One vertex a node: queries first, and behind them the keys where those are nodes of their own.
    source, target = edges.source.long().cpu(), edges.target.long().cpu()
    if not bipartite:
        part = divide(source, target, edges.num_queries, parts, method, seed)
        return Partition(part, part, parts)
    if method == "range":
        return Partition(_ranges(edges.num_queries, parts), _ranges(edges.num_keys, parts), parts)
    part = divide(source + edges.num_queries, target, edges.num_queries + edges.num_keys, parts, method, seed)
    return Partition(part[: edges.num_queries].clone(), part[edges.num_queries :].clone(), parts)


def divide(source: Tensor, target: Tensor, count: int, parts: int, method: str, seed: int) -> Tensor:
    """`[count]`: the part of each node of one graph."""
    if method not in ("metis", "range"):
        raise ValueError(f"method is {method!r}; it must be 'metis' or 'range'")
    if method == "range":
        return _ranges(count, parts)
    return _metis(source, target, torch.bincount(target, minlength=count) + 1, parts, seed)


def require_seed(seed: object) -> None:
    """METIS takes 31 bits."""
    if type(seed) is not int or not 0 <= seed < 2**31:
        raise ValueError(f"seed is {seed!r}; it must be an integer from 0 to 2^31 - 1")


def _ranges(count: int, parts: int) -> Tensor:
    return torch.arange(count) * parts // max(1, count)


def _metis(source: Tensor, target: Tensor, weights: Tensor, parts: int, seed: int) -> Tensor:
    """`[N]`: the part of each vertex; weights `[N]` are shared out evenly."""
    count = len(weights)
    if parts == 1 or count == 0:
        return torch.zeros(count, dtype=torch.int64)
    if count <= parts:  # fewer vertices than METIS can share out
        return torch.arange(count)
    pymetis: Any = _pymetis()
    joining = source != target
    ends = torch.cat([source[joining] * count + target[joining], target[joining] * count + source[joining]])
    pairs = torch.unique(ends)  # METIS takes simple, undirected graphs
    widest = torch.iinfo(torch.int32).max
    if len(pairs) > widest or int(weights.sum()) > widest:
        raise ValueError(f"edges join {len(pairs)} pairs of nodes both ways; pymetis counts them in 32 bits")
    pointer = torch.searchsorted(pairs, torch.arange(count + 1) * count)
    neighbour = pairs % count
    graph = pymetis.CSRAdjacency(_int32(pointer), _int32(neighbour))
    options = pymetis.Options(objtype=pymetis.ObjType.VOL, seed=seed)
    _, part = pymetis.part_graph(parts, graph, vweights=_int32(weights), recursive=False, options=options)
    return torch.tensor(part, dtype=torch.int64)


def _pymetis() -> Any:
    try:
        import pymetis
    except ImportError:
        raise ImportError(f"partition(method='metis') needs METIS: {INSTALL_METIS}") from None
    return pymetis


def _int32(values: Tensor) -> array[int]:
    """Integers in a buffer that C reads, without numpy."""
    return array("i", values.tolist())


def digest(*tensors: Tensor) -> str:
    """A short name of the numbers in some tensors."""
    hashed = hashlib.blake2b(digest_size=8)
    for tensor in tensors:
        flat = tensor.detach().cpu().contiguous()
        hashed.update(f"{flat.dtype} {list(flat.shape)}".encode())
        hashed.update((ctypes.c_char * flat.nbytes).from_address(flat.data_ptr()) if flat.numel() else b"")
    return hashed.hexdigest()
