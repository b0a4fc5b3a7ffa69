"""Attention beyond one process, on torch.distributed: sequences and graphs divided over ranks, joined exactly."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from attnops.distributed.agreement import DisagreementError as DisagreementError
from attnops.distributed.agreement import agree as agree
from attnops.distributed.context import context_attend as context_attend
from attnops.distributed.exchange import halo_exchange as halo_exchange
from attnops.distributed.faults import LostRankError as LostRankError
from attnops.distributed.graph_attention import graph_attend as graph_attend
from attnops.distributed.halo import Halo as Halo
from attnops.distributed.halo import HaloPlan as HaloPlan
from attnops.distributed.halo import plan_halo as plan_halo
from attnops.distributed.hetero import HeteroHaloPlan as HeteroHaloPlan
from attnops.distributed.hetero import hetero_attend as hetero_attend
from attnops.distributed.hetero import partition_types as partition_types
from attnops.distributed.hetero import plan_hetero_halo as plan_hetero_halo
from attnops.distributed.layout import shard_coords as shard_coords
from attnops.distributed.layout import shard_sequence as shard_sequence
from attnops.distributed.layout import unshard_sequence as unshard_sequence
from attnops.distributed.loaders import neighbor_loader as neighbor_loader
from attnops.distributed.loaders import seeds_of_rank as seeds_of_rank
from attnops.distributed.models import shard_inputs as shard_inputs
from attnops.distributed.partitions import Partition as Partition
from attnops.distributed.partitions import partition as partition
from attnops.distributed.start import init_processes as init_processes

if TYPE_CHECKING:
    from attnops.distributed.tensor_parallel import tensor_parallel_plan as tensor_parallel_plan
    from attnops.distributed.tensor_parallel import whole_state_dict as whole_state_dict

# Imported when first asked for: DTensor, which they need, loads sympy, and takes a second.
_LATE = {"tensor_parallel_plan": "tensor_parallel", "whole_state_dict": "tensor_parallel"}


def __getattr__(name: str) -> Any:
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_LATE[name]}"), name)


def __dir__() -> list[str]:
    return sorted([*globals(), *_LATE])
