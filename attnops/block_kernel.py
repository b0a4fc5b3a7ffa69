"""Attention over a grid by the compiled block kernel: what of a call it knows, and what is evaluated for it.

Where the pattern is told by ranges and every bias by a term, one call of the kernel runs all. Else pattern
and bias are evaluated, block after block of queries, as numbers that the kernel adds to its logits; in training each
block is evaluated again in the backward, so that none is kept.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from attnops import lowering
from attnops.block_terms import Terms, told
from attnops.captured import captured_tensors
from attnops.kernels import library
from attnops.kernels.block_attention import block_attention, block_attention_backward, run_forward
from attnops.problem import Call, Estimate, NotFiniteError, Problem, Result, UnsupportedError
from attnops.scores.dot import DotProduct

ROWS = 256  # queries of a block, at most
NUMBERS = 1 << 22  # of a block of logits, about
SCRATCH = 1 << 20  # bytes of the kernel's own, about
# Whether its products keep up with torch's own library: read once, since a tracer cannot ask the library.
WIDE = library.unavailable() is None and library.level() in ("x86-64-v3", "x86-64-v4")


class _Options(NamedTuple):
    scale: float
    softcap: float
    dropout: float
    seed: Tensor | None


def attend_blocks(call: Call) -> Result:
    """Run a call whose score is the dot product."""
    vectors = tuple(x.to(call.compute_dtype) for x in (call.query, call.key, call.value))
    terms = told(call)
    if terms is None and (call.problem.opaque or _rows(call.problem) >= call.problem.num_queries):
        parts = [_traced(call, vectors, block) for block in _blocks(call)]
        out, lse = parts[0] if len(parts) == 1 else (torch.cat(x, 2) for x in zip(*parts, strict=True))
    elif terms is None:
        tensors = captured_tensors(call) if torch.is_grad_enabled() else []
        query, key, value = vectors
        if not lowering.all_finite(key, value):
            attended = _attended_in_blocks(call, key)
            key, value = torch.where(attended, key, 0), torch.where(attended, value, 0)
            _require_finite(call, key, value)
        out, lse = _Blocks.apply(call, query, key, value, *tensors)  # type: ignore[no-untyped-call]
    else:
        out, lse = _run(call, terms, *vectors)
    return Result(out.to(call.query.dtype), lse)


def refuse_blocks(problem: Problem) -> list[str]:
    """Why a problem without an edge list cannot run, in words."""
    reasons = []
    if problem.score not in ("dot", "softcap"):
        reasons.append(f"without an edge list its kernel knows only the dot product, not {problem.score}")
    if max(problem.num_queries, problem.num_keys) > 2**31 - 1:
        reasons.append("without an edge list its rows are counted in 32 bits")
    if problem.weights:
        reasons.append("without an edge list it never holds the weights, so it cannot return them")
    if problem.differentiated:
        reasons.append("torch.func's derivatives do not pass through its kernels; differentiate by backward instead")
    return reasons


def estimate_blocks(problem: Problem) -> Estimate:
    """What running it would need: the kernel's own time a pair, and that of evaluating what it does not know."""
    known = (not problem.biased or problem.own_bias) and (problem.blocks_known or not problem.forbids or problem.biased)
    a_pair = int((problem.dim + problem.value_dim + 12) * (0.9 if WIDE else 2.5))
    steps = min(problem.pairs, problem.bound) * a_pair * (3 if problem.learns else 1)
    if not known:
        tables = problem.batch * (problem.heads if problem.biased else 1)
        steps += problem.num_queries * problem.num_keys * tables * (80 if problem.bias_grad else 30)
    vectors = problem.batch * problem.num_queries * problem.heads * problem.dim
    numbers = vectors * (4 if problem.learns else 0) + (0 if known else 4 * NUMBERS)
    calls = 5_000_000 + (15_000_000 if problem.biased else 0)
    return Estimate(numbers * problem.compute_bytes + SCRATCH, steps + calls)


