// Small matrix products whose operands lie in a core's caches: C (+)= A · B, a few rows by a few vectors at a time.
//
// A tile of C is held in registers while k runs: 6 rows by 4 vectors where there are 32 registers, else by 2. One
// number of A is spread over the lanes and meets a row of B.
#pragma once

#include "vectors.h"

namespace attnops {
namespace ATTNOPS_LEVEL {

using Index = std::int64_t;

constexpr int TILE_ROWS = 6;
constexpr int TILE_VECTORS = ATTNOPS_VECTOR_BYTES == 64 ? 4 : 2;

// Columns of a tile.
template <typename T>
constexpr int PANEL = TILE_VECTORS * WIDTH<T>;

ATTNOPS_INLINE Index round_up(Index count, Index multiple) { return (count + multiple - 1) / multiple * multiple; }

// C[M × V vectors] (+)= A[M × depth] · B[depth × V vectors]. A's number (i, p) is a[i · a_row + p], or where TURNED
// a[p · a_row + i].
template <int M, int V, bool TURNED, typename T>
__attribute__((noinline)) void multiply_tile(Index depth, const T* a, Index a_row, const T* b, Index b_row, T* c,
                                             Index c_row, bool add) {
    constexpr int W = WIDTH<T>;
    Vector<T, W> sums[M][V] = {};
    for (Index p = 0; p < depth; ++p, b += b_row) {
        Vector<T, W> row[V];
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) row[v] = load<W>(b + v * W);
#pragma GCC unroll 6
        for (int i = 0; i < M; ++i) {
            T number = TURNED ? a[p * a_row + i] : a[i * a_row + p];
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[i][v] += number * row[v];
        }
    }
    if (add) {  // at the end: what is there may be large, and each product would be rounded to its last place
#pragma GCC unroll 6
        for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
            for (int v = 0; v < V; ++v) sums[i][v] += load<W>(c + i * c_row + v * W);
    }
#pragma GCC unroll 6
    for (int i = 0; i < M; ++i)
#pragma GCC unroll 4
        for (int v = 0; v < V; ++v) store<W>(c + i * c_row + v * W, sums[i][v]);
}

template <typename T>
using TileProduct = void (*)(Index, const T*, Index, const T*, Index, T*, Index, bool);

template <int M, bool TURNED, typename T>
ATTNOPS_INLINE TileProduct<T> tile_product(int vectors) {
    if constexpr (TILE_VECTORS == 4) {
        if (vectors == 4) return multiply_tile<M, 4, TURNED, T>;
        if (vectors == 3) return multiply_tile<M, 3, TURNED, T>;
    }
    return vectors == 2 ? multiply_tile<M, 2, TURNED, T> : multiply_tile<M, 1, TURNED, T>;
}

template <bool TURNED, typename T>
TileProduct<T> tile_product(int rows, int vectors) {
    switch (rows) {
        case 6: return tile_product<6, TURNED, T>(vectors);
        case 5: return tile_product<5, TURNED, T>(vectors);
        case 4: return tile_product<4, TURNED, T>(vectors);
        case 3: return tile_product<3, TURNED, T>(vectors);
        case 2: return tile_product<2, TURNED, T>(vectors);
        default: return tile_product<1, TURNED, T>(vectors);
    }
}

// A matrix as the right operand: row p of panel n lies at data + n · panel + p · row.
template <typename T>
struct Right {
    const T* data;
    Index row, panel;

