"""Ranks compare what they are about to do before they do it: a disagreement is an error on each of them, not a hang."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

FIELDS, NUMBERS = 24, 8  # the sizes of what is exchanged, the same in every call
_WIDTH = 3 + 2 * FIELDS + NUMBERS


class DisagreementError(RuntimeError):
    """Ranks of one group called with different arguments, or one of them refused its own; raised on every rank."""


def agree(
    call: str,
    same: Mapping[str, object],
    group: dist.ProcessGroup | None = None,
    *,
    numbers: Sequence[int] = (),
    refusal: Exception | None = None,
    device: torch.device | str = "cpu",
) -> list[tuple[int, ...]]:
    """Raise on every rank of `group` unless all are about to make the same call; one all-gather of fixed size.

    Call it before the first collective of an operation. A rank whose own arguments are wrong calls it too, with the
    error as `refusal`, so that the others do not wait for it: it raises that error, they a `DisagreementError` that
    quotes it.

    Args:
        call: the operation; ranks that stand in different ones disagree.
        same: what must be equal on all ranks, by name; compared by `str`. At most 24 names of 128 bits each.
        group: None for the default group.
        numbers: at most 8 integers in which ranks may differ and that each tells the others, such as its length.
        refusal: why this rank cannot make the call.
        device: where the exchange takes place; the group's backend must take it ("cpu" for gloo, a GPU for NCCL).

    Returns:
        The `numbers` of each rank, in the order of ranks.

    Raises:
        DisagreementError: naming what differs, and what each rank gave.
        ValueError: more names or numbers than fit, which is an error of the caller's.

    Example:
        >>> from attnops.distributed.agreement import agree
        >>> agree("attend", {"heads": 8}, numbers=[100])            # one process alone agrees with itself
        [(100,)]
    """
    if len(same) > FIELDS or len(numbers) > NUMBERS:
        raise ValueError(
            f"same has {len(same)} names and numbers {len(numbers)}; at most {FIELDS} and {NUMBERS} are exchanged"
        )
    if not dist.is_initialized() or dist.get_world_size(group) == 1:
        if refusal is not None:
            raise refusal
        return [tuple(numbers)]
    from attnops.distributed.faults import lost_ranks  # which knows the error of this file

    own = _digest(call, same, numbers, refusal).to(device)
    gathered = own.new_empty(dist.get_world_size(group), _WIDTH)
    with lost_ranks(call):
        dist.all_gather(list(gathered.unbind(0)), own, group=group)
    told = gathered.cpu()
    if bool(told[:, 0].any()) or bool((told[:, 1 : 3 + 2 * FIELDS] != told[:1, 1 : 3 + 2 * FIELDS]).any()):
        _raise(call, same, refusal, group)
    return [tuple(row) for row in told[:, 3 + 2 * FIELDS : 3 + 2 * FIELDS + len(numbers)].tolist()]


def _digest(call: str, same: Mapping[str, object], numbers: Sequence[int], refusal: Exception | None) -> Tensor:
    """`[refused, two hashes of the call and its names, two hashes a field, numbers]` in int64."""
    values = [int(refusal is not None), *_hash(call + "\n" + "\n".join(same))]
    for value in same.values():
        values += _hash(str(value))
    values += [0] * (3 + 2 * FIELDS - len(values))
    values += [*numbers, *[0] * (NUMBERS - len(numbers))]
    return torch.tensor(values, dtype=torch.int64)


def _hash(text: str) -> tuple[int, int]:
    digest = hashlib.blake2b(text.encode(), digest_size=16).digest()
    return int.from_bytes(digest[:8], "little", signed=True), int.from_bytes(digest[8:], "little", signed=True)


def _raise(call: str, same: Mapping[str, object], refusal: Exception | None, group: dist.ProcessGroup | None) -> None:
    """All ranks have seen the same disagreement, so all come here, and can tell each other in words."""
    mine = call, {name: str(value) for name, value in same.items()}, None if refusal is None else str(refusal)
    everyone: list[tuple[str, dict[str, str], str | None]] = [mine] * dist.get_world_size(group)
    dist.all_gather_object(everyone, mine, group=group)
    if refusal is not None:
        raise refusal
    refused = [f"rank {rank} refused its arguments: {text}" for rank, (_, _, text) in enumerate(everyone) if text]
    if refused:
        raise DisagreementError(f"{call}: " + "; ".join(refused))
    if len({name for name, _, _ in everyone}) > 1:
        calls = ", ".join(f"rank {rank} calls {name}" for rank, (name, _, _) in enumerate(everyone))
        raise DisagreementError(f"ranks of one group make different calls: {calls}")
    differing = []
    for name in dict.fromkeys(name for _, fields, _ in everyone for name in fields):
        given = [fields.get(name, "nothing") for _, fields, _ in everyone]
        if len(set(given)) > 1:
            per_rank = ", ".join(f"{_short(value)} on rank {rank}" for rank, value in enumerate(given))
            differing.append(f"{name} is {per_rank}")
    raise DisagreementError(f"{call}: ranks disagree: " + "; ".join(differing) + "; it must be the same on all")


def _short(text: str) -> str:
    return text if len(text) <= 120 else text[:117] + "…"
