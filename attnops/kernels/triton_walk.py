"""Triton's kernels for attention over an edge list. They run on a GPU, and with TRITON_INTERPRET=1 on the CPU.

A program takes a part: up to PIECE edges of one row, for one head of one batch item. A row of more edges has several
parts, whose sums are merged in order, so the work is balanced by edges and the result is the same every time. Numbers
are read in their own dtype and computed in float32, or float64 for float64.
"""

# mypy: disable-error-code="untyped-decorator,no-untyped-def,no-untyped-call"

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tanh(x):
    """By exp; near 0, where that cancels, by its series."""
    e = tl.exp(-2 * tl.abs(x))
    far = (1 - e) / (1 + e)
    far = tl.where(x < 0, -far, far)
    y = x * x
    series = 929569 / 638512875 - y * (6404582 / 10854718875)
    series = 1382 / 155925 - y * (21844 / 6081075 - y * series)
    series = 17 / 315 - y * (62 / 2835 - y * series)
    series = 1 - y * (1 / 3 - y * (2 / 15 - y * series))
    return tl.where(y < 0.0225, x * series, far)


@triton.jit
def kept(seed, pair, RATE: tl.constexpr, ACC: tl.constexpr):
    """0, or 1 / (1 - rate): drawn from the seed and the place of a pair alone (SplitMix64, as the CPU's kernel)."""
    bits = seed + (pair + 1).to(tl.uint64) * 0x9E3779B97F4A7C15
    bits = (bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9
    bits = (bits ^ (bits >> 27)) * 0x94D049BB133111EB
    uniform = ((bits ^ (bits >> 31)) >> 11).to(tl.float64) * (1.0 / (1 << 53))
    return (uniform >= RATE).to(ACC) * (1.0 / (1.0 - RATE))


@triton.jit
def similarities(q, k, a, SLOPE: tl.constexpr, SOFTCAP: tl.constexpr, SCALE: tl.constexpr, SCORE: tl.constexpr):
    """Scores of a block of edges: `q` and `k` are `[1 or BE, BD]`, their sum or product is taken."""
    if SCORE == 0:
        s = tl.sum(q * k, 1) * SCALE
        if SOFTCAP > 0:
            s = SOFTCAP * tanh(s / SOFTCAP)
    elif SCORE == 1:
        x = q + k
        s = tl.sum(a * tl.where(x > 0, x, SLOPE * x), 1)
    else:
        s = tl.sum(a * tanh(q + k), 1)
    return s


@triton.jit
def forward_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, a_ptr, term_ptr, seed_ptr, out_ptr, lse_ptr, rest_ptr, scores_ptr, sums_ptr,
    tops_ptr, source_ptr, order_ptr, row_ptr, first_ptr, last_ptr, slot_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, bias_b, bias_h, bias_e, term_b, term_h, term_e, out_b, out_h, out_n,
    heads, group, value_group, num_queries, num_edges, slots,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BE: tl.constexpr,
    SCORE: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, SLOPE: tl.constexpr, RATE: tl.constexpr,
    BIAS: tl.constexpr, TERM: tl.constexpr, DROPOUT: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Σ exp(logit - top) v over the edges of a part, with the softmax kept up to date."""
    part, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(row_ptr + part)
    if row < 0:
        return
    b, h = bh // heads, bh % heads
    first, last, slot = tl.load(first_ptr + part), tl.load(last_ptr + part), tl.load(slot_ptr + part)
    d, dv, lane = tl.arange(0, BD), tl.arange(0, BDV), tl.arange(0, BE)
    q = tl.load(q_ptr + b * q_b + h * q_h + row * q_n + d, mask=d < D, other=0.0).to(ACC)[None, :]
    a = q
    if SCORE != 0:
        a = tl.load(a_ptr + h * D + d, mask=d < D, other=0.0).to(ACC)[None, :]
    keys = k_ptr + b * k_b + (h // group) * k_h
    values = v_ptr + b * v_b + (h // value_group) * v_h
    top = tl.full([1], float("-inf"), ACC)
    total = tl.zeros([1], ACC)
    sums = tl.zeros([BDV], ACC)
    for start in range(first, last, BE):
        e = start + lane
        real = e < last
        j = tl.load(source_ptr + e, mask=real, other=0)
        k = tl.load(keys + j[:, None] * k_n + d[None, :], mask=real[:, None] & (d < D)[None, :], other=0.0).to(ACC)
        if TERM:
            at = tl.load(order_ptr + e, mask=real, other=0)
            term = tl.load(
                term_ptr + b * term_b + h * term_h + at[:, None] * term_e + d[None, :],
                mask=real[:, None] & (d < D)[None, :], other=0.0,
            )  # fmt: skip
            k += term.to(ACC)
        s = similarities(q, k, a, SLOPE, SOFTCAP, SCALE, SCORE)
        if KEEP:
            tl.store(scores_ptr + bh * num_edges + e, s, mask=real)
        if BIAS:
            bias = tl.load(bias_ptr + b * bias_b + h * bias_h + e * bias_e, mask=real, other=0.0).to(ACC)
            s = tl.where(bias == float("-inf"), bias, s + bias)  # forbidden, whatever the score
        s = tl.where(real, s, float("-inf"))
        higher = tl.maximum(top, tl.max(s, 0))
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        shrink = tl.exp(top - safe)
        p = tl.exp(s - safe)
        total = total * shrink + tl.sum(p, 0)
        if DROPOUT:
            seed = tl.load(seed_ptr).to(tl.uint64)
            p = p * kept(seed, bh * num_edges + e, RATE, ACC)
        used = real & (p != 0)  # what a forbidden pair holds may be garbage
        v = tl.load(values + j[:, None] * v_n + dv[None, :], mask=used[:, None] & (dv < DV)[None, :], other=0.0).to(ACC)
        sums = sums * shrink + tl.sum(p[:, None] * v, 0)
        top = higher
    if slot < 0:
        share = tl.where(total == 0, 0.0, 1 / tl.where(total == 0, 1.0, total))
        tl.store(out_ptr + b * out_b + h * out_h + row * out_n + dv, sums * share, mask=dv < DV)
        one = tl.arange(0, 1)
        log_total, top = tl.log(tl.where(total == 0, 1.0, total)), tl.where(total == 0, 0.0, top)
        lse = top + log_total
        tl.store(lse_ptr + bh * num_queries + row + one, tl.where(total == 0, float("-inf"), lse))
        if KEEP:
            tl.store(rest_ptr + bh * num_queries + row + one, log_total - (lse - top))
    else:
        at = bh * slots + slot
        one = tl.arange(0, 1)
        tl.store(sums_ptr + at * DV + dv, sums, mask=dv < DV)
        tl.store(tops_ptr + at * 2 + one, top)
        tl.store(tops_ptr + at * 2 + 1 + one, total)


@triton.jit
def join_kernel(
    out_ptr, lse_ptr, rest_ptr, sums_ptr, tops_ptr, first_slot_ptr, count_ptr, out_b, out_h, out_n, heads, num_queries,
    slots, DV: tl.constexpr, BDV: tl.constexpr, KEEP: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The rows of several parts: their sums brought to one top, in order."""
    row, bh = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    count = tl.load(count_ptr + row)
    if count < 2:
        return
    b, h = bh // heads, bh % heads
    first = bh * slots + tl.load(first_slot_ptr + row)
    dv, one = tl.arange(0, BDV), tl.arange(0, 1)
    top = tl.full([1], float("-inf"), ACC)
    total = tl.zeros([1], ACC)
    sums = tl.zeros([BDV], ACC)
    for part in range(count):
        its_top = tl.load(tops_ptr + (first + part) * 2 + one)
        its_total = tl.load(tops_ptr + (first + part) * 2 + 1 + one)
        its_sums = tl.load(sums_ptr + (first + part) * DV + dv, mask=dv < DV, other=0.0)
        higher = tl.maximum(top, its_top)
        safe = tl.where(higher == float("-inf"), 0.0, higher)
        mine, its = tl.exp(top - safe), tl.exp(its_top - safe)
        total = total * mine + its_total * its
        sums = sums * mine + its_sums * its
        top = higher
    share = tl.where(total == 0, 0.0, 1 / tl.where(total == 0, 1.0, total))
    tl.store(out_ptr + b * out_b + h * out_h + row * out_n + dv, sums * share, mask=dv < DV)
    log_total, top = tl.log(tl.where(total == 0, 1.0, total)), tl.where(total == 0, 0.0, top)
    lse = top + log_total
    tl.store(lse_ptr + bh * num_queries + row + one, tl.where(total == 0, float("-inf"), lse))
    if KEEP:
        tl.store(rest_ptr + bh * num_queries + row + one, log_total - (lse - top))


@triton.jit
def add_parts_kernel(
    out_ptr, sums_ptr, first_slot_ptr, count_ptr, out_b, out_h, out_n, heads, slots,
    D: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """The rows of several parts: their sums added in order."""
    row, bh = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    count = tl.load(count_ptr + row)
    if count < 2:
        return
    first = bh * slots + tl.load(first_slot_ptr + row)
    d = tl.arange(0, BD)
    sums = tl.zeros([BD], ACC)
    for part in range(count):
        sums += tl.load(sums_ptr + (first + part) * D + d, mask=d < D, other=0.0)
    tl.store(out_ptr + (bh // heads) * out_b + (bh % heads) * out_h + row * out_n + d, sums, mask=d < D)


@triton.jit
def weigh_kernel(
    scores_ptr, bias_ptr, lse_ptr, rest_ptr, target_ptr, seed_ptr, weights_ptr, bias_b, bias_h, bias_e, heads,
    num_queries, num_edges, RATE: tl.constexpr, BE: tl.constexpr, BIAS: tl.constexpr, DROPOUT: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """The weight of every pair, after dropout."""
    e, bh = tl.program_id(0).to(tl.int64) * BE + tl.arange(0, BE), tl.program_id(1).to(tl.int64)
    real = e < num_edges
    s = tl.load(scores_ptr + bh * num_edges + e, mask=real, other=0.0)
    if BIAS:
        at = bias_ptr + (bh // heads) * bias_b + (bh % heads) * bias_h + e * bias_e
        bias = tl.load(at, mask=real, other=0.0).to(ACC)
        s = tl.where(bias == float("-inf"), bias, s + bias)
    row = bh * num_queries + tl.load(target_ptr + e, mask=real, other=0)
    lse, rest = tl.load(lse_ptr + row, mask=real, other=0.0), tl.load(rest_ptr + row, mask=real, other=0.0)
    dead = lse == float("-inf")
    p = tl.exp(tl.where(real & ~dead, s - tl.where(dead, 0.0, lse) - rest, float("-inf")))
    if DROPOUT:
        p = p * kept(tl.load(seed_ptr).to(tl.uint64), bh * num_edges + e, RATE, ACC)
    tl.store(weights_ptr + bh * num_edges + e, p, mask=real)


@triton.jit
def query_kernel(
    q_ptr, k_ptr, v_ptr, bias_ptr, a_ptr, term_ptr, seed_ptr, out_ptr, grad_ptr, lse_ptr, rest_ptr, scores_ptr,
    delta_ptr, grad_weights_ptr, grad_q_ptr, grad_bias_ptr, grad_a_ptr, grad_term_ptr, p_ptr, g_ptr, sums_ptr,
    source_ptr, order_ptr, row_ptr, first_ptr, last_ptr, slot_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, v_b, v_h, v_n, bias_b, bias_h, bias_e, term_b, term_h, term_e, out_b, out_h, out_n,
    grad_b, grad_h, grad_n, gq_b, gq_h, gq_n, gt_b, gt_h, gt_e,
    heads, group, value_group, num_queries, num_edges, num_parts, slots,
    D: tl.constexpr, DV: tl.constexpr, BD: tl.constexpr, BDV: tl.constexpr, BE: tl.constexpr,
    SCORE: tl.constexpr, SCALE: tl.constexpr, SOFTCAP: tl.constexpr, SLOPE: tl.constexpr, RATE: tl.constexpr,
    BIAS: tl.constexpr, TERM: tl.constexpr, DROPOUT: tl.constexpr, ACC: tl.constexpr,
    DELTA: tl.constexpr, OF_WEIGHTS: tl.constexpr, OF_BIAS: tl.constexpr, OF_A: tl.constexpr, OF_TERM: tl.constexpr,
):  # fmt: skip
    """The query's gradient over a part; and what its pairs leave for their keys: kept weight and score's gradient."""
    part, bh = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(row_ptr + part)
    d, dv, lane, one = tl.arange(0, BD), tl.arange(0, BDV), tl.arange(0, BE), tl.arange(0, 1)
    if row < 0:
        return
    b, h = bh // heads, bh % heads
    first, last, slot = tl.load(first_ptr + part), tl.load(last_ptr + part), tl.load(slot_ptr + part)
    q = tl.load(q_ptr + b * q_b + h * q_h + row * q_n + d, mask=d < D, other=0.0).to(ACC)[None, :]
    a = q
    if SCORE != 0:
        a = tl.load(a_ptr + h * D + d, mask=d < D, other=0.0).to(ACC)[None, :]
    out = tl.load(out_ptr + b * out_b + h * out_h + row * out_n + dv, mask=dv < DV, other=0.0).to(ACC)
    grad = tl.load(grad_ptr + b * grad_b + h * grad_h + row * grad_n + dv, mask=dv < DV, other=0.0).to(ACC)
    lse, rest = tl.load(lse_ptr + bh * num_queries + row + one), tl.load(rest_ptr + bh * num_queries + row + one)
    dead = lse == float("-inf")
    mean = tl.sum(out * grad, 0)
    if DELTA:
        mean += tl.load(delta_ptr + bh * num_queries + row)
    keys = k_ptr + b * k_b + (h // group) * k_h
    values = v_ptr + b * v_b + (h // value_group) * v_h
    of_q = tl.zeros([BD], ACC)
    of_a = tl.zeros([BD], ACC)
    for start in range(first, last, BE):
        e = start + lane
        real = e < last
        j = tl.load(source_ptr + e, mask=real, other=0)
        s = tl.load(scores_ptr + bh * num_edges + e, mask=real, other=0.0)
        logit = s
        if BIAS:
            bias = tl.load(bias_ptr + b * bias_b + h * bias_h + e * bias_e, mask=real, other=0.0).to(ACC)
            logit = tl.where(bias == float("-inf"), bias, s + bias)
        p = tl.exp(tl.where(real & ~dead, logit - tl.where(dead, 0.0, lse) - rest, float("-inf")))
        used = p != 0
        v = tl.load(values + j[:, None] * v_n + dv[None, :], mask=used[:, None] & (dv < DV)[None, :], other=0.0).to(ACC)
        g = tl.sum(v * grad[None, :], 1)
        if OF_WEIGHTS:
            g += tl.load(grad_weights_ptr + bh * num_edges + e, mask=real, other=0.0)
        keep = p
        if DROPOUT:
            factor = kept(tl.load(seed_ptr).to(tl.uint64), bh * num_edges + e, RATE, ACC)
            g *= factor
            keep = p * factor
        g = tl.where(used, p * (g - mean), 0.0)
        if OF_BIAS:
            tl.store(grad_bias_ptr + bh * num_edges + e, g, mask=real)
        if SCORE == 0:
            if SOFTCAP > 0:
                ratio = s / SOFTCAP
                g = g * (1 - ratio * ratio)
            g = tl.where(used, g * SCALE, 0.0)
        tl.store(p_ptr + bh * num_edges + e, keep, mask=real)
        tl.store(g_ptr + bh * num_edges + e, g, mask=real)
        within = used[:, None] & (d < D)[None, :]
        k = tl.load(keys + j[:, None] * k_n + d[None, :], mask=within, other=0.0).to(ACC)
        if SCORE == 0:
            of_q += tl.sum(g[:, None] * k, 0)
        else:
            at = j
            if TERM:
                at = tl.load(order_ptr + e, mask=real, other=0)
                k += tl.load(
                    term_ptr + b * term_b + h * term_h + at[:, None] * term_e + d[None, :], mask=within, other=0.0
                ).to(ACC)
            x = q + k
            if SCORE == 1:
                active, rise = tl.where(x > 0, x, SLOPE * x), tl.where(x > 0, tl.full(x.shape, 1.0, ACC), SLOPE)
            else:
                active = tanh(x)
                rise = 1 - active * active
            of_x = tl.where(within, g[:, None] * a * rise, 0.0)
            of_q += tl.sum(of_x, 0)
            if OF_A:
                of_a += tl.sum(tl.where(within, g[:, None] * active, 0.0), 0)
            if OF_TERM:
                tl.store(
                    grad_term_ptr + b * gt_b + h * gt_h + at[:, None] * gt_e + d[None, :], of_x,
                    mask=real[:, None] & (d < D)[None, :],
                )  # fmt: skip
    if slot < 0:
        tl.store(grad_q_ptr + b * gq_b + h * gq_h + row * gq_n + d, of_q, mask=d < D)
    else:
        tl.store(sums_ptr + (bh * slots + slot) * D + d, of_q, mask=d < D)
    if OF_A:
        tl.store(grad_a_ptr + (bh * num_parts + part) * D + d, of_a, mask=d < D)


@triton.jit
def key_kernel(
    q_ptr, k_ptr, a_ptr, term_ptr, g_ptr, grad_k_ptr, sums_ptr, target_ptr, source_order_ptr, order_ptr,
    row_ptr, first_ptr, last_ptr, slot_ptr,
    q_b, q_h, q_n, k_b, k_h, k_n, term_b, term_h, term_e, gk_b, gk_h, gk_n,
    heads, key_heads, group, num_edges, slots,
    D: tl.constexpr, BD: tl.constexpr, BE: tl.constexpr, SCORE: tl.constexpr, SLOPE: tl.constexpr,
    TERM: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Σ g · (gradient of the score by the key) over the edges that leave a key, over the heads that read it."""
    part, bk = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(row_ptr + part)
    if row < 0:
        return
    b, hk = bk // key_heads, bk % key_heads
    first, last, slot = tl.load(first_ptr + part), tl.load(last_ptr + part), tl.load(slot_ptr + part)
    d, lane = tl.arange(0, BD), tl.arange(0, BE)
    sums = tl.zeros([BD], ACC)
    k = tl.zeros([1, BD], ACC)
    if SCORE != 0:
        k = tl.load(k_ptr + b * k_b + hk * k_h + row * k_n + d, mask=d < D, other=0.0).to(ACC)[None, :]
    for h in range(hk * group, hk * group + group):
        for start in range(first, last, BE):
            at = start + lane
            real = at < last
            e = tl.load(source_order_ptr + at, mask=real, other=0)
            i = tl.load(target_ptr + e, mask=real, other=0)
            g = tl.load(g_ptr + (b * heads + h) * num_edges + e, mask=real, other=0.0)
            within = (real & (g != 0))[:, None] & (d < D)[None, :]
            q = tl.load(q_ptr + b * q_b + h * q_h + i[:, None] * q_n + d[None, :], mask=within, other=0.0).to(ACC)
            if SCORE == 0:
                sums += tl.sum(g[:, None] * q, 0)
            else:
                a = tl.load(a_ptr + h * D + d, mask=d < D, other=0.0).to(ACC)[None, :]
                x = q + k
                if TERM:
                    place = tl.load(order_ptr + e, mask=real, other=0)
                    x += tl.load(
                        term_ptr + b * term_b + h * term_h + place[:, None] * term_e + d[None, :],
                        mask=within, other=0.0,
                    ).to(ACC)  # fmt: skip
                if SCORE == 1:
                    rise = tl.where(x > 0, tl.full(x.shape, 1.0, ACC), SLOPE)
                else:
                    active = tanh(x)
                    rise = 1 - active * active
                sums += tl.sum(tl.where(within, g[:, None] * a * rise, 0.0), 0)
    if slot < 0:
        tl.store(grad_k_ptr + b * gk_b + hk * gk_h + row * gk_n + d, sums, mask=d < D)
    else:
        tl.store(sums_ptr + (bk * slots + slot) * D + d, sums, mask=d < D)


@triton.jit
def value_kernel(
    grad_ptr, p_ptr, grad_v_ptr, sums_ptr, target_ptr, source_order_ptr, row_ptr, first_ptr, last_ptr, slot_ptr,
    grad_b, grad_h, grad_n, gv_b, gv_h, gv_n, heads, value_heads, group, num_edges, slots,
    DV: tl.constexpr, BDV: tl.constexpr, BE: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """Σ weight · (gradient of out) over the edges that leave a key, over the heads that read its value."""
    part, bv = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row = tl.load(row_ptr + part)
    if row < 0:
        return
    b, hv = bv // value_heads, bv % value_heads
    first, last, slot = tl.load(first_ptr + part), tl.load(last_ptr + part), tl.load(slot_ptr + part)
    dv, lane = tl.arange(0, BDV), tl.arange(0, BE)
    sums = tl.zeros([BDV], ACC)
    for h in range(hv * group, hv * group + group):
        for start in range(first, last, BE):
            at = start + lane
            real = at < last
            e = tl.load(source_order_ptr + at, mask=real, other=0)
            i = tl.load(target_ptr + e, mask=real, other=0)
            p = tl.load(p_ptr + (b * heads + h) * num_edges + e, mask=real, other=0.0)
            grad = tl.load(
                grad_ptr + b * grad_b + h * grad_h + i[:, None] * grad_n + dv[None, :],
                mask=(real & (p != 0))[:, None] & (dv < DV)[None, :], other=0.0,
            )  # fmt: skip
            sums += tl.sum(p[:, None] * grad.to(ACC), 0)
    if slot < 0:
        tl.store(grad_v_ptr + b * gv_b + hv * gv_h + row * gv_n + dv, sums, mask=dv < DV)
    else:
        tl.store(sums_ptr + (bv * slots + slot) * DV + dv, sums, mask=dv < DV)