    // Rows of contiguous numbers, as a tensor lies.
    static Right rows(const T* data, Index row) { return {data, row, PANEL<T>}; }
    // Panels one after another, as `pack_turned` writes them.
    static Right packed(const T* data, Index depth) { return {data, PANEL<T>, depth * PANEL<T>}; }
};

// C (+)= A · B over at most TILE_ROWS rows, and the columns [first, last) of B and C, rounded outwards: first to a
// panel, last to a vector.
template <bool TURNED, typename T>
ATTNOPS_INLINE void multiply_rows(int rows, Index first, Index last, Index depth, const T* a, Index a_row,
                                  const Right<T>& b, T* c, Index c_row, bool add) {
    constexpr int W = WIDTH<T>;
    for (Index panel = first / PANEL<T>; panel * PANEL<T> < last; ++panel) {
        Index left = last - panel * PANEL<T>;
        int vectors = static_cast<int>((left < PANEL<T> ? left + W - 1 : PANEL<T>) / W);
        tile_product<TURNED, T>(rows, vectors)(depth, a, a_row, b.data + panel * b.panel, b.row, c + panel * PANEL<T>,
                                               c_row, add);
    }
}

// C = A · B likewise, where depth is the width of vectors: added up in stretches, which rounds less than one long sum.
template <typename T>
ATTNOPS_INLINE void multiply_wide_rows(int rows, Index first, Index last, Index depth, const T* a, Index a_row,
                                       const Right<T>& b, T* c, Index c_row) {
    constexpr Index STRETCH = 64;
    for (Index p = 0; p < depth || p == 0; p += STRETCH) {
        Right<T> part{b.data + p * b.row, b.row, b.panel};
        multiply_rows<false>(rows, first, last, depth - p < STRETCH ? depth - p : STRETCH, a + p, a_row, part, c, c_row,
                             p > 0);
    }
}

// Lanes of left and right taken in turns, from the lower half of both (or the upper).
template <int UPPER, typename V, int... Lane>
ATTNOPS_INLINE V interleave(const V& left, const V& right, std::integer_sequence<int, Lane...>) {
    constexpr int N = sizeof...(Lane);
    return __builtin_shufflevector(left, right, (UPPER * N / 2 + Lane / 2 + Lane % 2 * N)...);
}

// The transpose of W vectors of W lanes, in place.
template <typename T, int W>
ATTNOPS_INLINE void transpose(Vector<T, W>* vectors) {
    auto lanes = std::make_integer_sequence<int, W>();
#pragma GCC unroll 4
    for (int stage = 1; stage < W; stage *= 2) {
        Vector<T, W> next[W];
#pragma GCC unroll 16
        for (int i = 0; i < W / 2; ++i) {
            next[2 * i] = interleave<0>(vectors[i], vectors[i + W / 2], lanes);
            next[2 * i + 1] = interleave<1>(vectors[i], vectors[i + W / 2], lanes);
        }
#pragma GCC unroll 16
        for (int i = 0; i < W; ++i) vectors[i] = next[i];
    }
}

// The transpose of `count` rows of `dim` numbers as panels, each [dim × PANEL], zeros in the columns past count.
template <typename T>
void pack_turned(const T* rows, Index row, Index count, Index dim, T* panels) {
    constexpr int W = WIDTH<T>;
    for (Index first = 0; first < round_up(count, PANEL<T>); first += W) {
        T* to = panels + first / PANEL<T> * dim * PANEL<T> + first % PANEL<T>;
        Index whole = first + W <= count ? dim / W * W : 0;
        for (Index d = 0; d < whole; d += W) {
            Vector<T, W> square[W];
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) square[i] = load<W>(rows + (first + i) * row + d);
            transpose<T, W>(square);
#pragma GCC unroll 16
            for (int i = 0; i < W; ++i) store<W>(to + (d + i) * PANEL<T>, square[i]);
        }
        for (Index d = whole; d < dim; ++d)
            for (int i = 0; i < W; ++i)
                to[d * PANEL<T> + i] = first + i < count ? rows[(first + i) * row + d] : T(0);
    }
}

// C[rows × count] = A[rows × dim] · Bᵀ for few rows: each number a dot product of two rows, dim a multiple of a vector.
// Writes columns up to the next multiple of a vector, zeros past count.
template <typename T>
void multiply_by_dots(int rows, Index count, Index dim, const T* a, Index a_row, const T* b, Index b_row, T* c,
                      Index c_row) {
    constexpr int W = WIDTH<T>;
    for (Index first = 0; first < count; first += W) {
        int keys = static_cast<int>(count - first < W ? count - first : W);
        for (int i = 0; i < rows; ++i) {
            Vector<T, W> sums[W] = {};
            auto add_products = [&](int many) {
                for (Index d = 0; d < dim; d += W) {
                    Vector<T, W> left = load<W>(a + i * a_row + d);
#pragma GCC unroll 16
                    for (int j = 0; j < many; ++j) sums[j] += left * load<W>(b + (first + j) * b_row + d);
                }
            };
            keys == W ? add_products(W) : add_products(keys);
            store<W>(c + i * c_row + first, sum_each<W, T>(sums));
        }
    }
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
