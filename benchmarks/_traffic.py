"""What ranks send, counted: the calls of torch.distributed that send are replaced by ones that count first."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch.distributed as dist
from torch import Tensor


@dataclass
class Traffic:
    """Bytes that this rank has sent to others: as data, and to agree on a call."""

    data: int = 0
    control: int = 0


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


@contextmanager
def counted(rank: int, world: int) -> Iterator[Traffic]:
    """Count what is sent inside the block."""
    traffic = Traffic()
    batched, exchanged, gathered = dist.batch_isend_irecv, dist.all_to_all_single, dist.all_gather

    def batch_isend_irecv(ops: list[Any]) -> Any:
        traffic.data += sum(_bytes(op.tensor) for op in ops if op.op is dist.isend)
        return batched(ops)

    def all_to_all_single(output: Tensor, given: Tensor, outs: Any, ins: list[int], **options: Any) -> Any:
        row = _bytes(given) // max(1, given.shape[0])
        traffic.data += _bytes(given) - ins[rank] * row  # what stays is not sent
        return exchanged(output, given, outs, ins, **options)

    def all_gather(outputs: list[Tensor], given: Tensor, **options: Any) -> Any:
        traffic.control += _bytes(given) * (world - 1)
        return gathered(outputs, given, **options)

    dist.batch_isend_irecv, dist.all_to_all_single, dist.all_gather = batch_isend_irecv, all_to_all_single, all_gather
    try:
        yield traffic
    finally:
        dist.batch_isend_irecv, dist.all_to_all_single, dist.all_gather = batched, exchanged, gathered
