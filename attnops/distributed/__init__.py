"""Attention beyond one process, on torch.distributed: sequences and graphs divided over ranks, joined exactly."""

from __future__ import annotations

from attnops.distributed.agreement import DisagreementError as DisagreementError
from attnops.distributed.agreement import agree as agree
