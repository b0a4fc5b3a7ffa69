"""Attention over blocks of a grid by the compiled kernel, forward and backward, as custom operators of torch.

Biases that the kernel knows are lists of tensors here, so that torch sees every gradient:

- a table: `table[b, h, row_i, clamp(column_j - shift_i + offset)]`. `tables` holds `[B|1, H|1, R, L]`; `indices` three
  int64 tensors a table, row `[B|1, Nq]`, shift `[B|1, Nq]` and column `[B|1, Nk]`, empty for i, 0 and j;
- a slope: `slope[h] · |x_i - x_j|`. `slopes` holds `[H]`; `spots` two float64 tensors a slope, x of both sides;
- `offsets`: where these queries and keys begin in the whole problem (dropout counts by it), then two integers a table:
  the offset, and whether the shift is i.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from torch import Tensor

from attnops.kernels import library
from attnops.kernels.library import Rows, address, pointer, readable_rows

MOST_TERMS = 4  # tables, and as many slopes


class BlockTable(ctypes.Structure):
    """A table, as csrc/block_interface.h has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("table", "grad")),
        *((name, ctypes.c_int64) for name in ("batch", "head", "rows", "length")),
        *((name, ctypes.c_void_p) for name in ("row", "shift", "column")),
        *((name, ctypes.c_int64) for name in ("row_batch", "shift_batch", "column_batch", "offset", "diagonal")),
    )


class BlockSlope(ctypes.Structure):
    """A slope, as csrc/block_interface.h has it."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("slope", "grad", "query", "key")),
        *((name, ctypes.c_int64) for name in ("query_batch", "key_batch")),
    )


class BlockAttention(ctypes.Structure):
    """The call, as csrc/block_interface.h has it."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in ("batches", "heads", "key_heads", "queries", "keys", "dim", "value_dim")),
        *((name, ctypes.c_int32) for name in ("is_double", "threads")),
        *((name, ctypes.c_double) for name in ("scale", "softcap", "dropout")),
        ("seed", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("first_query", "first_key")),
        *((name, Rows) for name in ("query", "key", "value")),
        ("intervals", ctypes.c_void_p),
        *((name, ctypes.c_int64) for name in ("interval_batch", "interval_query", "ranges")),
        *((name, ctypes.c_int32) for name in ("num_tables", "num_slopes")),
        ("tables", BlockTable * MOST_TERMS),
        ("slopes", BlockSlope * MOST_TERMS),
        ("additive", ctypes.c_void_p),
        *((f"additive_{axis}", ctypes.c_int64) for axis in ("batch", "head", "query", "key")),
        ("out", Rows),
        *((name, ctypes.c_void_p) for name in ("lse", "rest")),
        ("not_finite", ctypes.POINTER(ctypes.c_int64)),
        ("grad_out", Rows),
        ("grad_lse", ctypes.c_void_p),
        *((name, Rows) for name in ("grad_query", "grad_key", "grad_value")),
        ("grad_additive", ctypes.c_void_p),
    )


