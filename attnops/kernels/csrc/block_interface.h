// What crosses from Python for attention over blocks of a grid: see interface.h, whose `Rows` is used here.
#pragma once

#include "interface.h"

extern "C" {

enum { MOST_TERMS = 4 };

// b_ij = table[b, h, row_i, clamp(column_j - shift_i + offset, 0, length - 1)]. The table is contiguous; a stride is 0
// where its axis has one entry.
struct BlockTable {
    void *table, *grad;  // grad has the table's shape; null where not wanted
    std::int64_t batch, head, rows, length;
    const std::int64_t *row, *shift, *column;  // [B|1, Nq], [B|1, Nq], [B|1, Nk]; null: i, 0 and j
    std::int64_t row_batch, shift_batch, column_batch, offset;
    std::int64_t diagonal;  // 1: column_j - shift_i is j - i
};

// b_ij = slope[h] · |x_i - x_j|.
struct BlockSlope {
    void *slope, *grad;          // [H]
    const double *query, *key;   // x: [B|1, Nq], [B|1, Nk]
    std::int64_t query_batch, key_batch;
};

// softmax(cap(scale · q·k) + tables + slopes + additive) v over the keys in each query's ranges. All real data share
// one dtype, float or double.
struct BlockAttention {
    std::int64_t batches, heads, key_heads, queries, keys, dim, value_dim;
    std::int32_t is_double, threads;
    double scale, softcap, dropout;
    const std::int64_t* seed;
    std::int64_t first_query, first_key;  // where these rows lie in the whole problem: dropout counts by it
    Rows query, key, value;
    // [B|1, Nq|1, ranges, 2], half open; null: every key
    const std::int32_t* intervals;
    std::int64_t interval_batch, interval_query, ranges;
    std::int32_t num_tables, num_slopes;
    BlockTable tables[MOST_TERMS];
    BlockSlope slopes[MOST_TERMS];
    const void* additive;  // [B|1, H|1, Nq|1, Nk|1], -inf forbids; null: 0
    std::int64_t additive_batch, additive_head, additive_query, additive_key;
    Rows out;
    void* lse;                // [B, H, Nq]
    void* rest;               // [B, H, Nq]: what rounding took off lse; backward, null: nothing
    std::int64_t* not_finite;  // set to 1 where some number of out is not; null where nobody asks
    // backward; grad_query, grad_key, grad_value are added to
    Rows grad_out;
    const void* grad_lse;  // [B, H, Nq] or null
    Rows grad_query, grad_key, grad_value;
    void* grad_additive;  // [B, H, Nq, Nk] or null
};
}

#define ATTNOPS_DECLARE_BLOCKS(level)                     \
    namespace attnops {                                   \
    namespace level {                                     \
    int block_attention(const BlockAttention&);           \
    int block_attention_backward(const BlockAttention&);  \
    }                                                     \
    }

ATTNOPS_DECLARE_BLOCKS(plain)
ATTNOPS_DECLARE_BLOCKS(v2)
ATTNOPS_DECLARE_BLOCKS(v3)
ATTNOPS_DECLARE_BLOCKS(v4)
