// Attention over an edge list, forward. No number is ever copied to an edge but its logit: each query walks over its
// edges in blocks, with the softmax kept up to date.
#include "edge_walk.h"

namespace attnops {
namespace ATTNOPS_LEVEL {
namespace {

// Over the numbers of a block: whole vectors, then what is left.

template <typename T>
T largest_of(const T* s, int count, T start) {
    constexpr int N = WIDTH<T>;
    int e = 0;
    if (count >= N) {
        auto tops = spread<N>(start);
        for (; e + N <= count; e += N) {
            auto numbers = load<N>(s + e);
            tops = numbers > tops ? numbers : tops;
        }
        start = largest<N, T>(tops);
    }
    for (; e < count; ++e) start = s[e] > start ? s[e] : start;
    return start;
}

template <typename T>
T sum_of(const T* s, int count) {
    constexpr int N = WIDTH<T>;
    int e = 0;
    T total = 0;
    if (count >= N) {
        Vector<T, N> totals{};
        for (; e + N <= count; e += N) totals += load<N>(s + e);
        total = sum<N, T>(totals);
    }
    for (; e < count; ++e) total += s[e];
    return total;
}

}  // namespace

template <typename T>
int EdgeWalk<T>::forward() {
    Pieces pieces(call.pointer, call.queries, call.piece);
    const std::int64_t width = call.value_dim + 2;  // of a part: the sum, its largest logit, its denominator
    Scratch<T> parts(call.batches * pieces.parts() * heads * width);
    if (!parts.data) return 1;
    int failed = 0;
    parallel(call.batches * pieces.count(), call.threads, [&](std::int64_t task) {
        const std::int64_t b = task / pieces.count();
        const Piece& piece = pieces[task % pieces.count()];
        Scratch<T> state(heads * (BLOCK + call.dim + 2) + 3 * N);
        if (!state.data) return __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
        T *logits = state.data, *top = logits + heads * (BLOCK + call.dim) + N, *total = top + heads + N;
        if (piece.part >= 0) {
            T* part = parts.data + (b * pieces.parts() + piece.part) * heads * width;
            attend(b, piece.first_row, piece.first_edge, piece.last_edge, part, call.value_dim,
                   part + heads * call.value_dim, part + heads * (call.value_dim + 1), logits);
            return;
        }
        for (std::int64_t i = piece.first_row; i < piece.last_row; ++i) {
            attend(b, i, call.pointer[i], call.pointer[i + 1], out.at(b, 0, i), out.head, top, total, logits);
            finish(b, i, top, total);
        }
    });
    if (failed) return 1;
    parallel(call.batches * pieces.hub_count(), call.threads, [&](std::int64_t task) {
        const std::int64_t b = task / pieces.hub_count();
        const Hub& hub = pieces.hub(task % pieces.hub_count());
        join(b, hub, parts.data + (b * pieces.parts() + hub.first_part) * heads * width);
    });
    if (weights)
        parallel(call.batches * pieces.count(), call.threads, [&](std::int64_t task) {
            const Piece& piece = pieces[task % pieces.count()];
            for (std::int64_t i = piece.first_row; i < piece.last_row; ++i)
                weigh(task / pieces.count(), i, later(call.pointer[i], piece.first_edge),
                      earlier(call.pointer[i + 1], piece.last_edge));
        });
    return 0;
}

// Σ exp(logit − top) v over some edges of query i, its largest logit and its denominator, for each head. All heads
// go through a block together, step by step: the loads of one do not wait for the softmax of another. Those of head
// h lie at s + h · count.
template <typename T>
void EdgeWalk<T>::attend(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last, T* sums,
                         std::int64_t step, T* top, T* total, T* s) const {
    clear(sums, step, heads, call.value_dim);
    for (std::int64_t h = 0; h < heads; ++h) top[h] = -INFINITE<T>, total[h] = 0;
    Block block;
    block.query = s + heads * BLOCK + N;
    scale_query(b, i, s + heads * BLOCK + N);
    for (; first < last; first += BLOCK) {
        point(block, b, first, last);
        const int count = block.count;
        for (std::int64_t h = 0; h < value_heads; ++h)
            fetch(value, call.source, first, count, b, h * value.head, call.value_dim);
        score(b, i, block, s);
        for (std::int64_t h = 0; h < heads; ++h) {
            if (scores) copy(scores + pair(b, h, first), s + h * count, count);
            add_bias(b, h, block, s + h * count);
            lower(s + h * count, count, sums + h * step, top[h], total[h]);
        }
        exponentiate(s, heads * count);
        for (std::int64_t h = 0; h < heads; ++h) {
            fetch(key, call.source, first + count, count, b, key_offset(h), call.dim);
            total[h] += sum_of(s + h * count, count);
            if (call.dropout > 0) drop(pair(b, h, first), count, s + h * count);
            add_used(by_value_dim, sums + h * step, s + h * count, block.values, value_offset(h), count,
                     call.value_dim);
        }
    }
}

template <typename T>
void EdgeWalk<T>::scale_query(std::int64_t b, std::int64_t i, T* scaled) const {
    for (std::int64_t h = 0; h < heads; ++h) {
        const T* row = query.at(b, h, i);
        for (std::int64_t d = 0; d < call.dim; ++d) scaled[h * call.dim + d] = row[d] * scale;
    }
}

// Logits to logit − top; what was summed before is brought to the new top.
template <typename T>
void EdgeWalk<T>::lower(T* s, int count, T* sums, T& top, T& total) const {
    T higher = largest_of(s, count, total == 0 ? -INFINITE<T> : top);
    if (higher == -INFINITE<T>) higher = 0;  // all forbidden, or NaN
    if (total != 0 && top != higher) {
        const T shrink = exponential<N>(spread<N>(top - higher))[0];
        total *= shrink;
        for (std::int64_t d = 0; d < call.value_dim; ++d) sums[d] *= shrink;
    }
    top = higher;
    for (int e = 0; e < count; ++e) s[e] -= higher;
}

// Sums to averages, in place; no allowed edge gives zeros and lse −inf.
template <typename T>
void EdgeWalk<T>::finish(std::int64_t b, std::int64_t i, const T* top, T* total) const {
    for (std::int64_t h = 0; h < heads; ++h) {
        T* row = out.at(b, h, i);
        const T share = total[h] == 0 ? T(0) : 1 / total[h];
        for (std::int64_t d = 0; d < call.value_dim; ++d) row[d] *= share;
    }
    for (std::int64_t h = 0; h < heads; h += N) {
        V sums = load<N>(total + h);
        store<N>(total + h, sums == T(0) ? spread<N>(-INFINITE<T>) : logarithm<N>(sums));
    }
    for (std::int64_t h = 0; h < heads; ++h) keep_lse(b, h, i, top[h], total[h]);
}

template <typename T>
void EdgeWalk<T>::join(std::int64_t b, const Hub& hub, const T* parts) const {
    const std::int64_t dim = call.value_dim, width = heads * (dim + 2);
    for (std::int64_t h = 0; h < heads; ++h) {
        T top = -INFINITE<T>, total = 0;
        for (std::int64_t part = 0; part < hub.last_part - hub.first_part; ++part) {
            const T its = parts[part * width + heads * dim + h];
            if (its > top || its != its) top = its;
        }
        T* row = out.at(b, h, hub.row);
        for (std::int64_t d = 0; d < dim; ++d) row[d] = 0;
        for (std::int64_t part = 0; part < hub.last_part - hub.first_part; ++part) {
            const T* its = parts + part * width;
            if (its[heads * (dim + 1) + h] == 0) continue;  // all forbidden
            const T share = static_cast<T>(__builtin_exp(its[heads * dim + h] - top));
            total += share * its[heads * (dim + 1) + h];
            for (std::int64_t d = 0; d < dim; ++d) row[d] += share * its[h * dim + d];
        }
        const T share = total == 0 ? T(0) : 1 / total;
        for (std::int64_t d = 0; d < dim; ++d) row[d] *= share;
        keep_lse(b, h, hub.row, total == 0 ? T(0) : top, static_cast<T>(__builtin_log(total)));
    }
}

template <typename T>
void EdgeWalk<T>::weigh(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last) const {
    Block block;
    T s[BLOCK + N];
    for (; first < last; first += BLOCK) {
        block.first = first;
        block.count = static_cast<int>(last - first < BLOCK ? last - first : BLOCK);
        for (std::int64_t h = 0; h < heads; ++h) {
            const std::int64_t at = pair(b, h, first);
            copy(s, scores + at, block.count);
            normalise(b, h, i, block, s);
            exponentiate(s, block.count);
            if (call.dropout > 0) drop(at, block.count, s);
            copy(weights + at, s, block.count);
        }
    }
}

int edge_attention(const EdgeAttention& call) {
    return call.is_double ? EdgeWalk<double>(call).forward() : EdgeWalk<float>(call).forward();
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
