"""Attention over an edge list by Triton's kernels, forward and backward."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from attnops.kernels import triton_walk as kernels
from attnops.kernels.edge_operator import EdgeOperator
from attnops.kernels.edge_walk import Walk, accumulated, gradients, results
from attnops.kernels.library import readable_rows

PIECE = 512  # edges of one row that one program takes at most
NUMBERS = 2048  # of keys or values that a program holds at once, about
SCORES = ("dot", "leaky_relu", "tanh")


class Parts(NamedTuple):
    """Rows cut into parts of up to PIECE edges; the last ones may be no part at all, with row -1."""

    row: Tensor  # [P]
    first: Tensor  # [P]: its edges
    last: Tensor  # [P]
    slot: Tensor  # [P]: where its sums wait for those of the row's other parts; -1 where it is the only one
    first_slot: Tensor  # [rows]
    parts: Tensor  # [rows]: how many parts a row has
    slots: int  # room for parts of rows that have several


def cut(pointer: Tensor, num_edges: int) -> Parts:
    """Cut rows into parts, without a value being read by the host: the numbers of parts and slots are bounds."""
    rows = pointer.shape[0] - 1
    count = ((pointer.diff() + PIECE - 1) // PIECE).clamp(min=1)
    ends = count.cumsum(0)
    slots_before = torch.where(count > 1, count, 0).cumsum(0) - torch.where(count > 1, count, 0)
    part = torch.arange(rows + num_edges // PIECE, device=pointer.device)
    row = torch.searchsorted(ends, part, right=True)
    real = row < rows
    row = torch.where(real, row, 0)
    within = part - (ends - count)[row]
    first = pointer[row] + within * PIECE
    last = torch.minimum(first + PIECE, pointer[row + 1])
    slot = torch.where(count[row] > 1, slots_before[row] + within, -1)
    return Parts(torch.where(real, row, -1), first, last, slot, slots_before, count, 2 * (num_edges // PIECE))


def strides(tensor: Tensor | None) -> tuple[int, int, int]:
    """Of batch, heads and rows (or edges)."""
    return (0, 0, 0) if tensor is None else tensor.stride()[:3]  # type: ignore[return-value]


def run_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    walk: Walk,
    with_weights: bool,
    learns: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Out, lse, weights, scores and rest, as `results` makes room for them; no gradient passes."""
    query, key, value = (readable_rows(x) for x in (query, key, value))
    term = None if term is None else readable_rows(term)
    num_edges, acc = walk.source.shape[0], accumulated(query.dtype)
    made = out, lse, weights, scores, rest = results(query, value, num_edges, with_weights, learns)
    batch, heads, num_queries, _ = query.shape
    value_dim = value.shape[3]
    if batch * heads * num_queries == 0:
        return made
    parts = cut(walk.pointer, num_edges)
    sums = query.new_empty(batch * heads, parts.slots, value_dim, dtype=acc)
    tops = query.new_empty(batch * heads, parts.slots, 2, dtype=acc)
    options = _options(query, value_dim, walk, bias, term)
    _launch(
        kernels.forward_kernel, (parts.row.shape[0], batch * heads), query.device,
        query, key, value, bias, a, term, walk.seed, out, lse, rest, scores, sums, tops,
        walk.source, walk.term_order, *parts[:4],
        *(stride for x in (query, key, value, bias, term, out) for stride in strides(x)),
        heads, heads // key.shape[1], heads // value.shape[1], num_queries, num_edges, parts.slots,
        **options, DROPOUT=walk.dropout > 0, KEEP=learns or with_weights,
    )  # fmt: skip
    if parts.slots:
        _launch(
            kernels.join_kernel, (num_queries, batch * heads), query.device,
            out, lse, rest, sums, tops, parts.first_slot, parts.parts, *strides(out), heads, num_queries, parts.slots,
            DV=value_dim, BDV=options["BDV"], KEEP=learns or with_weights, ACC=options["ACC"],
        )  # fmt: skip
    if with_weights:
        _launch(
            kernels.weigh_kernel, (-(-num_edges // 128), batch * heads), query.device,
            scores, bias, lse, rest, walk.target, walk.seed, weights, *strides(bias), heads, num_queries, num_edges,
            RATE=walk.dropout, BE=128, BIAS=bias is not None, DROPOUT=walk.dropout > 0, ACC=options["ACC"],
        )  # fmt: skip
    return made


def run_backward(
    grad_out: Tensor,
    delta: Tensor | None,
    grad_weights: Tensor | None,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    bias: Tensor | None,
    a: Tensor | None,
    term: Tensor | None,
    walk: Walk,
    out: Tensor,
    lse: Tensor,
    scores: Tensor,
    rest: Tensor,
    wanted: Sequence[bool],
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients as `gradients` makes room for them; `delta [B, H, Nq]` is what `delta_of` gives."""
    query, key, value, grad_out = (readable_rows(x) for x in (query, key, value, grad_out))
    term = None if term is None else readable_rows(term)
    delta = None if delta is None else delta.contiguous()
    grad_weights = None if grad_weights is None else grad_weights.contiguous()
    num_edges, acc, device = walk.source.shape[0], accumulated(query.dtype), query.device
    batch, heads, num_queries, dim = query.shape
    value_dim, key_heads, value_heads = value.shape[3], key.shape[1], value.shape[1]
    of_query, of_key, of_value, of_bias, of_a, of_term = gradients(query, key, value, num_edges, wanted)
    parts = cut(walk.pointer, num_edges)
    count = parts.row.shape[0]
    p, g = (query.new_empty(batch, heads, num_edges, dtype=acc) for _ in range(2))
    parts_of_a = query.new_zeros(batch, heads, count, dim, dtype=acc) if wanted[1] else None
    options = _options(query, value_dim, walk, bias, term)
    wide, acc_name = options["BD"], options["ACC"]

    def room(heads: int, slots: int, width: int) -> Tensor:
        return query.new_empty(batch * heads, slots, width, dtype=acc)

    def merge(of: Tensor, sums: Tensor, cut_rows: Parts, width: int, block: int) -> None:
        if cut_rows.slots and of.numel():
            _launch(
                kernels.add_parts_kernel, (of.shape[2], of.shape[0] * of.shape[1]), device,
                of, sums, cut_rows.first_slot, cut_rows.parts, *strides(of), of.shape[1], cut_rows.slots,
                D=width, BD=block, ACC=acc_name,
            )  # fmt: skip

    if batch * heads * num_queries:
        sums = room(heads, parts.slots, dim)
        _launch(
            kernels.query_kernel, (count, batch * heads), device,
            query, key, value, bias, a, term, walk.seed, out, grad_out, lse, rest, scores, delta, grad_weights,
            of_query, of_bias, parts_of_a, of_term, p, g, sums, walk.source, walk.term_order, *parts[:4],
            *(stride for x in (query, key, value, bias, term, out, grad_out) for stride in strides(x)),
            *strides(of_query), *strides(of_term),
            heads, heads // key_heads, heads // value_heads, num_queries, num_edges, count, parts.slots,
            **options, DROPOUT=walk.dropout > 0,
            DELTA=delta is not None, OF_WEIGHTS=grad_weights is not None, OF_BIAS=bool(wanted[0]), OF_A=bool(wanted[1]),
            OF_TERM=bool(wanted[2]),
        )  # fmt: skip
        merge(of_query, sums, parts, dim, wide)
    if parts_of_a is not None:
        of_a = parts_of_a.sum((0, 2))
    if batch * key.shape[2]:
        leaving = cut(walk.source_pointer, num_edges)
        grid, block = leaving.row.shape[0], options["BE"]
        sums = room(key_heads, leaving.slots, dim)
        _launch(
            kernels.key_kernel, (grid, batch * key_heads), device,
            query, key, a, term, g, of_key, sums, walk.target, walk.source_order, walk.term_order, *leaving[:4],
            *(stride for x in (query, key, term, of_key) for stride in strides(x)),
            heads, key_heads, heads // key_heads, num_edges, leaving.slots,
            D=dim, BD=wide, BE=block, SCORE=options["SCORE"], SLOPE=walk.slope, TERM=term is not None, ACC=acc_name,
        )  # fmt: skip
        merge(of_key, sums, leaving, dim, wide)
        sums = room(value_heads, leaving.slots, value_dim)
        _launch(
            kernels.value_kernel, (grid, batch * value_heads), device,
            grad_out, p, of_value, sums, walk.target, walk.source_order, *leaving[:4],
            *strides(grad_out), *strides(of_value), heads, value_heads, heads // value_heads, num_edges, leaving.slots,
            DV=value_dim, BDV=options["BDV"], BE=block, ACC=acc_name,
        )  # fmt: skip
        merge(of_value, sums, leaving, value_dim, options["BDV"])
    return of_query, of_key, of_value, of_bias, of_a, of_term


def _options(query: Tensor, value_dim: int, walk: Walk, bias: Tensor | None, term: Tensor | None) -> dict[str, Any]:
    """What the kernels are compiled for."""
    dim = query.shape[3]
    wide, value_wide = (max(16, triton.next_power_of_2(x)) for x in (dim, value_dim))
    block = max(16, min(128, NUMBERS // max(wide, value_wide)))
    return {
        "D": dim, "DV": value_dim, "BD": wide, "BDV": value_wide, "BE": block,
        "SCORE": SCORES.index(walk.score), "SCALE": walk.scale, "SOFTCAP": walk.softcap, "SLOPE": walk.slope,
        "RATE": walk.dropout, "BIAS": bias is not None, "TERM": term is not None,
        "ACC": tl.float64 if query.dtype == torch.float64 else tl.float32,
    }  # fmt: skip


def _launch(kernel: Any, grid: tuple[int, int], device: torch.device, *arguments: Any, **options: Any) -> None:
    """One program for each item of the grid, on the tensors' own device."""
    if device.type == "cuda":
        with torch.cuda.device(device):
            kernel[grid](*arguments, **options)
    else:
        kernel[grid](*arguments, **options)


DEVICES = "cuda" if os.environ.get("TRITON_INTERPRET") != "1" else ("cpu", "cuda")
triton_edges = EdgeOperator("triton", "attnops::triton_edge_attention", DEVICES, run_forward, run_backward)
