"""Attention over keys that other ranks hold: one block after another, the next on its way while one is computed.

A block goes straight from the rank that owns it to each rank that needs it, in the order of a ring: in step t, rank r
sends to rank r + t and receives from rank r - t. So a rank receives only the keys that its pattern reaches, and in the
backward gradients of a block return to its owner in one step, where blocks passed from hand to hand would carry theirs
once around.
"""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from attnops.biases.base import Bias
from attnops.coords import Coords
from attnops.distributed.block_gradients import block_gradients
from attnops.distributed.faults import lost_ranks
from attnops.distributed.placed import Part, place_bias, place_pattern, place_score
from attnops.distributed.routes import Visit
from attnops.operator import attend
from attnops.patterns.base import Pattern
from attnops.patterns.intervals import Causal
from attnops.problem import UnsupportedError
from attnops.scores.base import Score
from attnops.scores.dot import DotProduct
from attnops.states import AttentionOutput, merge


@dataclass(eq=False)
class Ring:
    """A call of attention over a ring of ranks, as one of them sees it.

    Attributes:
        visits: by rank, what this rank's queries do with that rank's keys; None: nothing, and nothing is sent.
        wanted: by rank, the rows of this rank's keys that it needs; None: none.
        query_rows, key_rows: where this rank's queries, and each rank's keys, stand in the whole.
        query_coords, key_coords: of this rank's queries, and of each rank's keys.
        learning: the tensors that gradients flow into besides query, key and value, as blocks read them.
    """

    group: dist.ProcessGroup
    visits: list[Visit | None]
    wanted: list[slice | None]
    query_rows: Tensor
    key_rows: list[Tensor]
    query_coords: Coords
    key_coords: list[Coords]
    pattern: Pattern
    bias: Bias | None
    score: Score | None
    scale: float | None
    dropout: float
    backend: str
    learning: list[Tensor]

    @property
    def rank(self) -> int:
        return self.group.rank()

    @property
    def world(self) -> int:
        return self.group.size()

    def arguments(self, source: int) -> dict[str, Any]:
        """What `attend` is asked on the visit to the keys of `source`."""
        visit = self.visits[source]
        assert visit is not None
        bias, score, coords = self.bias, self.score, None
        pattern: Pattern | None = Causal() if visit.kind == "causal" else None
        if self.reads_pairs or visit.kind == "some":
            part = Part(self.query_rows[visit.queries], self.key_rows[source][visit.keys])
            bias, score = place_bias(bias, part), place_score(score, part)
            coords = cut(self.query_coords, visit.queries), cut(self.key_coords[source], visit.keys)
            pattern = None if visit.kind == "all" else place_pattern(self.pattern, part)
        return {"pattern": pattern, "bias": bias, "score": score, "scale": self.scale, "coords": coords}

    def attend(self, source: int, query: Tensor, key: Tensor, value: Tensor, seed: int) -> AttentionOutput:
        """These queries over the keys of `source`, both already cut to the visit."""
        arguments = self.arguments(source)
        with torch.random.fork_rng(on_gpu(query), enabled=self.dropout > 0):
            if self.dropout > 0:
                torch.manual_seed(seed + self.rank * self.world + source)  # ranks may have drawn the same seed
            out = attend(
                query, key, value, dropout=self.dropout, return_lse=True, backend=self.backend, **arguments
            )  # fmt: skip
        assert isinstance(out, AttentionOutput)
        return out

    @property
    def reads_pairs(self) -> bool:
        """Whether bias or score may read coords, rows or heads."""
        return self.bias is not None or not (self.score is None or type(self.score) is DotProduct)

    # ------------------------------------------------------------------------------------------------ what is sent

    def blocks(self, key: Tensor, value: Tensor) -> Generator[tuple[int, tuple[Tensor, Tensor] | None]]:
        """Each rank's keys and values that this rank's queries may attend, its own first; None where there are none.

        Every rank goes through all steps, so that what two ranks send each other is posted in one order on both. Close
        it: where the caller raises, what is on its way is waited for, or the next exchange of the group would fail.
        """
        works, received = self._post(1, key, value)
        try:
            own = self.visits[self.rank]
            yield self.rank, None if own is None else (key[..., own.keys, :], value[..., own.keys, :])
            for step in range(1, self.world):
                arrived, works = works, []
                wait(arrived)
                block = received
                works, received = self._post(step + 1, key, value)  # on its way while the caller computes
                yield (self.rank - step) % self.world, block
        finally:
            wait(works)

    def _post(self, step: int, key: Tensor, value: Tensor) -> tuple[list[Any], tuple[Tensor, Tensor] | None]:
        """Send what the rank `step` ahead needs of this block, receive what is needed of the one `step` behind."""
        if step >= self.world:
            return [], None
        ahead, behind = (self.rank + step) % self.world, (self.rank - step) % self.world
        sent, received = [], None
        wanted, visit = self.wanted[ahead], self.visits[behind]
        if wanted is not None:
            sent = [x[..., wanted, :].contiguous() for x in (key, value)]
        if visit is not None:
            count = visit.keys.stop - visit.keys.start
            received = tuple(x.new_empty(*x.shape[:-2], count, x.shape[-1]) for x in (key, value))
        return post(self.group, ahead, sent, behind, received or ()), received  # type: ignore[return-value]

    def return_gradients(
        self, step: int, grads: tuple[Tensor, Tensor] | None, key: Tensor, value: Tensor
    ) -> tuple[list[Any], tuple[Tensor, Tensor] | None, slice | None]:
        """Send gradients of the block `step` behind to its owner, receive those of this rank's from `step` ahead."""
        ahead, behind = (self.rank + step) % self.world, (self.rank - step) % self.world
        wanted, received = self.wanted[ahead], None
        if wanted is not None:
            count = wanted.stop - wanted.start
            received = tuple(x.new_empty(*x.shape[:-2], count, x.shape[-1]) for x in (key, value))
        sent = [] if grads is None else [grad.contiguous() for grad in grads]
        return post(self.group, behind, sent, ahead, received or ()), received, wanted  # type: ignore[return-value]


