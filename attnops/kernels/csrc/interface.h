// What crosses from Python: plain structures of sizes, strides and raw pointers, mirrored field by field by the
// ctypes structures in attnops/kernels. Every function returns 0, or 1 where memory ran out.
#pragma once

#include <cstdint>

// Raised with every change of a structure or a function, so that a stale build is refused, not misread.
#define ATTNOPS_INTERFACE 2

extern "C" {

// Rows of a `[B, H, N, D]` tensor whose last axis is contiguous; strides in elements.
struct Rows {
    void* data;
    std::int64_t batch, head, row;
};

// Attention over an edge list. Edges lie in the order of their targets ("places"): those of query i at
// pointer[i] … pointer[i + 1]. All real data share one dtype, float or double.
struct EdgeAttention {
    std::int64_t batches, heads, key_heads, value_heads, queries, keys, edges, dim, value_dim;
    std::int32_t is_double, threads;
    std::int64_t piece;  // edges that one task takes, about
    // the graph, and its transpose: source_order[source_pointer[j] …] are the places whose source is j
    const std::int64_t *pointer, *source, *target, *source_pointer, *source_order;
    Rows query, key, value;
    // score: 0 scale · q·k, softcapped where softcap > 0; 1 aᵀ LeakyReLU(q + k + term); 2 aᵀ tanh(q + k + term)
    std::int32_t score, pad;
    double scale, softcap, slope;
    void* a;                         // [H, D]
    Rows term;                       // [B, H, E, D], or null; that of a place stands in row term_order[place]
    const std::int64_t* term_order;
    Rows bias;                       // [B, H, E] by place, or null: `row` is the step of an edge; strides may be 0
    double dropout;
    const std::int64_t* seed;
    // forward: out and lse, with rest [B, H, Nq], what rounding took off lse, and scores [B, H, E] (before the bias) where
    // not null; weights [B, H, E] where not null
    Rows out;
    void *lse, *rest, *scores, *weights;
    // backward: gradients that come in …
    Rows grad_out;
    void* delta;         // [B, H, Nq]: Σ weights · their gradients − lse's gradient, added to out · grad_out; or null
    void* grad_weights;  // [B, H, E] by place, or null
    // … and go out; null where not wanted
    Rows grad_query, grad_key, grad_value, grad_term;
    void* grad_bias;  // [B, H, E] by place
    void* grad_a;     // [H, D]
    void* shares;     // scratch [B, E, H, 2]: weight and logit's gradient of each pair
};

// An edge list to sort: see Sorted in attnops/patterns/sorting.py, whose fields the last eight are.
struct SortEdges {
    const void *source, *target;  // [E], int32 where is_narrow, else int64
    std::int64_t edges, queries, keys;
    std::int32_t is_narrow, threads;
    std::int64_t *pointer, *order, *place, *sorted_target, *sorted_source;
    std::int64_t *source_pointer, *source_order, *source_place;
};

// y [rows, out] = x [rows, in] · weightᵀ [out, in] + bias [out]; strides in elements, the last axes contiguous. All real
// data share one dtype, float or double.
struct LinearRows {
    std::int64_t rows, in, out;
    std::int32_t is_double, threads;
    const void *x, *weight, *bias;  // bias: or null
    std::int64_t x_row, weight_row;
    void* y;  // contiguous
};
}

#define ATTNOPS_DECLARE_LEVEL(level)                     \
    namespace attnops {                                  \
    namespace level {                                    \
    int edge_attention(const EdgeAttention&);            \
    int edge_attention_backward(const EdgeAttention&);   \
    int linear_rows(const LinearRows&);                  \
    }                                                    \
    }

ATTNOPS_DECLARE_LEVEL(plain)
ATTNOPS_DECLARE_LEVEL(v2)
ATTNOPS_DECLARE_LEVEL(v3)
ATTNOPS_DECLARE_LEVEL(v4)
