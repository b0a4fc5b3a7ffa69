// Attention over an edge list, backward: each query walks over its edges once more (its gradient), then each key walks
// over the edges that leave it (gradients of key and value), reading the two numbers that the first walk left at each
// edge and head.
#include "edge_walk.h"

namespace attnops {
namespace ATTNOPS_LEVEL {

template <typename T>
int EdgeWalk<T>::backward() {
    const std::int64_t of_query = heads * call.dim;
    {
        Pieces pieces(call.pointer, call.queries, call.piece);
        Scratch<T> parts(call.batches * pieces.parts() * of_query);
        Scratch<T> of_a(grad_a ? call.batches * pieces.count() * of_query : 0);
        if (!parts.data || !of_a.data) return 1;
        int failed = 0;
        parallel(call.batches * pieces.count(), call.threads, [&](std::int64_t task) {
            const std::int64_t b = task / pieces.count();
            const Piece& piece = pieces[task % pieces.count()];
            T* sum_a = grad_a ? of_a.data + task * of_query : nullptr;
            Scratch<T> gradients(heads * BLOCK * 2 + 2 * N);
            if (!gradients.data) return __atomic_store_n(&failed, 1, __ATOMIC_RELAXED);
            if (piece.part >= 0) {
                T* part = parts.data + (b * pieces.parts() + piece.part) * of_query;
                differentiate(b, piece.first_row, piece.first_edge, piece.last_edge, part, call.dim, sum_a,
                              gradients.data);
                return;
            }
            for (std::int64_t i = piece.first_row; i < piece.last_row; ++i) {
                T* row = grad_query.at(b, 0, i);
                clear(row, grad_query.head, heads, call.dim);
                differentiate(b, i, call.pointer[i], call.pointer[i + 1], row, grad_query.head, sum_a,
                              gradients.data);
            }
        });
        if (failed) return 1;
        for (std::int64_t b = 0; b < call.batches; ++b)
            for (std::int64_t h = 0; h < pieces.hub_count(); ++h) {
                const Hub& hub = pieces.hub(h);
                add_parts(grad_query.at(b, 0, hub.row), grad_query.head, heads, call.dim,
                          parts.data + (b * pieces.parts() + hub.first_part) * of_query, of_query,
                          hub.last_part - hub.first_part);
            }
        if (grad_a)
            add_parts(grad_a, call.dim, heads, call.dim, of_a.data, of_query, call.batches * pieces.count());
    }
    const std::int64_t of_key = key_heads * call.dim, of_value = value_heads * call.value_dim;
    Pieces pieces(call.source_pointer, call.keys, call.piece);
    Scratch<T> parts(call.batches * pieces.parts() * (of_key + of_value));
    if (!parts.data) return 1;
    parallel(call.batches * pieces.count(), call.threads, [&](std::int64_t task) {
        const std::int64_t b = task / pieces.count();
        const Piece& piece = pieces[task % pieces.count()];
        if (piece.part >= 0) {
            T* part = parts.data + (b * pieces.parts() + piece.part) * (of_key + of_value);
            gather(b, piece.first_row, piece.first_edge, piece.last_edge, part, call.dim, part + of_key,
                   call.value_dim);
            return;
        }
        for (std::int64_t j = piece.first_row; j < piece.last_row; ++j) {
            T *of_j = grad_key.at(b, 0, j), *of_vj = grad_value.at(b, 0, j);
            clear(of_j, grad_key.head, key_heads, call.dim);
            clear(of_vj, grad_value.head, value_heads, call.value_dim);
            gather(b, j, call.source_pointer[j], call.source_pointer[j + 1], of_j, grad_key.head, of_vj,
                   grad_value.head);
        }
    });
    for (std::int64_t b = 0; b < call.batches; ++b)
        for (std::int64_t h = 0; h < pieces.hub_count(); ++h) {
            const Hub& hub = pieces.hub(h);
            const T* first = parts.data + (b * pieces.parts() + hub.first_part) * (of_key + of_value);
            const std::int64_t count = hub.last_part - hub.first_part;
            add_parts(grad_key.at(b, 0, hub.row), grad_key.head, key_heads, call.dim, first, of_key + of_value,
                      count);
            add_parts(grad_value.at(b, 0, hub.row), grad_value.head, value_heads, call.value_dim, first + of_key,
                      of_key + of_value, count);
        }
    return 0;
}

// With p the weight and g the logit's gradient of a pair, g = p (k·grad − delta) where k is what dropout kept:
// adds to the query's gradient, and leaves (k p, g) at each pair for `gather`.
template <typename T>
void EdgeWalk<T>::differentiate(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last, T* of_query,
                                std::int64_t step, T* of_a, T* p) const {
    Block block;
    T* g = p + heads * BLOCK + N;
    for (; first < last; first += BLOCK) {
        point(block, b, first, last);
        const int count = block.count;
        for (std::int64_t h = 0; h < key_heads; ++h)
            fetch(key, call.source, first, count, b, h * key.head, call.dim);
        by_value_dim.dots(grad_out.at(b, 0, i), {heads, grad_out.head, value.head, value_group}, block.values,
                          count, static_cast<int>(call.value_dim), g);
        for (std::int64_t h = 0; h < heads; ++h) {
            copy(p + h * count, scores + pair(b, h, first), count);
            normalise(b, h, i, block, p + h * count);
        }
        exponentiate(p, heads * count);
        for (std::int64_t h = 0; h < heads; ++h) share_out(b, h, i, block, p + h * count, g + h * count);
        for (std::int64_t h = 0; h < heads; ++h) {
            fetch(value, call.source, first + count, count, b, value_offset(h), call.value_dim);
            if (call.score == 0)
                add_used(by_dim, of_query + h * step, g + h * count, block.keys, key_offset(h), count, call.dim);
            else
                differentiate_additive(b, h, i, block, g + h * count, of_query + h * step,
                                       of_a ? of_a + h * call.dim : nullptr);
        }
    }
}

// From weights and their gradients to what dropout kept of them and the gradients of scores, in place and in
// `shares`.
template <typename T>
void EdgeWalk<T>::share_out(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, T* p, T* g) const {
    const std::int64_t at = pair(b, h, block.first);
    if (grad_weights)
        for (int e = 0; e < block.count; ++e) g[e] += grad_weights[at + e];
    T keep[BLOCK];
    if (call.dropout > 0) {
        for (int e = 0; e < block.count; ++e) keep[e] = 1;
        drop(at, block.count, keep);
        for (int e = 0; e < block.count; ++e) g[e] *= keep[e];
    }
    const T mean = average(b, h, i);
    for (int e = 0; e < block.count; ++e) g[e] = p[e] == 0 ? T(0) : p[e] * (g[e] - mean);
    if (grad_bias) copy(grad_bias + at, g, block.count);
    if (call.dropout > 0)
        for (int e = 0; e < block.count; ++e) p[e] *= keep[e];
    if (call.score == 0) through_dot(at, block.count, g);
    T* share = shares + ((b * edges + block.first) * heads + h) * 2;
    for (int e = 0; e < block.count; ++e, share += 2 * heads) share[0] = p[e], share[1] = g[e];
}

// Σ_e weight_e · (its gradient): what the softmax takes off every logit's gradient.
template <typename T>
T EdgeWalk<T>::average(std::int64_t b, std::int64_t h, std::int64_t i) const {
    const T *row = out.at(b, h, i), *grad = grad_out.at(b, h, i);
    T total = delta ? delta[(b * heads + h) * call.queries + i] : T(0);
    return total + dot(row, grad, static_cast<int>(call.value_dim));
}

// From the gradient of a capped and scaled score to that of the dot product.
template <typename T>
void EdgeWalk<T>::through_dot(std::int64_t at, int count, T* g) const {
    for (int e = 0; e < count; ++e) {
        T slope_of_cap = 1;
        if (softcap > 0) {
            const T ratio = scores[at + e] / softcap;
            slope_of_cap = 1 - ratio * ratio;
        }
        g[e] = g[e] == 0 ? T(0) : g[e] * slope_of_cap * scale;
    }
}

template <typename T>
void EdgeWalk<T>::differentiate_additive(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block,
                                         const T* g, T* of_query, T* of_a) const {
    T used[BLOCK];
    const T *rows[BLOCK], *terms[BLOCK];
    T* of_terms[BLOCK];
    int n = 0;
    for (int e = 0; e < block.count; ++e) {
        T* of_term = grad_term ? grad_term.at(b, 0, call.term_order[block.first + e]) : nullptr;
        if (g[e] == 0) {
            if (of_term) clear(of_term + h * grad_term.head, 0, 1, call.dim);
            continue;
        }
        used[n] = g[e], rows[n] = block.keys[e], of_terms[n] = of_term;
        if (term) terms[n] = block.terms[e];
        ++n;
    }
    additive.gradients(a + h * call.dim, slope, query.at(b, h, i), rows, key_offset(h),
                       term ? terms : nullptr, h * term.head, used, n, static_cast<int>(call.dim), of_query, of_a,
                       grad_term ? of_terms : nullptr, h * grad_term.head);
}

// Adds to the gradients of key j and its value what some edges that leave it give.
template <typename T>
void EdgeWalk<T>::gather(std::int64_t b, std::int64_t j, std::int64_t first, std::int64_t last, T* of_key,
                         std::int64_t key_step, T* of_value, std::int64_t value_step) const {
    const T *queries[BLOCK], *grads[BLOCK], *terms[BLOCK], *share[BLOCK];
    T p[BLOCK], g[BLOCK];
    for (; first < last; first += BLOCK) {
        const int count = static_cast<int>(last - first < BLOCK ? last - first : BLOCK);
        for (int e = 0; e < count; ++e) {
            const std::int64_t place = call.source_order[first + e], i = call.target[place];
            queries[e] = query.at(b, 0, i);
            grads[e] = grad_out.at(b, 0, i);
            share[e] = shares + (b * edges + place) * heads * 2;
            if (term) terms[e] = term.at(b, 0, call.term_order[place]);
        }
        fetch_places(b, first + 2 * count, count);
        std::int64_t next[BLOCK];
        const int ahead = first + 2 * count > edges ? 0 : count;
        for (int e = 0; e < ahead; ++e) next[e] = call.target[call.source_order[first + count + e]];
        for (std::int64_t h = 0; h < heads; ++h) {
            fetch(query, next, 0, ahead, b, h * query.head, call.dim);
            fetch(grad_out, next, 0, ahead, b, h * grad_out.head, call.value_dim);
            for (int e = 0; e < count; ++e) p[e] = share[e][2 * h], g[e] = share[e][2 * h + 1];
            add_used(by_value_dim, of_value + (value_group == 1 ? h : h / value_group) * value_step, p, grads,
                     h * grad_out.head, count, call.value_dim);
            T* row = of_key + (group == 1 ? h : h / group) * key_step;
            if (call.score == 0)
                add_used(by_dim, row, g, queries, h * query.head, count, call.dim);
            else
                gather_additive(b, h, j, count, g, queries, terms, row);
        }
    }
}

// Asks for what the pairs at `count` entries of the transpose hold.
template <typename T>
void EdgeWalk<T>::fetch_places(std::int64_t b, std::int64_t first, int count) const {
    if (first + count > edges) return;
    for (int e = 0; e < count; ++e) {
        const std::int64_t place = call.source_order[first + e];
        __builtin_prefetch(call.target + place);
        prefetch(shares + (b * edges + place) * heads * 2, heads * 2);
    }
}

template <typename T>
void EdgeWalk<T>::gather_additive(std::int64_t b, std::int64_t h, std::int64_t j, int count, const T* g,
                                  const T* const* queries, const T* const* terms, T* of_key) const {
    T used[BLOCK];
    const T *used_queries[BLOCK], *used_terms[BLOCK];
    int n = 0;
    for (int e = 0; e < count; ++e) {
        if (g[e] == 0) continue;
        used[n] = g[e], used_queries[n] = queries[e];
        if (term) used_terms[n] = terms[e];
        ++n;
    }
    additive.gradients(a + h * call.dim, slope, key.at(b, group == 1 ? h : h / group, j), used_queries,
                       h * query.head, term ? used_terms : nullptr, h * term.head, used, n,
                       static_cast<int>(call.dim), of_key, nullptr, nullptr, 0);
}

int edge_attention_backward(const EdgeAttention& call) {
    return call.is_double ? EdgeWalk<double>(call).backward() : EdgeWalk<float>(call).backward();
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