class _Prepared:
    """The structure of a call, and the tensors that must live as long as it."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        intervals: Tensor | None,
        additive: Tensor | None,
        tables: list[Tensor],
        indices: list[Tensor],
        offsets: list[int],
        slopes: list[Tensor],
        spots: list[Tensor],
        scale: float,
        softcap: float,
        dropout: float,
        seed: Tensor | None,
    ) -> None:
        query, key, value = (readable_rows(x) for x in (query, key, value))
        self.tables, self.slopes = [x.contiguous() for x in tables], [x.contiguous() for x in slopes]
        self.indices, self.spots = [x.contiguous() for x in indices], [x.contiguous() for x in spots]
        intervals = None if intervals is None else intervals.contiguous()
        self.kept = (query, key, value, intervals, additive, seed)
        call = self.call = BlockAttention()
        call.batches, call.heads, call.queries, call.dim = query.shape
        _, call.key_heads, call.keys, call.value_dim = value.shape
        call.is_double, call.threads = query.dtype == torch.float64, library.threads()
        call.scale, call.softcap, call.dropout = scale, softcap, dropout
        call.seed = pointer(seed)
        call.first_query, call.first_key = offsets[:2]
        call.query, call.key, call.value = Rows.of(query), Rows.of(key), Rows.of(value)
        if intervals is not None:
            call.intervals = address(intervals)
            call.interval_batch, call.interval_query = (_step(intervals, axis) for axis in (0, 1))
            call.ranges = intervals.shape[2]
        if additive is not None:
            call.additive = address(additive)
            call.additive_batch, call.additive_head, call.additive_query, call.additive_key = (
                _step(additive, axis) for axis in range(4)
            )
        call.num_tables, call.num_slopes = len(tables), len(slopes)
        for place, table in enumerate(self.tables):
            self._set_table(call.tables[place], table, *self.indices[3 * place : 3 * place + 3])
            call.tables[place].offset, call.tables[place].diagonal = offsets[2 * place + 2 : 2 * place + 4]
        for place, slope in enumerate(self.slopes):
            mine, theirs = self.spots[2 * place : 2 * place + 2]
            one = call.slopes[place]
            one.slope, one.query, one.key = address(slope), address(mine), address(theirs)
            one.query_batch, one.key_batch = _step(mine, 0), _step(theirs, 0)

    @staticmethod
    def _set_table(one: BlockTable, table: Tensor, row: Tensor, shift: Tensor, column: Tensor) -> None:
        one.table = address(table)
        one.batch, one.head = _step(table, 0), _step(table, 1)
        one.rows, one.length = table.shape[2:]
        for name, index in (("row", row), ("shift", shift), ("column", column)):
            setattr(one, name, address(index) if index.numel() else None)
            setattr(one, f"{name}_batch", _step(index, 0) if index.numel() else 0)


def _step(tensor: Tensor, axis: int) -> int:
    """The stride of an axis, 0 where it has one entry, which then serves all."""
    return tensor.stride(axis) if tensor.shape[axis] > 1 else 0


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Tensor | None,
    additive: Tensor | None,
    tables: list[Tensor],
    indices: list[Tensor],
    offsets: list[int],
    slopes: list[Tensor],
    spots: list[Tensor],
    scale: float,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, bool]:
    """`block_attention` without torch's dispatch, for a call that takes no gradient and is not traced; whether out is
    finite throughout comes last, found on the way."""
    terms = (tables, indices, offsets, slopes, spots)
    prepared = _Prepared(query, key, value, intervals, additive, *terms, scale, softcap, dropout, seed)
    out = query.new_empty(*query.shape[:3], value.shape[3])
    lse, rest = query.new_empty(query.shape[:3]), query.new_empty(query.shape[:3])
    not_finite = ctypes.c_int64(0)
    prepared.call.out, prepared.call.lse, prepared.call.rest = Rows.of(out), address(lse), address(rest)
    prepared.call.not_finite = ctypes.pointer(not_finite)
    library.call("attnops_block_attention", prepared.call)
    return out, lse, rest, not not_finite.value


@torch.library.custom_op("attnops::block_attention", mutates_args=(), device_types="cpu")
def block_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Tensor | None,
    additive: Tensor | None,
    tables: list[Tensor],
    indices: list[Tensor],
    offsets: list[int],
    slopes: list[Tensor],
    spots: list[Tensor],
    scale: float,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """`out [B, H, Nq, Dv]`, `lse [B, H, Nq]` and what rounding took off lse, in one dtype, float32 or float64.

    `intervals [B|1, Nq|1, R, 2]`, int32: the keys that each query may attend, as half-open ranges (None: all);
    `additive [B|1, H|1, Nq|1, Nk|1]`, -inf forbids.
    """
    out, lse, rest, _ = run_forward(
        query, key, value, intervals, additive, tables, indices, offsets, slopes, spots, scale, softcap, dropout, seed
    )
    return out, lse, rest


@block_attention.register_fake
def _(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Tensor | None,
    additive: Tensor | None,
    tables: list[Tensor],
    indices: list[Tensor],
    offsets: list[int],
    slopes: list[Tensor],
    spots: list[Tensor],
    scale: float,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor]:
    rows = query.shape[:3]
    return query.new_empty(*rows, value.shape[3]), query.new_empty(rows), query.new_empty(rows)


@torch.library.custom_op("attnops::block_attention_backward", mutates_args=(), device_types="cpu")
def block_attention_backward(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    rest: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Tensor | None,
    additive: Tensor | None,
    tables: list[Tensor],
    indices: list[Tensor],
    offsets: list[int],
    slopes: list[Tensor],
    spots: list[Tensor],
    scale: float,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
    additive_wanted: bool,
) -> list[Tensor]:
    """Gradients of query, key, value, of the additive's logits `[B, H, Nq, Nk]` (empty where not wanted), then of each
    table and each slope."""
    terms = (tables, indices, offsets, slopes, spots)
    prepared = _Prepared(query, key, value, intervals, additive, *terms, scale, softcap, dropout, seed)
    call = prepared.call
    grad_out, out, lse = readable_rows(grad_out), readable_rows(out), lse.contiguous()
    grad_lse = None if grad_lse is None else grad_lse.contiguous()
    grads = [torch.zeros(x.shape, dtype=x.dtype) for x in (query, key, value)]
    logits = (*query.shape[:3], key.shape[2]) if additive_wanted else (0,)
    grads.append(query.new_zeros(logits))
    for one, table in zip(call.tables, prepared.tables, strict=False):
        grads.append(torch.zeros(table.shape, dtype=table.dtype))
        one.grad = address(grads[-1])
    for one, slope in zip(call.slopes, prepared.slopes, strict=False):
        grads.append(torch.zeros(slope.shape, dtype=slope.dtype))
        one.grad = address(grads[-1])
    rest = None if rest is None else rest.contiguous()
    call.out, call.lse, call.rest = Rows.of(out), address(lse), pointer(rest)
    call.grad_out, call.grad_lse = Rows.of(grad_out), pointer(grad_lse)
    call.grad_query, call.grad_key, call.grad_value = (Rows.of(grad) for grad in grads[:3])
    call.grad_additive = address(grads[3]) if additive_wanted else None
    library.call("attnops_block_attention_backward", call)
    return grads


@block_attention_backward.register_fake
def _(
    grad_out: Tensor,
    grad_lse: Tensor | None,
    out: Tensor,
    lse: Tensor,
    rest: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    intervals: Tensor | None,
    additive: Tensor | None,
    tables: list[Tensor],
    indices: list[Tensor],
    offsets: list[int],
    slopes: list[Tensor],
    spots: list[Tensor],
    scale: float,
    softcap: float,
    dropout: float,
    seed: Tensor | None,
    additive_wanted: bool,
) -> list[Tensor]:
    logits = (*query.shape[:3], key.shape[2]) if additive_wanted else (0,)
    learned = [x.new_empty(x.shape) for x in (*tables, *slopes)]
    return [*(x.new_empty(x.shape) for x in (query, key, value)), query.new_empty(logits), *learned]


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor, Tensor]) -> None:
    query, key, value, intervals, additive, tables, indices, offsets, slopes, spots, *options, seed = inputs
    ctx.save_for_backward(*output, query, key, value, intervals, additive, seed, *tables, *indices, *slopes, *spots)
    ctx.counts = (len(tables), len(slopes))
    ctx.options = (offsets, options)
    ctx.mark_non_differentiable(output[2])
    ctx.set_materialize_grads(False)


def _backward(ctx: Any, grad_out: Tensor | None, grad_lse: Tensor | None, _: Tensor | None) -> tuple[Any, ...]:
    out, lse, rest, query, key, value, intervals, additive, seed, *terms = ctx.saved_tensors
    num_tables, num_slopes = ctx.counts
    ends = [num_tables, 4 * num_tables, 4 * num_tables + num_slopes]
    tables, indices = terms[: ends[0]], terms[ends[0] : ends[1]]
    slopes, spots = terms[ends[1] : ends[2]], terms[ends[2] :]
    offsets, options = ctx.options
    if grad_out is None:
        grad_out = torch.zeros_like(out)
    wanted = additive is not None and ctx.needs_input_grad[4]
    dq, dk, dv, dlogits, *learned = block_attention_backward(
        grad_out, grad_lse, out, lse, rest, query, key, value, intervals, additive, tables, indices, offsets, slopes,
        spots, *options, seed, wanted,
    )  # fmt: skip
    dadditive = dlogits.sum_to_size(additive.shape) if wanted else None
    return (
        dq, dk, dv, None, dadditive, learned[:num_tables], [None] * len(indices), None, learned[num_tables:],
        [None] * len(spots), None, None, None, None,
    )  # fmt: skip


block_attention.register_autograd(_backward, setup_context=_save)


def _joined(tensor: Tensor | None, dim: int | None, size: int) -> Tensor | None:
    """A vmapped axis joined with the batch axis; what serves every batch row alike stays as it is."""
    if tensor is None or tensor.numel() == 0 or (dim is None and tensor.shape[0] == 1):
        return tensor
    tensor = tensor.movedim(dim, 0) if dim is not None else tensor.unsqueeze(0).expand(size, *tensor.shape)
    return tensor.flatten(0, 1)


def _vmap(info: Any, in_dims: tuple[Any, ...], *inputs: Any) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
    query, key, value, intervals, additive, tables, indices, offsets, slopes, spots, *options = inputs
    size = info.batch_size
    if any(dim is not None for dim in (*in_dims[8], in_dims[13])):
        raise NotImplementedError(
            "backend 'native' cannot be vmapped over slopes or dropout; give the batch as an axis"
        )
    whole = [
        x.movedim(d, 0).flatten(0, 1) if d is not None else x.unsqueeze(0).expand(size, *x.shape).flatten(0, 1)
        for x, d in zip((query, key, value), in_dims, strict=False)
    ]

    def joined(tensors: list[Tensor], dims: Any) -> list[Tensor]:
        return [_joined(x, d, size) for x, d in zip(tensors, dims, strict=True)]  # type: ignore[misc]

    outputs = block_attention(
        *whole, _joined(intervals, in_dims[3], size), _joined(additive, in_dims[4], size),
        joined(tables, in_dims[5]), joined(indices, in_dims[6]), offsets, slopes, joined(spots, in_dims[9]), *options,
    )  # fmt: skip
    return tuple(x.unflatten(0, (size, -1)) for x in outputs), (0, 0, 0)


torch.library.register_vmap(block_attention, _vmap)

if library.unavailable() is None:
    library.require_size("attnops_block_attention", BlockAttention)
