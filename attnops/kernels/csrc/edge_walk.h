// What the walks over an edge list share: where its numbers lie, the scores of a block of edges, its weights.
#pragma once

#include "edge_rows.h"
#include "interface.h"
#include "parallel.h"
#include "pieces.h"

#include <cstdlib>

namespace attnops {
namespace ATTNOPS_LEVEL {

inline std::int64_t later(std::int64_t left, std::int64_t right) { return left > right ? left : right; }
inline std::int64_t earlier(std::int64_t left, std::int64_t right) { return left < right ? left : right; }

constexpr int BLOCK = 64;  // edges whose logits are held at once

template <typename T>
struct Table {
    T* data;
    std::int64_t batch, head, row;

    explicit Table(const Rows& rows)
        : data(static_cast<T*>(rows.data)), batch(rows.batch), head(rows.head), row(rows.row) {}
    explicit operator bool() const { return data != nullptr; }
    T* at(std::int64_t b, std::int64_t h, std::int64_t r) const { return data + b * batch + h * head + r * row; }
};

// Memory of one call; null where there is none.
template <typename T>
struct Scratch {
    T* data;
    explicit Scratch(std::int64_t count)
        : data(static_cast<T*>(std::calloc(static_cast<std::size_t>(count > 0 ? count : 1), sizeof(T)))) {}
    ~Scratch() { std::free(data); }
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;
};

// exp of each, in place; writes up to whole vectors.
template <typename T>
void exponentiate(T* s, std::int64_t count) {
    constexpr int N = WIDTH<T>;
    for (std::int64_t e = 0; e < count; e += N) store<N>(s + e, exponential<N>(load<N>(s + e)));
}

// 0, or 1 / (1 − rate): drawn from the seed and the place of a pair alone.
template <typename T>
T kept(std::uint64_t seed, std::uint64_t pair, double rate) {
    std::uint64_t bits = seed + (pair + 1) * 0x9e3779b97f4a7c15u;  // SplitMix64
    bits = (bits ^ (bits >> 30)) * 0xbf58476d1ce4e5b9u;
    bits = (bits ^ (bits >> 27)) * 0x94d049bb133111ebu;
    double uniform = static_cast<double>((bits ^ (bits >> 31)) >> 11) * 0x1p-53;
    return uniform < rate ? T(0) : static_cast<T>(1 / (1 - rate));
}

template <typename T>
class EdgeWalk {
    static constexpr int N = WIDTH<T>;
    using V = Vector<T, N>;

    const EdgeAttention& call;
    const std::int64_t heads, key_heads, value_heads, group, value_group, edges;
    const Table<T> query, key, value, term, bias, out, grad_out, grad_query, grad_key, grad_value, grad_term;
    const T* const a;
    T *const lse, *const rest, *const scores, *const weights, *const delta, *const grad_weights, *const grad_bias, *const grad_a,
        *const shares;
    const T scale, softcap, slope;
    const std::uint64_t seed;
    const RowLoops<T> by_dim, by_value_dim;
    const AdditiveLoops<T> additive;

public:
    explicit EdgeWalk(const EdgeAttention& c)
        : call(c), heads(c.heads), key_heads(c.key_heads), value_heads(c.value_heads),
          group(c.heads / c.key_heads), value_group(c.heads / c.value_heads), edges(c.edges),
          query(c.query), key(c.key), value(c.value), term(c.term), bias(c.bias), out(c.out), grad_out(c.grad_out),
          grad_query(c.grad_query), grad_key(c.grad_key), grad_value(c.grad_value), grad_term(c.grad_term),
          a(static_cast<const T*>(c.a)), lse(static_cast<T*>(c.lse)), rest(static_cast<T*>(c.rest)), scores(static_cast<T*>(c.scores)),
          weights(static_cast<T*>(c.weights)), delta(static_cast<T*>(c.delta)),
          grad_weights(static_cast<T*>(c.grad_weights)), grad_bias(static_cast<T*>(c.grad_bias)),
          grad_a(static_cast<T*>(c.grad_a)), shares(static_cast<T*>(c.shares)), scale(static_cast<T>(c.scale)),
          softcap(static_cast<T>(c.softcap)), slope(static_cast<T>(c.slope)),
          seed(c.seed ? static_cast<std::uint64_t>(*c.seed) : 0), by_dim(row_loops<T>(c.dim)),
          by_value_dim(row_loops<T>(c.value_dim)), additive(additive_loops<T>(c.dim, c.score == 2)) {}

