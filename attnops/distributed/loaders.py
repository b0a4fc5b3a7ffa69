"""Mini-batches of one graph under data parallelism: each rank samples around its own share of the seeds."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

SAMPLER = (
    "torch-geometric samples neighbours with one of two packages, and has neither: pyg-lib (pip install pyg-lib "
    "-f https://data.pyg.org/whl/torch-{version}.html) or torch-sparse, compiled here (pip install setuptools, then "
    "pip install --no-build-isolation torch-sparse)"
)


def seeds_of_rank(seeds: Tensor, *, group: dist.ProcessGroup | None = None, seed: int = 0) -> Tensor:
    """A rank's share of nodes, or of edges, to sample around.

    Shuffled alike on all ranks, then dealt out; where they do not divide, the first ones are dealt twice, so that all
    ranks take as many steps: DistributedDataParallel waits for every rank at each.

    Args:
        seeds: `[S]` numbers, the same on all ranks. seed: of the shuffle; another one each epoch deals anew.

    Raises:
        ValueError: seeds that are not `[S]`, a seed that is no integer.

    Example:
        >>> import torch
        >>> from attnops.distributed import seeds_of_rank
        >>> seeds_of_rank(torch.tensor([4, 5, 6])).sort().values                # one process: all of them
        tensor([4, 5, 6])
    """
    if not isinstance(seeds, Tensor) or seeds.ndim != 1:
        shape = list(seeds.shape) if isinstance(seeds, Tensor) else type(seeds).__name__
        raise ValueError(f"seeds is {shape}; it must be a tensor [S]")
    if type(seed) is not int or not -(2**63) <= seed < 2**63:
        raise ValueError(f"seed is {seed!r}; it must be an integer of 64 bits")
    rank, ranks = (dist.get_rank(group), dist.get_world_size(group)) if dist.is_initialized() else (0, 1)
    order = torch.randperm(len(seeds), generator=torch.Generator().manual_seed(seed)).to(seeds.device)
    if len(seeds):
        order = order[torch.arange(-(-len(seeds) // ranks) * ranks, device=seeds.device) % len(seeds)]
    return seeds[order[rank::ranks]]


def neighbor_loader(
    data: Any,
    num_neighbors: Any,
    input_nodes: Tensor | tuple[str, Tensor],
    *,
    group: dist.ProcessGroup | None = None,
    seed: int = 0,
    **options: Any,
) -> Any:
    """Torch-geometric's `NeighborLoader` over a rank's share of the input nodes, for training under DDP.

    Args:
        data: `Data` or `HeteroData`, the whole graph on every rank.
        num_neighbors: as of `NeighborLoader`.
        input_nodes: numbers of nodes or a mask `[N]`; with the node type, for `HeteroData`.
        seed: as of `seeds_of_rank`.
        **options: of `NeighborLoader`: `batch_size`, `shuffle`, `num_workers` and so on.

    Raises:
        ImportError: torch-geometric's sampler is missing; says what to install.
        TypeError, ValueError: input nodes that are none, a mask of another length, a number out of range.
    """
    loader = _loader()
    kind, nodes = input_nodes if isinstance(input_nodes, tuple) and len(input_nodes) == 2 else (None, input_nodes)
    _check_nodes(data, kind, nodes)
    nodes = nodes.nonzero().flatten() if nodes.dtype == torch.bool else nodes
    share = seeds_of_rank(nodes, group=group, seed=seed)
    return loader(data, num_neighbors, input_nodes=share if kind is None else (kind, share), **options)


def _check_nodes(data: Any, kind: object, nodes: object) -> None:
    """The sampler reads what it is told to, wherever that is."""
    if not isinstance(nodes, Tensor) or nodes.ndim != 1 or nodes.dtype not in (torch.bool, torch.int32, torch.int64):
        given = f"{list(nodes.shape)} in {nodes.dtype}" if isinstance(nodes, Tensor) else type(nodes).__name__
        raise TypeError(f"input_nodes is {given}; it must be a tensor of node numbers [S] or a mask [N], or (type, it)")
    count = (data if kind is None else data[kind]).num_nodes
    if nodes.dtype == torch.bool and len(nodes) != count:
        raise ValueError(f"input_nodes is a mask of {len(nodes)} nodes; the graph has {count}")
    if nodes.dtype != torch.bool and nodes.numel() and not 0 <= int(nodes.min()) <= int(nodes.max()) < count:
        low, high = int(nodes.min()), int(nodes.max())
        raise ValueError(f"input_nodes holds the nodes {low} to {high}; they must be from 0 to {count - 1}")


def _loader() -> Any:
    """`NeighborLoader`, where it can sample."""
    try:
        from torch_geometric import typing
        from torch_geometric.loader import NeighborLoader
    except ImportError:
        raise ImportError("neighbor_loader needs torch-geometric: pip install 'attnops[graph]'") from None
    if not (typing.WITH_PYG_LIB or typing.WITH_TORCH_SPARSE):
        raise ImportError("neighbor_loader: " + SAMPLER.format(version=torch.__version__))
    return NeighborLoader