# --------------------------------------------------------------------------------------- all in one call of the kernel
def _run(call: Call, terms: Terms, query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """One call of the kernel, whose products would carry garbage of a forbidden pair into the row: kept out here."""
    problem = call.problem
    options = _options(call)
    if problem.forbids and (problem.learns or problem.opaque):
        key, value = _without_garbage(call, terms, key, value)
    if problem.learns or problem.opaque:
        out, lse, _ = block_attention(query, key, value, *terms, *options)
        return out, lse
    known: tuple[Any, ...] = (*terms, *options)
    out, lse, _, finite = run_forward(query, key, value, *known)
    if problem.forbids and not finite:  # without a gradient, what garbage does shows in the output
        out, lse, *_ = run_forward(query, *_without_garbage(call, terms, key, value), *known)
    return out, lse


def _options(call: Call) -> _Options:
    assert isinstance(call.score, DotProduct)
    seed = torch.randint(2**62, ()) if call.dropout > 0 else None
    return _Options(call.scale, call.score.softcap or 0.0, call.dropout, seed)


def _without_garbage(call: Call, terms: Terms, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    """Key and value with zeros in the rows that nobody attends."""
    if not call.problem.opaque and lowering.all_finite(key, value):
        return key, value
    attended = _attended(terms, key)
    key, value = torch.where(attended, key, 0), torch.where(attended, value, 0)
    if not call.problem.opaque:
        _require_finite(call, key, value)
    return key, value


def _require_finite(call: Call, key: Tensor, value: Tensor) -> None:
    if call.problem.forbids and not lowering.all_finite(key, value):
        raise NotFiniteError(
            "backend 'native' met keys or values that are not finite where some query may attend them, another not"
        )


def _attended(terms: Terms, key: Tensor) -> Tensor:
    """`[B|1, Hkv|1, Nk, 1]`: whether some query of the batch row and key head may attend each key."""
    num_keys = key.shape[2]
    attended = torch.ones(1, 1, 1, 1, dtype=torch.bool)
    if terms.intervals is not None:
        low, high = terms.intervals.long().flatten(1, 2).unbind(-1)  # [B|1, Nq·R]
        some = (low < high).int()
        changes = torch.zeros(low.shape[0], num_keys + 1, dtype=torch.int32)
        changes = changes.scatter_add(1, low, some).scatter_add(1, high, -some)
        attended = (changes.cumsum(1)[:, :num_keys] > 0)[:, None, :, None]
    if terms.additive is not None:
        possible = terms.additive.detach() != float("-inf")
        attended = attended & lowering.attended_keys(possible, key.shape[1], num_keys)
    return attended


@torch.no_grad()
def _attended_in_blocks(call: Call, key: Tensor) -> Tensor:
    """The same where pattern and bias are evaluated."""
    attended = torch.zeros(*key.shape[:3], 1, dtype=torch.bool)
    for block in _blocks(call):
        if block.columns is not None:
            attended[:, :, block.columns] |= _attended(_evaluated(call, block), key[:, :, block.columns])
    return attended


# ------------------------------------------------------------------------------ pattern and bias evaluated by blocks
class _Block(NamedTuple):
    rows: slice
    columns: slice | Tensor | None  # None: every pair of these rows is forbidden


def _rows(problem: Problem) -> int:
    """Queries of a block, so that what is evaluated stays within `NUMBERS`."""
    a_row = max(1, problem.num_keys * (problem.batch * problem.heads if problem.biased else problem.batch))
    return min(ROWS, max(16, NUMBERS // a_row))


def _blocks(call: Call) -> Iterator[_Block]:
    num_queries, num_keys, size = call.query.shape[2], call.key.shape[2], _rows(call.problem)
    if size >= num_queries:
        yield _Block(slice(0, num_queries), slice(0, num_keys))
        return
    for start in range(0, num_queries, size):
        rows = slice(start, min(num_queries, start + size))
        ranges = call.pattern.key_ranges(call.coords, rows, num_keys)
        if len(ranges) <= 1:
            yield _Block(rows, slice(*ranges[0]) if ranges else None)
        else:
            yield _Block(rows, torch.cat([torch.arange(low, high) for low, high in ranges]))


def _evaluated(call: Call, block: _Block) -> Terms:
    """Pattern and bias of a block, laid out: -inf where a pair is forbidden."""
    assert block.columns is not None
    pairs = call.block(block.rows, block.columns)
    allowed, bias = lowering.evaluate(call, pairs)
    if bias is None:
        bias = torch.zeros((), dtype=call.compute_dtype)
    if allowed is not None:
        bias = torch.where(allowed, bias, float("-inf"))
    additive = bias.expand(*bias.shape[:2], *pairs.shape[2:]) if bias.ndim else None
    first_key = block.columns.start if isinstance(block.columns, slice) else 0
    return Terms(None, additive, [], [], [block.rows.start, first_key], [], [])


def _nothing(query: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
    return query.new_zeros(*query.shape[:3], value.shape[3]), query.new_full(query.shape[:3], float("-inf"))


def _traced(call: Call, vectors: tuple[Tensor, ...], block: _Block) -> tuple[Tensor, Tensor]:
    """A block as a graph; in training, where there are several, each is evaluated again in the backward."""
    if block.columns is None:
        return _nothing(vectors[0][:, :, block.rows], vectors[2])

    def run(query: Tensor, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = block.rows, block.columns
        return _run(call, _evaluated(call, block), query[:, :, rows], key[:, :, columns], value[:, :, columns])

    whole = block.rows.stop - block.rows.start >= call.query.shape[2]
    if call.problem.learns and not whole and call.dropout == 0:
        return checkpoint(run, *vectors, use_reentrant=False)  # type: ignore[no-any-return]
    return run(*vectors)


class _Blocks(torch.autograd.Function):
    """Saves out and lse, no block: each is evaluated again in the backward, and handed the gradient of its numbers."""

    @staticmethod
    def forward(
        ctx: Any, call: Call, query: Tensor, key: Tensor, value: Tensor, *tensors: Tensor
    ) -> tuple[Tensor, Tensor]:
        options = _options(call)
        out, lse = _nothing(query, value)
        rest = torch.zeros_like(lse)
        for block in _blocks(call):
            if block.columns is None:
                continue
            known: tuple[Any, ...] = (*_evaluated(call, block), *options)
            rows, columns = block.rows, block.columns
            part = run_forward(query[:, :, rows], key[:, :, columns], value[:, :, columns], *known)
            out[:, :, rows], lse[:, :, rows], rest[:, :, rows] = part[:3]
        ctx.save_for_backward(query, key, value, out, lse, rest, *tensors)
        ctx.call, ctx.options = call, options
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    def backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None) -> tuple[Tensor | None, ...]:
        if torch.is_grad_enabled():  # create_graph: autograd would drop the second derivative in silence
            raise UnsupportedError("backend 'native' has no second derivative; backend='reference' has")
        query, key, value, out, lse, rest, *tensors = ctx.saved_tensors
        grad_out = torch.zeros_like(out) if grad_out is None else grad_out
        dq, dk, dv = (torch.zeros_like(x) for x in (query, key, value))
        learned: list[Tensor | None] = [None] * len(tensors)
        for block in _blocks(ctx.call):
            if block.columns is None:
                continue
            rows, columns = block.rows, block.columns
            with torch.set_grad_enabled(bool(tensors)):
                terms = _evaluated(ctx.call, block)
            wanted = terms.additive is not None and terms.additive.requires_grad
            part_q, part_k, part_v, dlogits, *_ = block_attention_backward(
                grad_out[:, :, rows],
                None if grad_lse is None else grad_lse[:, :, rows],
                out[:, :, rows],
                lse[:, :, rows],
                rest[:, :, rows],
                *(query[:, :, rows], key[:, :, columns], value[:, :, columns]),
                *_detached(terms),
                *ctx.options,
                wanted,
            )
            dq[:, :, rows] = part_q
            _add(dk, columns, part_k)
            _add(dv, columns, part_v)
            if wanted:
                _learn(learned, terms.additive, tensors, dlogits)
        return (None, dq, dk, dv, *learned)


def _detached(terms: Terms) -> Terms:
    return terms if terms.additive is None else terms._replace(additive=terms.additive.detach())


def _add(total: Tensor, columns: slice | Tensor, part: Tensor) -> None:
    if isinstance(columns, slice):
        total[:, :, columns] += part
    else:
        total.index_add_(2, columns, part)


def _learn(learned: list[Tensor | None], additive: Tensor | None, tensors: list[Tensor], dlogits: Tensor) -> None:
    """Add what a block's numbers say of the tensors that they were made of."""
    assert additive is not None
    grads = torch.autograd.grad(
        additive, tensors, dlogits.sum_to_size(additive.shape), allow_unused=True, retain_graph=True
    )
    for place, grad in enumerate(grads):
        before = learned[place]
        if grad is not None:
            learned[place] = grad if before is None else before + grad
