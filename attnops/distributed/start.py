"""Joining the processes that torchrun started, also when it starts them again."""

from __future__ import annotations

import datetime
import os

import torch
import torch.distributed as dist
from torch.distributed import HashStore, PrefixStore, Store, rendezvous  # type: ignore[attr-defined]

from attnops.checks import require_number


def init_processes(timeout: float = 60) -> torch.device:
    """`init_process_group` for what torchrun started, or for this process alone; the device that is this rank's.

    NCCL where there are GPUs (with gloo for tensors on the CPU), else gloo. Processes that torchrun starts again after
    a failure (--max-restarts) meet under a name of their own: in torch 2.13 they find torchrun's store as the lost
    ones left it, with addresses that nobody listens at.

    Args:
        timeout: seconds that a rank waits for another in one exchange before it raises.

    Raises:
        ValueError: a timeout that is not positive; a process that has joined a group already.

    Example:
        >>> import torch.distributed as dist
        >>> from attnops.distributed import init_processes
        >>> device = init_processes(timeout=20)                                     # without torchrun: one process
        >>> dist.get_world_size()
        1
        >>> dist.destroy_process_group()
    """
    require_number(timeout=timeout)
    if timeout <= 0:
        raise ValueError(f"timeout is {timeout}; it must be more than 0 seconds")
    if dist.is_initialized():
        raise ValueError("this process has joined a group already; init_processes is called once")
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.cuda.set_device(device)
    store: Store
    if "RANK" in os.environ:
        store, rank, world = next(rendezvous("env://"))
        store = PrefixStore(f"start-{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)
    else:
        store, rank, world = HashStore(), 0, 1
    dist.init_process_group(
        "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=rank,
        world_size=world,
        timeout=datetime.timedelta(seconds=timeout),
    )
    return device