    int forward();
    int backward();

private:
    // Of one block of edges: where their keys, values and terms lie, for head 0; and their query, scaled.
    struct Block {
        const T* query;
        std::int64_t first;
        int count;
        const T* keys[BLOCK];
        const T* values[BLOCK];
        const T* terms[BLOCK];
    };

    void point(Block& block, std::int64_t b, std::int64_t first, std::int64_t last) const {
        block.first = first;
        block.count = static_cast<int>(last - first < BLOCK ? last - first : BLOCK);
        for (int e = 0; e < block.count; ++e) {
            const std::int64_t j = call.source[first + e];
            block.keys[e] = key.at(b, 0, j);
            block.values[e] = value.at(b, 0, j);
            if (term) block.terms[e] = term.at(b, 0, call.term_order[first + e]);
        }
    }

    // Where the key and the value of a query's head lie beyond those of head 0.
    std::int64_t key_offset(std::int64_t h) const { return (group == 1 ? h : h / group) * key.head; }
    std::int64_t value_offset(std::int64_t h) const { return (value_group == 1 ? h : h / value_group) * value.head; }

    // Asks for the rows at the ends of `count` edges from `first` on, before they are reached.
    void fetch(const Table<T>& rows, const std::int64_t* ends, std::int64_t first, int count, std::int64_t b,
               std::int64_t offset, std::int64_t dim) const {
        if (first + count > edges) return;
        const T* row = rows.at(b, 0, 0) + offset;
        for (int e = 0; e < count; ++e) prefetch(row + ends[first + e] * rows.row, dim);
    }

    std::int64_t pair(std::int64_t b, std::int64_t h, std::int64_t place) const { return (b * heads + h) * edges + place; }

    // The scores of a block, softcapped, before the bias; those of head h at s + h · count.
    void score(std::int64_t b, std::int64_t i, const Block& block, T* s) const {
        const int count = block.count, dim = static_cast<int>(call.dim);
        if (call.score != 0) {
            for (std::int64_t h = 0; h < heads; ++h)
                additive.dots(a + h * call.dim, slope, query.at(b, h, i), block.keys, key_offset(h),
                              term ? block.terms : nullptr, h * term.head, count, dim, s + h * count);
            return;
        }
        by_dim.dots(block.query, {heads, call.dim, key.head, group}, block.keys, count, dim, s);
        if (softcap > 0)
            for (std::int64_t e = 0; e < heads * count; ++e)
                s[e] = softcap * static_cast<T>(__builtin_tanh(s[e] / softcap));
    }

    // Scores to logits: a pair whose bias is −inf is forbidden, whatever its score.
    void add_bias(std::int64_t b, std::int64_t h, const Block& block, T* s) const {
        if (!bias) return;
        const T* at = bias.at(b, h, block.first);
        for (int e = 0; e < block.count; ++e, at += bias.row) s[e] = *at == -INFINITE<T> ? *at : s[e] + *at;
    }

    static void copy(T* to, const T* from, int count) {
        for (int e = 0; e < count; ++e) to[e] = from[e];
    }