def post(group: dist.ProcessGroup, to: int, sent: list[Tensor], source: int, received: tuple[Tensor, ...]) -> list[Any]:
    """Begin to send and to receive; empty tensors are not sent."""
    ops = [dist.P2POp(dist.isend, x, group=group, group_peer=to) for x in sent if x.numel()]
    ops += [dist.P2POp(dist.irecv, x, group=group, group_peer=source) for x in received if x.numel()]
    with lost_ranks("context_attend"):
        return dist.batch_isend_irecv(ops) if ops else []


def wait(works: list[Any]) -> None:
    """Until all that was begun has come; a lost rank is an error."""
    with lost_ranks("context_attend"):
        for work in works:
            work.wait()


def cut(coords: Coords, rows: slice) -> Coords:
    """The coords of some of the tokens."""
    return Coords(**{name: data[..., rows] for name, data in coords.data.items()})


def on_gpu(tensor: Tensor) -> list[torch.device]:
    """The devices whose random numbers attention over the tensor draws, beside the CPU."""
    return [tensor.device] if tensor.device.type == "cuda" else []


# ------------------------------------------------------------------------------------------------ forward and backward


def ring_attend(ring: Ring, query: Tensor, key: Tensor, value: Tensor, captured: list[Tensor]) -> tuple[Tensor, Tensor]:
    """`out` in float32 at least, and `lse`, of this rank's queries over the keys of all ranks.

    `captured` are the tensors that gradients flow into besides, each of which blocks read as one of `ring.learning`.
    """
    out, lse = _Ring.apply(ring, query, key, value, *captured)  # type: ignore[no-untyped-call]
    return out, lse


