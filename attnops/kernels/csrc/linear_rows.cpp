// A linear layer of few rows, as a step of decoding has: each number of the weight is read once, from memory, and meets
// all rows on its way. A number of the result is the same whichever rows stand beside its own.
#include <algorithm>

#include "interface.h"
#include "parallel.h"
#include "vectors.h"

namespace attnops {
namespace ATTNOPS_LEVEL {
namespace {

constexpr int SUMS = ATTNOPS_VECTOR_BYTES == 64 ? 16 : 8;  // as many as registers hold beside what is read
constexpr int MOST_ROWS = 8;
constexpr std::int64_t TASK = 1 << 15;  // numbers of the weight that are worth a task
constexpr std::int64_t SHARED = 1 << 19;  // products that are worth a second thread

template <typename T>
struct LinearOf {
    static constexpr int N = WIDTH<T>;

    explicit LinearOf(const LinearRows& given) : call(given) {}

    int run() const {
        const std::int64_t rows = std::max<std::int64_t>(1, TASK / std::max<std::int64_t>(1, call.in));
        const std::int64_t size = std::max(rows, (call.out / (4 * call.threads) + 7) / 8 * 8);
        const int threads = call.rows * call.in * call.out < SHARED ? 1 : call.threads;
        parallel((call.out + size - 1) / size, threads, [&](std::int64_t task) {
            const std::int64_t end = std::min(call.out, (task + 1) * size);
            std::int64_t column = task * size;
            for (; column + 8 <= end; column += 8) columns<8>(column);
            for (; column < end; ++column) columns<1>(column);
        });
        return 0;
    }

    // C columns of the result, of all rows.
    template <int C>
    void columns(std::int64_t column) const {
        std::int64_t row = 0;
        for (; row + MOST_ROWS <= call.rows; row += MOST_ROWS) rows<MOST_ROWS, C>(row, column);
        switch (call.rows - row) {
            case 7: return rows<7, C>(row, column);
            case 6: return rows<6, C>(row, column);
            case 5: return rows<5, C>(row, column);
            case 4: return rows<4, C>(row, column);
            case 3: return rows<3, C>(row, column);
            case 2: return rows<2, C>(row, column);
            case 1: return rows<1, C>(row, column);
            default: return;
        }
    }

    // R rows by C columns, as many columns at a time as the registers hold.
    template <int R, int C>
    void rows(std::int64_t row, std::int64_t column) const {
        constexpr int FIT = R * C <= SUMS ? C : R == 1 ? 8 : R == 2 ? SUMS / 2 : R <= 4 ? SUMS / 4 : SUMS / 8;
        for (int c = 0; c < C; c += FIT) tile<R, FIT>(row, column + c);
    }

    template <int R, int C>
    __attribute__((noinline)) void tile(std::int64_t row, std::int64_t column) const {
        const T* x = static_cast<const T*>(call.x) + row * call.x_row;
        const T* weight = static_cast<const T*>(call.weight) + column * call.weight_row;
        T* y = static_cast<T*>(call.y) + row * call.out + column;
        Vector<T, N> sums[R][C] = {};
        std::int64_t i = 0;
        for (; i + N <= call.in; i += N) {
            Vector<T, N> part[C];  // few rows wait for memory, which streams by itself; with many, it must be asked for
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                part[c] = load<N>(weight + c * call.weight_row + i);
                if (R > 2) __builtin_prefetch(weight + (c + C) * call.weight_row + i);  // of the next columns
            }
#pragma GCC unroll 8
            for (int r = 0; r < R; ++r) {
                const Vector<T, N> numbers = load<N>(x + r * call.x_row + i);
#pragma GCC unroll 8
                for (int c = 0; c < C; ++c) sums[r][c] += numbers * part[c];
            }
        }
#pragma GCC unroll 8
        for (int r = 0; r < R; ++r)
#pragma GCC unroll 8
            for (int c = 0; c < C; ++c) {
                T total = sum<N, T>(sums[r][c]);
                for (std::int64_t rest = i; rest < call.in; ++rest)
                    total += x[r * call.x_row + rest] * weight[c * call.weight_row + rest];
                y[r * call.out + c] = call.bias ? total + static_cast<const T*>(call.bias)[column + c] : total;
            }
    }

    const LinearRows& call;
};

}  // namespace

int linear_rows(const LinearRows& call) {
    return call.is_double ? LinearOf<double>(call).run() : LinearOf<float>(call).run();
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
