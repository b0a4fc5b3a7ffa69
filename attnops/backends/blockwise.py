"""Any pattern and bias in memory linear in N: blocks of queries against the keys that they can reach."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnops import lowering
from attnops.captured import captured_tensors
from attnops.pairs import Pairs
from attnops.problem import Call, Estimate, Problem, Result, UnsupportedError

ROWS = 256  # queries of a block, at most
NUMBERS = 1 << 23  # of a block of logits, about

_forward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu
_backward_kernel = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward


class Blockwise:
    """Each block of queries meets the keys in the pattern's ranges; pattern and bias are evaluated on that block alone.

    Where the score is the plain dot product and the bias learns nothing, a block is one call of torch's flash kernel
    for the CPU, forward and backward; else a block is the formula itself, computed again in the backward.
    """

    name = "blockwise"

    def needs_finite(self, problem: Problem) -> bool:
        return False

    def unavailable(self) -> str | None:
        return None

    def refuse(self, problem: Problem) -> list[str]:
        reasons = []
        if problem.weights:
            reasons.append("it never holds the weights of more than one block, so it cannot return them")
        if problem.num_edges is not None and problem.unique_edges is not True:
            what = "which a block of pairs cannot tell apart"
            if problem.unique_edges is None:
                reasons.append(
                    f"this edge list was not searched for duplicates, {what}; name the backend to have it searched"
                )
            else:
                reasons.append(f"this edge list holds duplicate edges, {what}")
        if problem.vmapped or problem.differentiated:
            reasons.append(
                "it does not run inside torch.func's transforms; batch by leading axes, differentiate by backward"
            )
        if problem.compiling and problem.bias_grad and not problem.own_bias:
            reasons.append(
                "traced training with a bias of the user's own would keep every block; 'reference' traces it"
            )
        return reasons

    def estimate(self, problem: Problem) -> Estimate:
        rows = max(1, min(_rows(problem), problem.num_queries))
        tables = problem.batch * (problem.heads if problem.biased else 1)
        written_out = not _is_fused(problem)
        vectors = 1 if problem.score in ("dot", "softcap") else problem.dim
        block = rows * problem.num_keys * problem.compute_bytes * tables * 3
        if written_out:
            block = rows * problem.num_keys * problem.compute_bytes * problem.batch * problem.heads * (6 + 2 * vectors)
        pairs = problem.pairs
        if problem.blocks_known:  # a block reaches as far as the last of its rows does
            pairs = min(pairs, problem.bound + problem.batch * problem.heads * problem.num_queries * rows)
        a_pair = problem.dim + problem.value_dim + (250 * vectors if written_out else 40 if problem.forbids else 12)
        passes = (4 if written_out else 3.6) if problem.learns else 1
        steps = int(pairs * a_pair * passes) + -(-problem.num_queries // rows) * 3_000_000 + 2_000_000
        return Estimate(block, steps)

    def run(self, call: Call) -> Result:
        if call.problem.compiling:
            return _traced(call)
        tensors = captured_tensors(call) if torch.is_grad_enabled() else []
        out, lse = _Blockwise.apply(  # type: ignore[no-untyped-call]
            call, call.query, call.key, call.value, *tensors
        )
        return Result(out, lse)


class _Block(NamedTuple):
    rows: slice
    columns: slice | Tensor | None  # None: every pair of these rows is forbidden


def _blocks(call: Call) -> Iterator[_Block]:
    num_queries, num_keys, size = call.query.shape[2], call.key.shape[2], _rows(call.problem)
    for start in range(0, num_queries, size):
        rows = slice(start, min(num_queries, start + size))
        ranges = call.pattern.key_ranges(call.coords, rows, num_keys)
        if not ranges:
            yield _Block(rows, None)
        elif len(ranges) == 1:
            yield _Block(rows, slice(*ranges[0]))
        else:
            parts = [torch.arange(low, high, device=call.query.device) for low, high in ranges]
            yield _Block(rows, torch.cat(parts))


def _rows(problem: Problem) -> int:
    """Queries of a block: so many that its logits, or the vectors at its pairs, stay within `NUMBERS`."""
    a_row = max(1, problem.batch * problem.heads * problem.num_keys)
    if problem.score not in ("dot", "softcap"):
        return max(1, min(ROWS, NUMBERS // (a_row * max(1, problem.dim))))
    return max(32, min(ROWS, NUMBERS // a_row))


def _is_fused(problem: Problem) -> bool:
    """Whether torch's flash kernel computes a block."""
    return (
        problem.device == "cpu"
        and problem.score == "dot"
        and not problem.bias_grad
        and not problem.dropout
        and problem.dim == problem.value_dim
        and problem.dim > 0
    )