class _Ring(torch.autograd.Function):
    """Saves this rank's own vectors, out and lse; the backward goes around again and computes each block anew.

    The compiled kernel takes out and lse over all keys as they are. Where it does not run, a block goes through
    `attend` once more, and the gradient of the whole becomes one of the block's own out and lse.
    """

    @staticmethod
    def forward(
        ctx: Any, ring: Ring, query: Tensor, key: Tensor, value: Tensor, *captured: Tensor
    ) -> tuple[Tensor, Tensor]:
        seed = int(torch.randint(2**62, ()).item()) if ring.dropout > 0 else 0
        dtype = torch.float64 if query.dtype == torch.float64 else torch.float32
        out = query.new_zeros(*query.shape[:-1], value.shape[-1], dtype=dtype)
        lse = torch.full(query.shape[:-1], float("-inf"), dtype=dtype, device=query.device)
        with closing(ring.blocks(key, value)) as blocks:
            for source, block in blocks:
                visit = ring.visits[source]
                if block is None or visit is None:
                    continue
                rows = visit.queries
                part = ring.attend(source, query[..., rows, :], *block, seed)
                before = AttentionOutput(out[..., rows, :], lse[..., rows])
                joined = merge([before, AttentionOutput(part.out.to(dtype), part.lse)])
                assert joined.lse is not None
                out[..., rows, :], lse[..., rows] = joined.out, joined.lse
        ctx.save_for_backward(query, key, value, out, lse)
        ctx.ring, ctx.seed = ring, seed
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: autograd would drop the second derivative in silence
            raise UnsupportedError("context_attend has no second derivative; attend(..., backend='reference') has")
        query, key, value, out, lse = ctx.saved_tensors
        ring: Ring = ctx.ring
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        total = [torch.zeros_like(x, dtype=out.dtype) for x in (query, key, value)]
        learned: list[Tensor | None] = [None] * len(ring.learning)
        returning: tuple[list[Any], tuple[Tensor, Tensor] | None, slice | None] = [], None, None
        with closing(ring.blocks(key, value)) as blocks:
            for step, (source, block) in enumerate(blocks):
                visit, of_block = ring.visits[source], None
                if block is not None and visit is not None:
                    rows = visit.queries
                    upstream = grad_out[..., rows, :], None if grad_lse is None else grad_lse[..., rows]
                    state = out[..., rows, :], lse[..., rows]
                    dq, dk, dv, *others = _block_backward(
                        ring, ctx.seed, source, query[..., rows, :], *block, state, upstream
                    )
                    total[0][..., rows, :] += dq
                    _add(learned, others)
                    of_block = dk, dv
                _take(returning, total)
                if step == 0:
                    _take(([], of_block, None if visit is None else visit.keys), total)
                else:
                    returning = ring.return_gradients(step, of_block, key, value)
        _take(returning, total)
        return (None, *(x.to(query.dtype) for x in total), *learned)


def _add(learned: list[Tensor | None], grads: list[Tensor | None]) -> None:
    for place, grad in enumerate(grads):
        before = learned[place]
        if grad is not None:
            learned[place] = grad if before is None else before + grad


def _take(returning: tuple[list[Any], tuple[Tensor, Tensor] | None, slice | None], total: list[Tensor]) -> None:
    """Add the gradients of this rank's keys and values that another rank has sent."""
    works, received, rows = returning
    wait(works)
    if received is not None:
        total[1][..., rows, :] += received[0]
        total[2][..., rows, :] += received[1]


def _block_backward(
    ring: Ring,
    seed: int,
    source: int,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    state: tuple[Tensor, Tensor],
    upstream: tuple[Tensor, Tensor | None],
) -> tuple[Any, ...]:
    """Gradients of query, key, value and captured tensors through one block, of `out = Σ exp(lse_p - lse) out_p`."""
    if not ring.learning and ring.dropout == 0 and ring.backend in ("auto", "native"):
        known = block_gradients(ring.arguments(source), query, key, value, state, upstream)
        if known is not None:
            return known
    (out, lse), (grad_out, grad_lse) = state, upstream
    with torch.enable_grad():
        query, key, value = (x.detach().requires_grad_() for x in (query, key, value))
        part = ring.attend(source, query, key, value, seed)
    assert part.lse is not None
    heard = part.lse != float("-inf")
    share = torch.where(heard, (part.lse - torch.where(heard, lse, 0)).exp(), 0).detach()
    part_out = part.out.detach().to(out.dtype)
    grad_part = share.unsqueeze(-1) * grad_out
    change = (grad_out * (part_out - out)).sum(-1)
    if grad_lse is not None:
        change = change + grad_lse
    grad_part_lse = torch.where(heard, share * change, 0).to(part.lse.dtype)
    inputs = [query, key, value, *ring.learning]
    grads = torch.autograd.grad(
        (part.out, part.lse), inputs, (grad_part.to(part.out.dtype), grad_part_lse), allow_unused=True
    )
    zeros = (torch.zeros_like(x) if grad is None else grad for x, grad in zip(inputs[:3], grads[:3], strict=True))
    return (*zeros, *grads[3:])
