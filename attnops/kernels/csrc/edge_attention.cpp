// Attention over an edge list. No number is ever copied to an edge but its logit: each query walks over its edges in
// blocks, with the softmax kept up to date (forward, and gradient of the query); then each key walks over the edges
// that leave it (gradients of key and value), reading the two numbers that the first walk left at each edge and head.
#include "edge_rows.h"
#include "interface.h"
#include "parallel.h"
#include "pieces.h"

#include <cstdlib>

namespace attnops {
namespace ATTNOPS_LEVEL {
namespace {

std::int64_t later(std::int64_t left, std::int64_t right) { return left > right ? left : right; }
std::int64_t earlier(std::int64_t left, std::int64_t right) { return left < right ? left : right; }

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

// Over the numbers of one head, or of all: whole vectors, then what is left.

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
    T *const lse, *const scores, *const weights, *const delta, *const grad_weights, *const grad_bias, *const grad_a,
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
          a(static_cast<const T*>(c.a)), lse(static_cast<T*>(c.lse)), scores(static_cast<T*>(c.scores)),
          weights(static_cast<T*>(c.weights)), delta(static_cast<T*>(c.delta)),
          grad_weights(static_cast<T*>(c.grad_weights)), grad_bias(static_cast<T*>(c.grad_bias)),
          grad_a(static_cast<T*>(c.grad_a)), shares(static_cast<T*>(c.shares)), scale(static_cast<T>(c.scale)),
          softcap(static_cast<T>(c.softcap)), slope(static_cast<T>(c.slope)),
          seed(c.seed ? static_cast<std::uint64_t>(*c.seed) : 0), by_dim(row_loops<T>(c.dim)),
          by_value_dim(row_loops<T>(c.value_dim)), additive(additive_loops<T>(c.dim, c.score == 2)) {}

    int forward() {
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

    int backward() {
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

    // ------------------------------------------------------------------------------------------------- forward
    // Σ exp(logit − top) v over some edges of query i, its largest logit and its denominator, for each head. All heads
    // go through a block together, step by step: the loads of one do not wait for the softmax of another. Those of head
    // h lie at s + h · count.
    void attend(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last, T* sums, std::int64_t step,
                T* top, T* total, T* s) const {
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

    void scale_query(std::int64_t b, std::int64_t i, T* scaled) const {
        for (std::int64_t h = 0; h < heads; ++h) {
            const T* row = query.at(b, h, i);
            for (std::int64_t d = 0; d < call.dim; ++d) scaled[h * call.dim + d] = row[d] * scale;
        }
    }

    // Logits to logit − top; what was summed before is brought to the new top.
    void lower(T* s, int count, T* sums, T& top, T& total) const {
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

    __attribute__((noinline)) void drop(std::int64_t at, int count, T* factors) const {
        for (int e = 0; e < count; ++e) factors[e] *= kept<T>(seed, static_cast<std::uint64_t>(at + e), call.dropout);
    }

    // Sums to averages, in place; no allowed edge gives zeros and lse −inf.
    void finish(std::int64_t b, std::int64_t i, const T* top, T* total) const {
        for (std::int64_t h = 0; h < heads; ++h) {
            T* row = out.at(b, h, i);
            const T share = total[h] == 0 ? T(0) : 1 / total[h];
            for (std::int64_t d = 0; d < call.value_dim; ++d) row[d] *= share;
        }
        for (std::int64_t h = 0; h < heads; h += N) {
            V sums = load<N>(total + h);
            store<N>(total + h, sums == T(0) ? spread<N>(-INFINITE<T>) : logarithm<N>(sums));
        }
        for (std::int64_t h = 0; h < heads; ++h) lse[(b * heads + h) * call.queries + i] = top[h] + total[h];
    }

    void join(std::int64_t b, const Hub& hub, const T* parts) const {
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
            lse[(b * heads + h) * call.queries + hub.row] =
                total == 0 ? -INFINITE<T> : top + static_cast<T>(__builtin_log(total));
        }
    }

    // From scores to log weights, in place; a query without an allowed edge has none.
    void normalise(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, T* s) const {
        const T denominator = lse[(b * heads + h) * call.queries + i];
        add_bias(b, h, block, s);
        if (denominator == -INFINITE<T>)
            for (int e = 0; e < block.count; ++e) s[e] = -INFINITE<T>;
        else
            for (int e = 0; e < block.count; ++e) s[e] -= denominator;
    }

    void weigh(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last) const {
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

    // ------------------------------------------------------------------------------------------------ backward
    // With p the weight and g the logit's gradient of a pair, g = p (k·grad − delta) where k is what dropout kept:
    // adds to the query's gradient, and leaves (k p, g) at each pair for `gather`.
    void differentiate(std::int64_t b, std::int64_t i, std::int64_t first, std::int64_t last, T* of_query,
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
    void share_out(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, T* p, T* g) const {
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
    T average(std::int64_t b, std::int64_t h, std::int64_t i) const {
        const T *row = out.at(b, h, i), *grad = grad_out.at(b, h, i);
        T total = delta ? delta[(b * heads + h) * call.queries + i] : T(0);
        return total + dot(row, grad, static_cast<int>(call.value_dim));
    }

    // From the gradient of a capped and scaled score to that of the dot product.
    void through_dot(std::int64_t at, int count, T* g) const {
        for (int e = 0; e < count; ++e) {
            T slope_of_cap = 1;
            if (softcap > 0) {
                const T ratio = scores[at + e] / softcap;
                slope_of_cap = 1 - ratio * ratio;
            }
            g[e] = g[e] == 0 ? T(0) : g[e] * slope_of_cap * scale;
        }
    }

    void differentiate_additive(std::int64_t b, std::int64_t h, std::int64_t i, const Block& block, const T* g,
                                T* of_query, T* of_a) const {
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
    void gather(std::int64_t b, std::int64_t j, std::int64_t first, std::int64_t last, T* of_key, std::int64_t key_step,
                T* of_value, std::int64_t value_step) const {
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
    void fetch_places(std::int64_t b, std::int64_t first, int count) const {
        if (first + count > edges) return;
        for (int e = 0; e < count; ++e) {
            const std::int64_t place = call.source_order[first + e];
            __builtin_prefetch(call.target + place);
            prefetch(shares + (b * edges + place) * heads * 2, heads * 2);
        }
    }

    void gather_additive(std::int64_t b, std::int64_t h, std::int64_t j, int count, const T* g, const T* const* queries,
                         const T* const* terms, T* of_key) const {
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
};

}  // namespace

int edge_attention(const EdgeAttention& call) {
    return call.is_double ? EdgeWalk<double>(call).forward() : EdgeWalk<float>(call).forward();
}

int edge_attention_backward(const EdgeAttention& call) {
    return call.is_double ? EdgeWalk<double>(call).backward() : EdgeWalk<float>(call).backward();
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