    // total += Σ coefficients[e] · row_e, without the rows of forbidden pairs: their coefficient is 0, and they may hold
    // garbage.
    void add_used(const RowLoops<T>& loops, T* total, const T* coefficients, const T* const* rows, std::int64_t offset,
                  int count, std::int64_t dim) const {
        int unused = 0;
        if (bias)
            for (int e = 0; e < count; ++e) unused += coefficients[e] == 0;
        if (unused == 0) {
            loops.add(total, coefficients, rows, offset, count, static_cast<int>(dim));
            return;
        }
        T used[BLOCK];
        const T* used_rows[BLOCK];
        int n = 0;
        for (int e = 0; e < count; ++e)
            if (coefficients[e] != 0) used[n] = coefficients[e], used_rows[n++] = rows[e];
        if (n) loops.add(total, used, used_rows, offset, n, static_cast<int>(dim));
    }

    static void clear(T* rows, std::int64_t step, std::int64_t count, std::int64_t dim) {
        for (std::int64_t h = 0; h < count; ++h)
            for (std::int64_t d = 0; d < dim; ++d) rows[h * step + d] = 0;
    }

    static void add_parts(T* rows, std::int64_t step, std::int64_t count, std::int64_t dim, const T* parts,
                          std::int64_t width, std::int64_t number) {
        clear(rows, step, count, dim);
        for (std::int64_t part = 0; part < number; ++part)
            for (std::int64_t h = 0; h < count; ++h)
                for (std::int64_t d = 0; d < dim; ++d) rows[h * step + d] += parts[part * width + h * dim + d];
    }

    __attribute__((noinline)) void drop(std::int64_t at, int count, T* factors) const {
        for (int e = 0; e < count; ++e) factors[e] *= kept<T>(seed, static_cast<std::uint64_t>(at + e), call.dropout);
    }

    // lse = top + log(total), and what rounding took off it: all of log(total) where logits are huge.
    void keep_lse(std::int64_t b, std::int64_t h, std::int64_t i, T top, T log_total) const {
        const std::int64_t at = (b * heads + h) * call.queries + i;
        lse[at] = top + log_total;
        if (rest) rest[at] = lse[at] == -INFINITE<T> ? T(0) : log_total - (lse[at] - top);
    }

    // From scores to log weights, in place; a query without an allowed edge has none.
    void normalise(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, T* s) const {
        const T denominator = lse[(b * heads + h) * call.queries + i], remainder = rest[(b * heads + h) * call.queries + i];
        add_bias(b, h, block, s);
        if (denominator == -INFINITE<T>)
            for (int e = 0; e < block.count; ++e) s[e] = -INFINITE<T>;
        else
            for (int e = 0; e < block.count; ++e) s[e] = s[e] - denominator - remainder;
    }

    // Forward, in edge_attention.cpp.
    void attend(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last, T* sums, std::int64_t step,
                T* top, T* total, T* s) const;
    void scale_query(std::int64_t b, std::int64_t i, T* scaled) const;
    void lower(T* s, int count, T* sums, T& top, T& total) const;
    void finish(std::int64_t b, std::int64_t i, const T* top, T* total) const;
    void join(std::int64_t b, const Hub& hub, const T* parts) const;
    void weigh(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last) const;

    // Backward, in edge_attention_backward.cpp.
    void differentiate(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last, T* of_query,
                       std::int64_t step, T* of_a, T* p) const;
    void share_out(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, T* p, T* g) const;
    T average(std::int64_t b, std::int64_t h, std::int64_t i) const;
    void through_dot(std::int64_t at, int count, T* g) const;
    void differentiate_additive(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, const T* g,
                                T* of_query, T* of_a) const;
    void gather(std::int64_t b, std::int64_t j, std::int64_t first, std::int64_t last, T* of_key,
                std::int64_t key_step, T* of_value, std::int64_t value_step) const;
    void fetch_places(std::int64_t b, std::int64_t first, int count) const;
    void gather_additive(std::int64_t b, std::int64_t h, std::int64_t j, int count, const T* g,
                         const T* const* queries, const T* const* terms, T* of_key) const;
};

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
