// How the grid of pairs is cut: tiles of rows by blocks of keys, and what of a block each row may attend.
#pragma once

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "block_interface.h"
#include "gemm.h"

namespace attnops {
namespace ATTNOPS_LEVEL {

constexpr Index ROWS = 96;      // of a tile: queries, times the heads that share a key head
constexpr Index COLUMNS = 128;  // keys of a block

// Numbers of one task, on the boundaries of cache lines; false where the machine has no memory.
template <typename T>
class Scratch {
 public:
    explicit Scratch(Index count, bool zeros = false)
        : data_(static_cast<T*>(std::aligned_alloc(64, round_up(count * static_cast<Index>(sizeof(T)) + 64, 64)))) {
        if (zeros && data_) std::memset(static_cast<void*>(data_), 0, static_cast<std::size_t>(count) * sizeof(T));
    }
    Scratch(Scratch&& other) noexcept : data_(other.data_) { other.data_ = nullptr; }
    Scratch(const Scratch&) = delete;
    ~Scratch() { std::free(data_); }
    explicit operator bool() const { return data_ != nullptr; }
    operator T*() const { return data_; }

 private:
    T* data_;
};

// Keys first … first + count of one key head.
struct Block {
    Index first;
    int count;
};

// Queries first … first + queries of one batch row, with the heads that share a key head: row r is query r / group of
// the tile and head r % group of the group, so that rows with like ranges lie together.
struct Tile {
    Index batch, key_head, first;
    int queries, group;

    int rows() const { return queries * group; }
    Index query(int row) const { return first + row / group; }
    Index head(int row) const { return key_head * group + row % group; }
};

// What is half open: keys, or columns of a block.
struct Span {
    Index low, high;

    bool empty() const { return low >= high; }
    void include(const Span& other) {
        if (other.empty()) return;
        if (empty()) *this = other;
        if (other.low < low) low = other.low;
        if (other.high > high) high = other.high;
    }
};

inline const std::int32_t* ranges_of(const BlockAttention& call, Index batch, Index query) {
    return call.intervals + batch * call.interval_batch + query * call.interval_query;
}

// From the first to the last key of `within` that a query may attend.
inline Span reach(const BlockAttention& call, Index batch, Index query, Span within) {
    if (!call.intervals) return within;
    const std::int32_t* ranges = ranges_of(call, batch, query);
    Span hull{0, 0};
    for (Index range = 0; range < call.ranges; ++range) {
        Index low = ranges[2 * range], high = ranges[2 * range + 1];
        hull.include({low > within.low ? low : within.low, high < within.high ? high : within.high});
    }
    return hull;
}

inline Span reach(const BlockAttention& call, const Tile& tile) {
    Span hull{0, 0};
    for (int query = 0; query < tile.queries; ++query)
        hull.include(reach(call, tile.batch, tile.first + query, {0, call.keys}));
    return hull;
}

// The columns of a block that each row of a tile may attend, row by row and for every TILE_ROWS of them.
class Spans {
 public:
    bool any = false;     // may some row attend some key?
    bool every = false;   // may every row attend every key?
    explicit Spans(Index rows) : spans_(rows + rows / TILE_ROWS + 1), groups_(spans_ + rows) {}
    explicit operator bool() const { return static_cast<bool>(spans_); }

    const Span& row(Index row) const { return spans_[row]; }
    const Span& group(Index row) const { return groups_[row / TILE_ROWS]; }

    void read(const BlockAttention& call, const Tile& tile, const Block& block) {
        Span keys{block.first, block.first + block.count}, span{0, 0};
        any = false, every = true;
        for (int row = 0; row < tile.rows(); ++row) {
            if (row % tile.group == 0) {
                span = reach(call, tile.batch, tile.query(row), keys);
                span = span.empty() ? Span{0, 0} : Span{span.low - block.first, span.high - block.first};
                any = any || !span.empty();
                every = every && span.low == 0 && span.high == block.count;
            }
            if (row % TILE_ROWS == 0) groups_[row / TILE_ROWS] = {0, 0};
            groups_[row / TILE_ROWS].include(span);
            spans_[row] = span;
        }
    }

 private:
    Scratch<Span> spans_;
    Span* groups_;
};

// How the queries of a call are cut into tiles.
struct Tiling {
    Index group, tile_queries, tiles;

    explicit Tiling(const BlockAttention& call)
        : group(call.heads / call.key_heads),
          tile_queries(ROWS / group > 1 ? ROWS / group : 1),
          tiles((call.queries + tile_queries - 1) / tile_queries) {}

    Index rows() const { return tile_queries * group; }
    Index rows_of_call(const BlockAttention& call) const {
        return (call.queries < tile_queries ? call.queries : tile_queries) * group;
    }

    Tile tile(const BlockAttention& call, Index batch, Index key_head, Index number) const {
        Index first = number * tile_queries, left = call.queries - first;
        return {batch, key_head, first, static_cast<int>(left < tile_queries ? left : tile_queries),
                static_cast<int>(group)};
    }
};

template <typename T>
ATTNOPS_INLINE T* row_of(const Rows& rows, Index batch, Index head, Index row) {
    return static_cast<T*>(rows.data) + batch * rows.batch + head * rows.head + row * rows.row;
}

// The rows of a tile side by side, `width` numbers each, zeros up to `padded`.
template <typename T>
void gather(const Rows& from, const Tile& tile, Index width, Index padded, T* __restrict to) {
    for (int row = 0; row < tile.rows(); ++row, to += padded) {
        const T* source = row_of<T>(from, tile.batch, tile.head(row), tile.query(row));
        std::copy_n(source, width, to);
        for (Index d = width; d < padded; ++d) to[d] = 0;
    }
}

// The keys (or values) of a block side by side, padded likewise.
template <typename T>
void gather(const T* from, Index step, const Block& block, Index width, Index padded, T* to) {
    for (int row = 0; row < block.count; ++row, to += padded, from += step) {
        std::copy_n(from, width, to);
        for (Index d = width; d < padded; ++d) to[d] = 0;
    }
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
