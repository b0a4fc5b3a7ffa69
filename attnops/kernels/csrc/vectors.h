// Vectors of the level that this file is compiled for, by the compiler's own extension: one source for every machine.
//
// A level is a namespace (ATTNOPS_LEVEL) and a width (ATTNOPS_VECTOR_BYTES); each source that includes this file is
// compiled once a level, and entry.cpp chooses among them when the library is loaded.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#ifndef ATTNOPS_LEVEL
#define ATTNOPS_LEVEL plain
#define ATTNOPS_VECTOR_BYTES 16
#endif

#define ATTNOPS_INLINE inline __attribute__((always_inline))

namespace attnops {
namespace ATTNOPS_LEVEL {

template <typename T, int N>
struct VectorOf {
    typedef T type __attribute__((vector_size(N * sizeof(T))));
};
template <typename T, int N>
using Vector = typename VectorOf<T, N>::type;

// Lanes of the widest vector of T.
template <typename T>
constexpr int WIDTH = ATTNOPS_VECTOR_BYTES / static_cast<int>(sizeof(T));

template <typename T>
constexpr T INFINITE = std::numeric_limits<T>::infinity();

template <int N, typename T>
ATTNOPS_INLINE Vector<T, N> load(const T* from) {
    Vector<T, N> vector;
    __builtin_memcpy(&vector, from, sizeof(vector));
    return vector;
}

template <int N, typename T>
ATTNOPS_INLINE void store(T* to, const Vector<T, N>& vector) {
    __builtin_memcpy(to, &vector, sizeof(vector));
}

template <int N, typename T>
ATTNOPS_INLINE Vector<T, N> spread(T value) {
    return Vector<T, N>{} + value;
}

// Asks for a row before it is read.
template <typename T>
ATTNOPS_INLINE void prefetch(const T* row, std::int64_t count) {
    constexpr std::int64_t LINE = 64 / static_cast<std::int64_t>(sizeof(T));
    for (std::int64_t at = 0; at < count; at += LINE) __builtin_prefetch(row + at);
}

// Lanes 0, 2, 4, … (Odd: 1, 3, 5, …) of left, then of right.
template <int Odd, typename V, int... Lane>
ATTNOPS_INLINE V alternate(const V& left, const V& right, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(left, right, (2 * Lane + Odd)...);
}

// Sums of neighbouring lanes: those of left, then those of right.
template <int N, typename T>
ATTNOPS_INLINE Vector<T, N> add_neighbours(const Vector<T, N>& left, const Vector<T, N>& right) {
    auto lanes = std::make_integer_sequence<int, N>();
    return alternate<0>(left, right, lanes) + alternate<1>(left, right, lanes);
}

// Lane i of the result is the sum of all lanes of vectors[i]. Works in place; vectors holds N of N lanes.
template <int N, typename T>
ATTNOPS_INLINE Vector<T, N> sum_each(Vector<T, N>* vectors) {
#pragma GCC unroll 16
    for (int count = N; count > 1; count /= 2)
#pragma GCC unroll 16
        for (int pair = 0; pair < count / 2; ++pair)
            vectors[pair] = add_neighbours<N, T>(vectors[2 * pair], vectors[2 * pair + 1]);
    return vectors[0];
}

// The same for the first four of them: lanes 0 to 3 of the result.
template <int N, typename T>
ATTNOPS_INLINE Vector<T, N> sum_four(Vector<T, N>* vectors) {
    if constexpr (N == 2) {
        (void)vectors;
        return {};
    } else {
        auto sums = add_neighbours<N, T>(add_neighbours<N, T>(vectors[0], vectors[1]),
                                         add_neighbours<N, T>(vectors[2], vectors[3]));
#pragma GCC unroll 4
        for (int lanes = N / 4; lanes > 1; lanes /= 2) sums = add_neighbours<N, T>(sums, sums);
        return sums;
    }
}

// The first (Half = 0) or the second half of the lanes.
template <int Half, typename V, int... Lane>
ATTNOPS_INLINE auto half(const V& vector, std::integer_sequence<int, Lane...>) {
    return __builtin_shufflevector(vector, vector, (Half * static_cast<int>(sizeof...(Lane)) + Lane)...);
}

template <int N, typename T>
ATTNOPS_INLINE T sum(const Vector<T, N>& vector) {
    if constexpr (N == 1) {
        return vector[0];
    } else {
        auto lanes = std::make_integer_sequence<int, N / 2>();
        return sum<N / 2, T>(half<0>(vector, lanes) + half<1>(vector, lanes));
    }
}

template <int N, typename T>
ATTNOPS_INLINE T largest(const Vector<T, N>& vector) {
    if constexpr (N == 1) {
        return vector[0];
    } else {
        auto lanes = std::make_integer_sequence<int, N / 2>();
        auto low = half<0>(vector, lanes), high = half<1>(vector, lanes);
        return largest<N / 2, T>(low > high ? low : high);
    }
}

// exp, to two units in the last place; 0 below the smallest normal number, NaN for NaN. (Cephes' polynomial.)
template <int N>
ATTNOPS_INLINE Vector<float, N> exponential(const Vector<float, N>& argument) {
    using F = Vector<float, N>;
    using I = Vector<std::int32_t, N>;
    F x = argument < -87.33f ? spread<N>(-87.33f) : argument;
    x = x > 88.72f ? spread<N>(88.72f) : x;
    F times = x * 1.44269504088896341f + 12582912.0f;  // 1.5 · 2^23: the sum is rounded to an integer
    times -= 12582912.0f;
    F rest = x - times * 0.693359375f + times * 2.12194440e-4f;
    F power = spread<N>(1.9875691500e-4f);
    power = power * rest + 1.3981999507e-3f;
    power = power * rest + 8.3334519073e-3f;
    power = power * rest + 4.1665795894e-2f;
    power = power * rest + 1.6666665459e-1f;
    power = power * rest + 5.0000001201e-1f;
    power = power * rest * rest + rest + 1.0f;
    I exponent = (__builtin_convertvector(times == times ? times : F{}, I) + 127) << 23;
    F scale;
    __builtin_memcpy(&scale, &exponent, sizeof(scale));
    F result = power * scale;
    result = argument < -87.33f ? F{} : result;
    return argument > 88.72f ? spread<N>(INFINITE<float>) : result;
}

template <int N>
ATTNOPS_INLINE Vector<double, N> exponential(const Vector<double, N>& argument) {
    Vector<double, N> result;
    for (int lane = 0; lane < N; ++lane) result[lane] = __builtin_exp(argument[lane]);
    return result;
}

// log of numbers of 1 and more, to two units in the last place; NaN for NaN. (Cephes' polynomial.)
template <int N>
ATTNOPS_INLINE Vector<float, N> logarithm(const Vector<float, N>& argument) {
    using F = Vector<float, N>;
    using I = Vector<std::int32_t, N>;
    I bits;
    __builtin_memcpy(&bits, &argument, sizeof(bits));
    F exponent = __builtin_convertvector((bits >> 23) - 126, F);
    bits = (bits & 0x7fffff) | 0x3f000000;
    F x;
    __builtin_memcpy(&x, &bits, sizeof(x));  // in [0.5, 1)
    F small = x < 0.707106781f ? spread<N>(1.0f) : F{};
    exponent -= small;
    x = x + x * small - 1.0f;
    F square = x * x;
    F y = spread<N>(7.0376836292e-2f);
    y = y * x - 1.1514610310e-1f;
    y = y * x + 1.1676998740e-1f;
    y = y * x - 1.2420140846e-1f;
    y = y * x + 1.4249322787e-1f;
    y = y * x - 1.6668057665e-1f;
    y = y * x + 2.0000714765e-1f;
    y = y * x - 2.4999993993e-1f;
    y = y * x + 3.3333331174e-1f;
    y = y * x * square - exponent * 2.12194440e-4f - 0.5f * square;
    F result = x + y + exponent * 0.693359375f;
    return argument <= 3.4e38f ? result : argument;  // NaN and infinity as they are
}

template <int N>
ATTNOPS_INLINE Vector<double, N> logarithm(const Vector<double, N>& argument) {
    Vector<double, N> result;
    for (int lane = 0; lane < N; ++lane) result[lane] = __builtin_log(argument[lane]);
    return result;
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
