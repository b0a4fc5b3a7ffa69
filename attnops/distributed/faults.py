"""What a rank says when another one is gone."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from attnops.distributed.agreement import DisagreementError


class LostRankError(RuntimeError):
    """A collective did not come about: another rank ended, or did not join within the timeout of the group."""


@contextmanager
def lost_ranks(call: str) -> Iterator[None]:
    """Around a collective: torch's error, which names a socket, as a `LostRankError` that says what it means."""
    try:
        yield
    except (DisagreementError, torch.OutOfMemoryError):
        raise
    except RuntimeError as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise LostRankError(
            f"{call}: another rank ended, or did not join within the timeout of the process group (timeout= of "
            f"init_process_group); start all ranks again from the last checkpoint. torch says: {reason}"
        ) from error
