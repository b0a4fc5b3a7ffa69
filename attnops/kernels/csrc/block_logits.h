// The logits of one row against one block: what pattern and biases make of the products, and the biases' gradients.
#pragma once

#include "block_tiles.h"

namespace attnops {
namespace ATTNOPS_LEVEL {

// A row of a tile against a block, from column `low` to `high`: its span, rounded outwards to whole vectors.
struct LogitRow {
    Index batch, head, query, first_key;
    Span span;
    Index low, high;

    template <typename T>
    static LogitRow of(const Tile& tile, int row, const Block& block, const Span& span) {
        constexpr Index W = WIDTH<T>;
        return {tile.batch, tile.head(row), tile.query(row), block.first, span, span.low / W * W,
                round_up(span.high, W)};
    }
};

// exp of numbers that are at most 0, to two units in the last place; 0 below e^-87, NaN for NaN.
template <int N>
ATTNOPS_INLINE Vector<float, N> exponential_of_negative(const Vector<float, N>& argument) {
    using F = Vector<float, N>;
    using I = Vector<std::uint32_t, N>;
    const F least = F{} - 87.0f;
    F x = argument < least ? least : argument;
    F times = x * 1.44269504088896341f + 12582912.0f;  // 1.5 · 2^23: the sum's low bits are the rounded integer
    I exponent;
    __builtin_memcpy(&exponent, &times, sizeof(exponent));
    times -= 12582912.0f;
    F rest = x - times * 0.693359375f + times * 2.12194440e-4f;
    F power = F{} - -1.9875691500e-4f;
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
    I bits;
    __builtin_memcpy(&bits, &power, sizeof(bits));
    bits += exponent << 23;  // the exponent of a float begins at bit 23: this multiplies by 2^exponent
    __builtin_memcpy(&power, &bits, sizeof(power));
    power = argument < least ? F{} : power;
    return argument == argument ? power : argument;  // a NaN's own bits would make a number of it
}

template <int N>
ATTNOPS_INLINE Vector<double, N> exponential_of_negative(const Vector<double, N>& argument) {
    return exponential<N>(argument);
}

// tanh, to a few units in the last place. (Cephes' polynomial near 0, where the quotient would cancel.)
template <int N>
ATTNOPS_INLINE Vector<float, N> hyperbolic_tangent_of(const Vector<float, N>& argument) {
    using F = Vector<float, N>;
    F size = argument < 0 ? -argument : argument;
    F falling = exponential_of_negative<N>(size * -2.0f);
    F far = (1.0f - falling) / (1.0f + falling);
    F square = argument * argument;
    F power = square * -5.70498872745e-3f + 2.06390887954e-2f;
    power = power * square - 5.37397155531e-2f;
    power = power * square + 1.33314422036e-1f;
    power = power * square - 3.33332819422e-1f;
    F near = power * square * argument + argument;
    far = argument < 0 ? -far : far;
    return size < 0.625f ? near : far;
}

template <int N>
ATTNOPS_INLINE Vector<double, N> hyperbolic_tangent_of(const Vector<double, N>& argument) {
    Vector<double, N> result{};
    for (int lane = 0; lane < N; ++lane) result[lane] = __builtin_tanh(argument[lane]);
    return result;
}

ATTNOPS_INLINE float exponential_of(float x) { return __builtin_expf(x); }
ATTNOPS_INLINE double exponential_of(double x) { return __builtin_exp(x); }
ATTNOPS_INLINE float logarithm_of(float x) { return __builtin_logf(x); }
ATTNOPS_INLINE double logarithm_of(double x) { return __builtin_log(x); }

// The columns of a table that a row reads: visit(c, place) for every column c, `place` inside of the table.
template <typename Visit>
ATTNOPS_INLINE void visit_places(const BlockTable& table, const LogitRow& row, const Visit& visit) {
    Index shift = table.shift ? table.shift[row.batch * table.shift_batch + row.query] : 0;
    if (table.diagonal) shift = row.query;
    const std::int64_t* column =
        table.column ? table.column + row.batch * table.column_batch + row.first_key : nullptr;
    Index first = row.first_key - shift + table.offset;
    if (!column && first + row.low >= 0 && first + row.high <= table.length) {
        for (Index c = row.low; c < row.high; ++c) visit(c, first + c);
        return;
    }
    Index last = row.span.high;  // past it there may be no key
    for (Index c = row.span.low; c < last; ++c) {
        Index place = column ? column[c] - shift + table.offset : first + c;
        place = place < 0 ? 0 : place;
        visit(c, place < table.length ? place : table.length - 1);
    }
}

inline Index table_row(const BlockTable& table, const LogitRow& row) {
    if (table.row) return table.row[row.batch * table.row_batch + row.query];
    return table.rows == 1 ? 0 : row.query;
}

template <typename T>
void add_table(const BlockTable& table, const LogitRow& row, T* __restrict logits) {
    const T* entries = static_cast<const T*>(table.table) + row.batch * table.batch + row.head * table.head +
                       table_row(table, row) * table.length;
    visit_places(table, row, [&](Index c, Index place) { logits[c] += entries[place]; });
}

// A term's gradient is gathered by the task that owns `grad`: the heads of one batch row that share a key head.
template <typename T>
void add_table_gradient(const BlockTable& table, const LogitRow& row, Index member, const T* __restrict dlogits,
                        T* __restrict grad) {
    T* entries = grad + ((table.head ? member : 0) * table.rows + table_row(table, row)) * table.length;
    visit_places(table, row, [&](Index c, Index place) { entries[place] += dlogits[c]; });
}

template <typename T>
void add_slope(const BlockSlope& term, const LogitRow& row, T* __restrict logits) {
    T slope = static_cast<const T*>(term.slope)[row.head];
    double x = term.query[row.batch * term.query_batch + row.query];
    const double* y = term.key + row.batch * term.key_batch + row.first_key;
    for (Index c = row.span.low; c < row.span.high; ++c) logits[c] += slope * static_cast<T>(__builtin_fabs(x - y[c]));
}

template <typename T>
T slope_gradient(const BlockSlope& term, const LogitRow& row, const T* __restrict dlogits) {
    double x = term.query[row.batch * term.query_batch + row.query];
    const double* y = term.key + row.batch * term.key_batch + row.first_key;
    T total = 0;
    for (Index c = row.span.low; c < row.span.high; ++c) total += dlogits[c] * static_cast<T>(__builtin_fabs(x - y[c]));
    return total;
}

template <typename T>
void add_additive(const BlockAttention& call, const LogitRow& row, T* __restrict logits) {
    const T* bias = static_cast<const T*>(call.additive) + row.batch * call.additive_batch +
                    row.head * call.additive_head + row.query * call.additive_query +
                    row.first_key * call.additive_key;
    auto add = [](T logit, T bias) {  // the logit of a forbidden pair may be NaN
        return bias == -INFINITE<T> ? bias : logit + bias;
    };
    if (call.additive_key == 1)
        for (Index c = row.span.low; c < row.span.high; ++c) logits[c] = add(logits[c], bias[c]);
    else
        for (Index c = row.span.low; c < row.span.high; ++c) logits[c] = add(logits[c], bias[c * call.additive_key]);
}

// -inf in the columns [low, high) that the row may not attend.
template <typename T>
void forbid(const BlockAttention& call, const LogitRow& row, T* logits) {
    for (Index c = row.low; c < row.span.low; ++c) logits[c] = -INFINITE<T>;
    for (Index c = row.span.high; c < row.high; ++c) logits[c] = -INFINITE<T>;
    if (!call.intervals || call.ranges == 1) return;
    const std::int32_t* ranges = ranges_of(call, row.batch, row.query);
    for (Index c = row.span.low; c < row.span.high; ++c) {
        bool allowed = false;
        for (Index range = 0; range < call.ranges; ++range) {
            Index key = row.first_key + c;
            allowed = allowed || (ranges[2 * range] <= key && key < ranges[2 * range + 1]);
        }
        if (!allowed) logits[c] = -INFINITE<T>;
    }
}

// Products q·k made logits, in the columns [low, high). `slope`, where not null, takes the softcap's derivative.
template <typename T>
void finish_logits(const BlockAttention& call, const LogitRow& row, T* __restrict logits, T* __restrict slope) {
    T scale = static_cast<T>(call.scale);
    if (call.softcap > 0) {
        constexpr int W = WIDTH<T>;
        T cap = static_cast<T>(call.softcap);
        for (Index c = row.low; c < row.high; c += W) {
            Vector<T, W> capped = hyperbolic_tangent_of<W>(load<W>(logits + c) * scale / cap);
            store<W>(logits + c, capped * cap);
            if (slope) store<W>(slope + c, T(1) - capped * capped);
        }
    } else {
        for (Index c = row.low; c < row.high; ++c) logits[c] *= scale;
    }
    for (int term = 0; term < call.num_tables; ++term) add_table(call.tables[term], row, logits);
    for (int term = 0; term < call.num_slopes; ++term) add_slope(call.slopes[term], row, logits);
    if (call.additive) add_additive(call, row, logits);
    forbid(call, row, logits);
}

// Which weights dropout keeps, the same whenever asked: a hash of seed, batch row, head, query and key.
class Dropout {
 public:
    Dropout(const BlockAttention& call, const LogitRow& row)
        : first_(static_cast<std::uint32_t>(call.first_key + row.first_key)),
          least_(static_cast<std::uint32_t>(call.dropout * 4294967296.0)),
          scale_(1 / (1 - call.dropout)) {
        std::uint64_t place = (static_cast<std::uint64_t>(row.batch) * static_cast<std::uint64_t>(call.heads) +
                               static_cast<std::uint64_t>(row.head)) << 32;
        place += static_cast<std::uint64_t>(call.first_query + row.query);
        row_ = mixed(static_cast<std::uint64_t>(*call.seed) + mixed(place));
    }

    // 0 for a dropped weight, 1 / (1 - rate) for a kept one.
    double operator()(Index column) const {
        std::uint32_t x = (first_ + static_cast<std::uint32_t>(column)) * 0x9e3779b9u ^ static_cast<std::uint32_t>(row_);
        x ^= x >> 16, x *= 0x7feb352du, x ^= x >> 15, x += static_cast<std::uint32_t>(row_ >> 32);
        x *= 0x846ca68bu, x ^= x >> 16;
        return x >= least_ ? scale_ : 0.0;
    }

 private:
    static std::uint64_t mixed(std::uint64_t x) {  // the finaliser of splitmix64
        x += 0x9e3779b97f4a7c15u;
        x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
        x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
        return x ^ (x >> 31);
    }

    std::uint64_t row_;
    std::uint32_t first_, least_;
    double scale_;
};

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