class _Blockwise(torch.autograd.Function):
    """Saves out and lse, no block; evaluates each block again in the backward."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        detached = _with_vectors(call, query.detach(), key.detach(), value.detach())
        fused = _is_fused(call.problem) and lowering.all_finite(query, key, value)
        seed = int(torch.randint(2**62, ()).item()) if call.dropout > 0 else 0
        batch, heads, rows, _ = query.shape
        out = query.new_empty(batch, rows, heads, value.shape[-1]).transpose(1, 2)
        lse = torch.empty(batch, heads, rows, dtype=call.compute_dtype, device=query.device)
        for block in _blocks(call):
            part = _fused_block(detached, block) if fused else _written_block(detached, block, seed)
            out[:, :, block.rows], lse[:, :, block.rows] = part
        ctx.save_for_backward(query, key, value, out, lse, *tensors)
        ctx.call, ctx.fused, ctx.seed = call, fused, seed
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if (
            torch.is_grad_enabled()
        ):  # create_graph: said here, since autograd would drop the second derivative in silence
            raise UnsupportedError("backend 'blockwise' has no second derivative; backend='reference' has")
        query, key, value, out, lse, *tensors = ctx.saved_tensors
        if grad_out is None:
            grad_out = torch.zeros_like(out)
        call = _with_vectors(ctx.call, query, key, value)
        if ctx.fused and grad_lse is None:
            return (None, *_fused_backward(call, grad_out, out, lse), *(None for _ in tensors))
        return (None, *_written_backward(call, ctx.seed, grad_out, grad_lse, tensors))


def _with_vectors(call: Call, query: Tensor, key: Tensor, value: Tensor) -> Call:
    return Call(
        query,
        key,
        value,
        call.pattern,
        call.bias,
        call.score,
        call.scale,
        call.coords,
        call.dropout,
        call.batch_shape,
        call.problem,
    )


def _pairs(call: Call, block: _Block) -> Pairs:
    assert block.columns is not None
    return call.block(block.rows, block.columns)


# -------------------------------------------------------------------------------------------- torch's kernel
def _mask(call: Call, block: _Block) -> Tensor | None:
    """Pattern and bias of a block as one additive mask `[B|1, H|1, rows, columns]`."""
    pairs = _pairs(call, block)
    allowed, bias = lowering.evaluate(call, pairs)
    if bias is not None:
        mask = bias if allowed is None else torch.where(allowed, bias, float("-inf"))
    elif allowed is not None:
        mask = torch.zeros(allowed.shape, dtype=call.compute_dtype, device=allowed.device).masked_fill_(
            ~allowed, float("-inf")
        )
    else:
        return None
    return mask.expand(*mask.shape[:2], *pairs.shape[2:])


def _head_groups(call: Call) -> list[slice]:
    """The query heads that meet each key head once: no key is copied."""
    heads, group = call.query.shape[1], call.query.shape[1] // call.key.shape[1]
    return [slice(member, heads, group) for member in range(group)]


def _of_heads(mask: Tensor | None, heads: slice) -> Tensor | None:
    return mask if mask is None or mask.shape[1] == 1 else mask[:, heads]


def _fused_block(call: Call, block: _Block) -> tuple[Tensor, Tensor]:
    query = call.query[:, :, block.rows]
    if block.columns is None:
        return torch.zeros_like(query), torch.full(query.shape[:-1], float("-inf"), dtype=call.compute_dtype)
    key, value, mask = call.key[:, :, block.columns], call.value[:, :, block.columns], _mask(call, block)
    out, lse = torch.empty_like(query), torch.empty(query.shape[:-1], dtype=call.compute_dtype)
    for heads in _head_groups(call):
        part = _of_heads(mask, heads)
        out[:, heads], rows_lse = _forward_kernel(
            query[:, heads], key, value, 0.0, False, attn_mask=part, scale=call.scale
        )
        if part is not None:  # the kernel gives a row of -inf the lse 0
            rows_lse = torch.where((part == float("-inf")).all(-1), float("-inf"), rows_lse)
        lse[:, heads] = rows_lse
    return out, lse


def _fused_backward(call: Call, grad_out: Tensor, out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    dq = torch.zeros_like(call.query)
    dk, dv = (torch.zeros(x.shape, dtype=call.compute_dtype) for x in (call.key, call.value))
    lse = torch.where(lse == float("-inf"), 0, lse)
    for block in _blocks(call):
        if block.columns is None:
            continue
        rows, columns = block.rows, block.columns
        key, value, mask = call.key[:, :, columns], call.value[:, :, columns], _mask(call, block)
        for heads in _head_groups(call):
            part_q, part_k, part_v = _backward_kernel(
                grad_out[:, heads, rows],
                call.query[:, heads, rows],
                key,
                value,
                out[:, heads, rows],
                lse[:, heads, rows],
                0.0,
                False,
                attn_mask=_of_heads(mask, heads),
                scale=call.scale,
            )
            dq[:, heads, rows] = part_q
            _add(dk, columns, part_k)
            _add(dv, columns, part_v)
    return dq, dk.to(call.key.dtype), dv.to(call.value.dtype)


def _add(total: Tensor, columns: slice | Tensor, part: Tensor) -> None:
    if isinstance(columns, slice):
        total[:, :, columns] += part
    else:
        total.index_add_(2, columns, part.to(total.dtype))


# -------------------------------------------------------------------------------------------- the formula itself


def _written_block(call: Call, block: _Block, seed: int) -> tuple[Tensor, Tensor]:
    query = call.query[:, :, block.rows]
    if block.columns is None:
        zeros = query.new_zeros(*query.shape[:-1], call.value.shape[-1])
        return zeros, torch.full(query.shape[:-1], float("-inf"), dtype=call.compute_dtype, device=query.device)
    query, key, value = (
        x.to(call.compute_dtype) for x in (query, call.key[:, :, block.columns], call.value[:, :, block.columns])
    )
    pairs = _pairs(call, block)
    allowed, bias = lowering.evaluate(call, pairs)
    keep = _keep(call, pairs, seed + block.rows.start)
    out, lse, _ = lowering.attention(call, pairs, query, key, value, allowed, bias, keep)
    return out.to(call.query.dtype), lse


def _keep(call: Call, pairs: Pairs, seed: int) -> Tensor | None:
    """The dropout of a block, the same whenever it is drawn again: 0, or 1 / (1 - p)."""
    if call.dropout == 0:
        return None
    generator = torch.Generator(device=pairs.device).manual_seed(seed)
    drawn = torch.rand(pairs.shape, generator=generator, device=pairs.device, dtype=call.compute_dtype)
    return (drawn >= call.dropout).to(call.compute_dtype) / (1 - call.dropout)


def _written_backward(
    call: Call, seed: int, grad_out: Tensor, grad_lse: Tensor | None, tensors: list[Tensor]
) -> tuple[Tensor | None, ...]:
    """Each block computed again with gradients, and differentiated alone."""
    totals: list[Tensor] = [
        torch.zeros(x.shape, dtype=call.compute_dtype, device=x.device) for x in (call.query, call.key, call.value)
    ]
    learned: list[Tensor | None] = [None] * len(tensors)
    for block in _blocks(call):
        if block.columns is None:
            continue
        with torch.enable_grad():
            query = call.query[:, :, block.rows].detach().requires_grad_()
            key = call.key[:, :, block.columns].detach().requires_grad_()
            value = call.value[:, :, block.columns].detach().requires_grad_()
            out, lse = _recompute(call, block, query, key, value, seed)
        heads = [out] if grad_lse is None else [out, lse]
        upstream = (
            [grad_out[:, :, block.rows]]
            if grad_lse is None
            else [grad_out[:, :, block.rows], grad_lse[:, :, block.rows]]
        )
        grads = torch.autograd.grad(
            heads, [query, key, value, *tensors], upstream, allow_unused=True, retain_graph=True
        )
        if grads[0] is not None:
            totals[0][:, :, block.rows] = grads[0].to(call.compute_dtype)
        for total, grad in zip(totals[1:], grads[1:3], strict=True):
            if grad is not None:
                _add(total, block.columns, grad)
        for place, grad in enumerate(grads[3:]):
            if grad is not None:
                before = learned[place]
                learned[place] = grad if before is None else before + grad
    vectors = (call.query, call.key, call.value)
    return (*(total.to(x.dtype) for total, x in zip(totals, vectors, strict=True)), *learned)


def _recompute(
    call: Call, block: _Block, query: Tensor, key: Tensor, value: Tensor, seed: int
) -> tuple[Tensor, Tensor]:
    pairs = _pairs(call, block)
    allowed, bias = lowering.evaluate(call, pairs)
    query, key, value = (x.to(call.compute_dtype) for x in (query, key, value))
    keep = _keep(call, pairs, seed + block.rows.start)
    out, lse, _ = lowering.attention(call, pairs, query, key, value, allowed, bias, keep)
    return out.to(call.query.dtype), lse


# -------------------------------------------------------------------------------------------- under a tracer
def _traced(call: Call) -> Result:
    """The same blocks as a graph; in training each is computed again in the backward."""
    parts = []
    for block in _blocks(call):

        def run(query: Tensor, key: Tensor, value: Tensor, block: _Block = block) -> tuple[Tensor, Tensor]:
            return _written_block(_with_vectors(call, query, key, value), block, 0)

        if call.problem.grad or call.problem.bias_grad:
            parts.append(checkpoint(run, call.query, call.key, call.value, use_reentrant=False))
        else:
            parts.append(run(call.query, call.key, call.value))
    return Result(torch.cat([out for out, _ in parts], 2), torch.cat([lse for _, lse in parts], 2))
