"""Sequence models over a divided sequence: what each rank feeds them, and how their attention meets the other ranks."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from attnops.coords import Coords
from attnops.distributed.agreement import agree
from attnops.distributed.context import divided_attend, require_method
from attnops.distributed.division import Division, told
from attnops.distributed.layout import Group, Layout, meeting_place, process_group, require_order
from attnops.distributed.priors import Priors
from attnops.seq.context import Context, Keys, read_context


def shard_inputs(
    model: nn.Module,
    ids: Tensor,
    attention_mask: Tensor | None = None,
    segments: Tensor | None = None,
    *,
    mesh: Group = None,
    order: str = "zigzag",
    method: str = "ring",
) -> tuple[Tensor, Context]:
    """This rank's tokens of a batch, and the context with which a model attends over all ranks' tokens.

        ids, context = shard_inputs(model, ids, mesh=mesh)
        logits = model(ids, context=context)                 # of this rank's tokens

    Every rank of the mesh passes the same whole batch; one exchange makes sure of it. The model may be an `Encoder` or
    a `Decoder`, wrapped by `fully_shard` or not. Padding, packed documents and every position scheme mean what they
    mean in one process. Whatever stands beside the ids (targets, types) is cut by `shard_sequence(…, dim=1)` in the
    same order. The loss to minimise is the mean of the ranks' losses, for `fully_shard` and DDP average gradients: of a
    mean over tokens, a rank's loss is the sum over its own tokens, times the number of ranks, over the whole count.

    A mixture of experts routes the tokens of each rank apart: its capacity and its balance losses are a rank's own.

    Args:
        model: what will read them; ranks compare its `config`.
        ids: `[B, N]`, the whole batch. attention_mask, segments: `[B, N]`, as the model takes them.
        mesh, order, method: as `context_attend` has them.

    Raises:
        DisagreementError: ranks with other ids, masks, models or settings, on every rank.
        ValueError: an order or method that is none; what `read_context` refuses.
    """
    group = process_group(mesh)
    refusal, whole, same = None, None, {}
    try:
        require_order(order)
        require_method(method)
        if not isinstance(model, nn.Module):
            raise TypeError(f"model is {type(model).__name__}; it must be a module")
        whole = read_context(ids, attention_mask, segments=segments)
        same = {
            "order": order, "method": method, "model": type(model).__name__, "config": getattr(model, "config", None),
            "ids": told(ids), "attention_mask": told(attention_mask), "segments": told(segments),
            "training": model.training, "grad mode": torch.is_grad_enabled(),
        }  # fmt: skip
    except (ValueError, TypeError) as error:
        refusal = error
    agree("shard_inputs", same, group, refusal=refusal, device=meeting_place(ids, group))
    assert whole is not None
    layout = Layout.of(ids.shape[1], group.size(), order)
    rows = [layout.rows(rank).to(ids.device) for rank in range(group.size())]
    return ids[:, rows[group.rank()]], _context(whole, ids, group, layout, rows, method)


def _context(whole: Context, ids: Tensor, group: Any, layout: Layout, rows: list[Tensor], method: str) -> Context:
    """Of this rank's tokens; the coords of all ranks' tokens are known, so nothing is exchanged for them."""
    rank = group.rank()
    data = {"position": whole.position}
    if whole.keys.coords is not None:
        data.update(whole.keys.coords.data)
    every = [Coords(**{name: tensor[..., own] for name, tensor in data.items()}) for own in rows]
    division = Division(group, layout, layout, every[rank], every, (ids.shape[0],), ids.device)

    def attend_divided(query: Tensor, key: Tensor, value: Tensor, **arguments: Any) -> Any:
        priors = Priors.of(*(arguments.pop(name, None) for name in ("pattern", "bias", "score")))
        arguments.pop("coords", None)  # the division has them, of every rank
        return divided_attend(division, query, key, value, priors, method=method, **arguments)

    return Context(
        position=whole.position[..., rows[rank]],
        coords=every[rank],
        keys=Keys(every[rank], whole.keys.padding),
        real=None if whole.real is None else whole.real[:, rows[rank]],
        attend=attend_divided,
    )
