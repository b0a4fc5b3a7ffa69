// What a query does with the rows of its edges: dot products with them, and sums of them. Rows are read in place.
#pragma once

#include "vectors.h"

namespace attnops {
namespace ATTNOPS_LEVEL {

// Row i of a block is rows[i] + offset; a row has `dim` numbers, M vectors of N lanes (M = 0: as many as fit, and a
// rest). `out` has room for `count` numbers, rounded up to N.

template <typename T, int N, int M>
ATTNOPS_INLINE Vector<T, N> products(const T* left, const T* right, int dim) {
    Vector<T, N> total{};
    if constexpr (M > 0) {
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) total += load<N>(left + m * N) * load<N>(right + m * N);
    } else {
        int d = 0;
        for (; d + N <= dim; d += N) total += load<N>(left + d) * load<N>(right + d);
        for (; d < dim; ++d) total[0] += left[d] * right[d];
    }
    return total;
}

template <typename T>
ATTNOPS_INLINE T dot(const T* left, const T* right, int dim) {
    return sum<4, T>(products<T, 4, 0>(left, right, dim));
}

// out[i] = Σ over the lanes of vector(i), N or four rows at a time.
template <typename T, int N, typename Of>
ATTNOPS_INLINE void sums_of(int count, T* out, const Of& vector) {
    int i = 0;
    for (; i + N <= count; i += N) {
        Vector<T, N> block[N];
#pragma GCC unroll 16
        for (int lane = 0; lane < N; ++lane) block[lane] = vector(i + lane);
        store<N>(out + i, sum_each<N, T>(block));
    }
    if constexpr (N >= 4) {
        for (; i < count; i += 4) {
            Vector<T, N> block[4];
#pragma GCC unroll 4
            for (int lane = 0; lane < 4; ++lane) block[lane] = vector(i + lane < count ? i + lane : count - 1);
            auto sums = sum_four<N, T>(block);
            for (int lane = 0; lane < 4; ++lane) out[i + lane] = sums[lane];
        }
    } else {
        for (; i < count; ++i) out[i] = sum<N, T>(vector(i));
    }
}

// Rows of all heads: head h of a query lies at h · step, and its rows lie h / group · offset further.
struct Heads {
    std::int64_t count, step, offset, group;
    std::int64_t at(std::int64_t h) const { return (group == 1 ? h : h / group) * offset; }
};

// out[h · count + i] = query_h · row_hi
template <typename T, int N, int M>
void dots(const T* query, const Heads& heads, const T* const* rows, int count, int dim, T* out) {
    for (std::int64_t h = 0; h < heads.count; ++h, query += heads.step, out += count) {
        const std::int64_t offset = heads.at(h);
        sums_of<T, N>(count, out, [&](int i) { return products<T, N, M>(query, rows[i] + offset, dim); });
    }
}

// total += Σ_i coefficients[i] · row_i
template <typename T, int N, int M>
void add_rows(T* total, const T* coefficients, const T* const* rows, std::int64_t offset, int count, int dim) {
    if constexpr (M > 0) {
        constexpr int CHAINS = M == 1 ? 4 : M == 2 ? 2 : 1;  // independent sums, so that one need not wait for another
        Vector<T, N> sums[CHAINS][M] = {};
        int i = 0;
        for (; i + CHAINS <= count; i += CHAINS)
#pragma GCC unroll 4
            for (int chain = 0; chain < CHAINS; ++chain)
#pragma GCC unroll 8
                for (int m = 0; m < M; ++m)
                    sums[chain][m] += coefficients[i + chain] * load<N>(rows[i + chain] + offset + m * N);
        for (; i < count; ++i)
#pragma GCC unroll 8
            for (int m = 0; m < M; ++m) sums[0][m] += coefficients[i] * load<N>(rows[i] + offset + m * N);
#pragma GCC unroll 8
        for (int m = 0; m < M; ++m) {
#pragma GCC unroll 4
            for (int chain = 1; chain < CHAINS; ++chain) sums[0][m] += sums[chain][m];
            store<N>(total + m * N, load<N>(total + m * N) + sums[0][m]);
        }
    } else {
        int d = 0;
        for (; d + 4 * N <= dim; d += 4 * N) {
            Vector<T, N> sums[4] = {};
            for (int i = 0; i < count; ++i)
#pragma GCC unroll 4
                for (int m = 0; m < 4; ++m) sums[m] += coefficients[i] * load<N>(rows[i] + offset + d + m * N);
#pragma GCC unroll 4
            for (int m = 0; m < 4; ++m) store<N>(total + d + m * N, load<N>(total + d + m * N) + sums[m]);
        }
        for (; d + N <= dim; d += N) {
            Vector<T, N> sums{};
            for (int i = 0; i < count; ++i) sums += coefficients[i] * load<N>(rows[i] + offset + d);
            store<N>(total + d, load<N>(total + d) + sums);
        }
        for (; d < dim; ++d) {
            T sums = 0;
            for (int i = 0; i < count; ++i) sums += coefficients[i] * rows[i][offset + d];
            total[d] += sums;
        }
    }
}

// ------------------------------------------------------------------------------------------------- additive scores
// σ(query + row + term), and how it enters a score Σ_d a_d σ(…)_d and its gradients.

enum Activation { LEAKY_RELU, TANH };

template <int N, typename T>
ATTNOPS_INLINE Vector<T, N> hyperbolic_tangent(const Vector<T, N>& z) {
    Vector<T, N> result;
    for (int lane = 0; lane < N; ++lane) result[lane] = static_cast<T>(__builtin_tanh(z[lane]));
    return result;
}

template <typename T, int N, Activation A>
ATTNOPS_INLINE Vector<T, N> activated(const Vector<T, N>& z, T slope) {
    if constexpr (A == TANH) return hyperbolic_tangent<N, T>(z);
    return z > 0 ? z : z * slope;
}

// σ'(z), from z and σ(z)
template <typename T, int N, Activation A>
ATTNOPS_INLINE Vector<T, N> derivative(const Vector<T, N>& z, const Vector<T, N>& sigma, T slope) {
    if constexpr (A == TANH) return T(1) - sigma * sigma;
    return z > 0 ? spread<N>(T(1)) : spread<N>(slope);
}

template <typename T>
ATTNOPS_INLINE T term_at(const T* const* terms, int i, std::int64_t place) {
    return terms ? terms[i][place] : T(0);
}

// out[i] = Σ_d a_d σ(query_d + row_id + term_id)
template <typename T, int N, Activation A>
void additive_dots(const T* a, T slope, const T* query, const T* const* rows, std::int64_t offset,
                   const T* const* terms, std::int64_t term_offset, int count, int dim, T* out) {
    sums_of<T, N>(count, out, [&](int i) {
        Vector<T, N> total{};
        const T* row = rows[i] + offset;
        int d = 0;
        for (; d + N <= dim; d += N) {
            auto z = load<N>(query + d) + load<N>(row + d);
            if (terms) z += load<N>(terms[i] + term_offset + d);
            total += load<N>(a + d) * activated<T, N, A>(z, slope);
        }
        for (; d < dim; ++d) {
            T z = query[d] + row[d] + term_at(terms, i, term_offset + d);
            total[0] += a[d] * (A == TANH ? static_cast<T>(__builtin_tanh(z)) : z > 0 ? z : z * slope);
        }
        return total;
    });
}

// The same for rows of one number, GAT's sums: nothing to add up across lanes.
template <typename T, Activation A>
void single_dots(const T* a, T slope, const T* query, const T* const* rows, std::int64_t offset, const T* const* terms,
                 std::int64_t term_offset, int count, int, T* out) {
    for (int i = 0; i < count; ++i) {
        const T z = query[0] + rows[i][offset] + term_at(terms, i, term_offset);
        out[i] = a[0] * (A == TANH ? static_cast<T>(__builtin_tanh(z)) : z > 0 ? z : z * slope);
    }
}

// With g_i the gradient of score i: total_d += Σ_i g_i a_d σ'(…)_id; where not null, of_a_d += Σ_i g_i σ(…)_id, and
// of_terms[i]_d = g_i a_d σ'(…)_id.
template <typename T, int N, Activation A>
void additive_gradients(const T* a, T slope, const T* fixed, const T* const* rows, std::int64_t offset,
                        const T* const* terms, std::int64_t term_offset, const T* gradients, int count, int dim,
                        T* total, T* of_a, T* const* of_terms, std::int64_t of_terms_offset) {
    int d = 0;
    for (; d + N <= dim; d += N) {
        Vector<T, N> sum{}, sum_a{}, a_d = load<N>(a + d), fixed_d = load<N>(fixed + d);
        for (int i = 0; i < count; ++i) {
            auto z = fixed_d + load<N>(rows[i] + offset + d);
            if (terms) z += load<N>(terms[i] + term_offset + d);
            auto sigma = activated<T, N, A>(z, slope);
            auto gradient = gradients[i] * a_d * derivative<T, N, A>(z, sigma, slope);
            sum += gradient;
            sum_a += gradients[i] * sigma;
            if (of_terms) store<N>(of_terms[i] + of_terms_offset + d, gradient);
        }
        store<N>(total + d, load<N>(total + d) + sum);
        if (of_a) store<N>(of_a + d, load<N>(of_a + d) + sum_a);
    }
    for (; d < dim; ++d) {
        T sum = 0, sum_a = 0;
        for (int i = 0; i < count; ++i) {
            T z = fixed[d] + rows[i][offset + d] + term_at(terms, i, term_offset + d);
            T sigma = A == TANH ? static_cast<T>(__builtin_tanh(z)) : z > 0 ? z : z * slope;
            T gradient = gradients[i] * a[d] * (A == TANH ? 1 - sigma * sigma : z > 0 ? T(1) : slope);
            sum += gradient;
            sum_a += gradients[i] * sigma;
            if (of_terms) of_terms[i][of_terms_offset + d] = gradient;
        }
        total[d] += sum;
        if (of_a) of_a[d] += sum_a;
    }
}

// ----------------------------------------------------------------------------------- the loops that fit a dimension
template <typename T>
struct RowLoops {
    void (*dots)(const T*, const Heads&, const T* const*, int, int, T*);
    void (*add)(T*, const T*, const T* const*, std::int64_t, int, int);
};

template <typename T>
RowLoops<T> row_loops(std::int64_t dim) {
    constexpr int W = WIDTH<T>;
    if (dim == W) return {dots<T, W, 1>, add_rows<T, W, 1>};
    if (dim == 2 * W) return {dots<T, W, 2>, add_rows<T, W, 2>};
    if (dim == 4 * W) return {dots<T, W, 4>, add_rows<T, W, 4>};
    if (dim == 8 * W) return {dots<T, W, 8>, add_rows<T, W, 8>};
    if constexpr (W >= 8) {
        if (dim == W / 2) return {dots<T, W / 2, 1>, add_rows<T, W / 2, 1>};
        if (dim < W) return {dots<T, 4, 0>, add_rows<T, 4, 0>};
    }
    return {dots<T, W, 0>, add_rows<T, W, 0>};
}

template <typename T>
struct AdditiveLoops {
    decltype(&additive_dots<T, WIDTH<T>, LEAKY_RELU>) dots;
    decltype(&additive_gradients<T, WIDTH<T>, LEAKY_RELU>) gradients;
};

template <typename T, int N>
AdditiveLoops<T> additive_loops_of(bool tanh) {
    if (tanh) return {additive_dots<T, N, TANH>, additive_gradients<T, N, TANH>};
    return {additive_dots<T, N, LEAKY_RELU>, additive_gradients<T, N, LEAKY_RELU>};
}

template <typename T>
AdditiveLoops<T> additive_loops(std::int64_t dim, bool tanh) {
    constexpr int W = WIDTH<T>;
    if (dim == 1) {
        if (tanh) return {single_dots<T, TANH>, additive_gradients<T, W, TANH>};
        return {single_dots<T, LEAKY_RELU>, additive_gradients<T, W, LEAKY_RELU>};
    }
    if constexpr (W >= 8) {
        if (dim < W / 2) return additive_loops_of<T, 4>(tanh);
        if (dim < W) return additive_loops_of<T, W / 2>(tanh);
    }
    return additive_loops_of<T, W>(tanh);
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
