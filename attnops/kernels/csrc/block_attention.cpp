// Attention over blocks of a grid, forward: tiles of query rows walk over blocks of keys with an online softmax
// (Milakov and Gimelshein 2018, arXiv:1805.02867; Dao et al. 2022, arXiv:2205.14135).
#include "block_logits.h"
#include "parallel.h"

namespace attnops {
namespace ATTNOPS_LEVEL {
namespace {

constexpr Index PART = 1024;      // keys of a part, at least, where few tiles have many keys
constexpr Index ENOUGH_TASKS = 32;
constexpr Index FEW_ROWS = 8;     // so few that turning a block of keys costs more than it saves

// A tile's softmax so far: for each row the largest logit, the sum of exponentials and the weighted sum of values.
template <typename T>
struct State {
    T *top, *total, *sum;
    static Index size(Index rows, Index width) { return rows * (width + 2); }
    State(T* data, Index rows, Index width) : top(data + rows * width), total(top + rows), sum(data) {}
};

template <typename T>
class Forward {
 public:
    explicit Forward(const BlockAttention& call)
        : call_(call),
          tiling_(call),
          dim_(round_up(call.dim, WIDTH<T>)),
          width_(round_up(call.value_dim, WIDTH<T>)),
          few_(tiling_.rows_of_call(call) <= FEW_ROWS && dim_ == call.dim) {
        Index tasks = call.batches * call.key_heads * tiling_.tiles;
        parts_ = tasks >= ENOUGH_TASKS ? 1 : (ENOUGH_TASKS + tasks - 1) / tasks;
        Index most = (call.keys + PART - 1) / PART;
        parts_ = parts_ < most ? parts_ : most;
        part_keys_ = parts_ ? round_up((call.keys + parts_ - 1) / parts_, COLUMNS) : 0;
    }

    int run() {
        Index tiles = call_.batches * call_.key_heads * tiling_.tiles, size = State<T>::size(tiling_.rows(), width_);
        if (parts_ <= 1) {
            parallel(tiles, call_.threads, [&](Index task) {
                Scratch<T> data(size);
                if (!data) return fail();
                State<T> state(data, tiling_.rows(), width_);
                Tile tile = tile_of(tiles - 1 - task);  // under a causal pattern the last have the most to do
                walk(tile, {0, call_.keys}, state);
                finish(tile, state);
            });
            return failed_;
        }
        Scratch<T> states(tiles * parts_ * size);
        if (!states) return 1;
        auto state_of = [&](Index task) { return State<T>(states + task * size, tiling_.rows(), width_); };
        parallel(tiles * parts_, call_.threads, [&](Index task) {
            Index part = task % parts_;
            State<T> state = state_of(task);
            walk(tile_of(task / parts_), {part * part_keys_, (part + 1) * part_keys_}, state);
        });
        parallel(tiles, call_.threads, [&](Index task) {
            Tile tile = tile_of(task);
            State<T> state = state_of(task * parts_);
            for (Index part = 1; part < parts_; ++part) merge(tile, state, state_of(task * parts_ + part));
            finish(tile, state);
        });
        return failed_;
    }

 private:
    void fail() { __atomic_store_n(&failed_, 1, __ATOMIC_RELAXED); }

    Tile tile_of(Index number) const {
        Index pair = number / tiling_.tiles;
        return tiling_.tile(call_, pair / call_.key_heads, pair % call_.key_heads, number % tiling_.tiles);
    }

    // Bring a tile's state past the keys of `within`.
    void walk(const Tile& tile, Span within, State<T>& state) {
        Index rows = tile.rows();
        for (Index row = 0; row < rows; ++row) state.top[row] = -INFINITE<T>, state.total[row] = 0;
        std::memset(static_cast<void*>(state.sum), 0, static_cast<std::size_t>(rows * width_) * sizeof(T));
        Scratch<T> query(rows * dim_), keys(COLUMNS * dim_), values(COLUMNS * width_), weights(rows * COLUMNS);
        Spans spans(rows);
        if (!query || !keys || !values || !weights || !spans) return fail();
        gather<T>(call_.query, tile, call_.dim, dim_, query);
        Span hull = reach(call_, tile);
        if (hull.low < within.low) hull.low = within.low;
        if (hull.high > within.high) hull.high = within.high;
        for (Index first = hull.low; first < hull.high; first += COLUMNS) {
            Block block{first, static_cast<int>(hull.high - first < COLUMNS ? hull.high - first : COLUMNS)};
            spans.read(call_, tile, block);
            if (!spans.any) continue;
            multiply_keys(tile, block, spans, query, keys, weights);
            for (int row = 0; row < rows; ++row)
                weigh(LogitRow::of<T>(tile, row, block, spans.row(row)), weights + row * COLUMNS,
                      state.sum + row * width_, state.top[row], state.total[row]);
            add_values(tile, block, spans, weights, values, state.sum);
        }
    }

    void multiply_keys(const Tile& tile, const Block& block, const Spans& spans, const T* query, T* turned, T* products) {
        const T* key = row_of<T>(call_.key, tile.batch, tile.key_head, block.first);
        if (few_) {
            multiply_by_dots(tile.rows(), block.count, dim_, query, dim_, key, call_.key.row, products, COLUMNS);
            return;
        }
        pack_turned(key, call_.key.row, block.count, call_.dim, turned);
        auto keys = Right<T>::packed(turned, call_.dim);
        for (int row = 0; row < tile.rows(); row += TILE_ROWS) {
            int many = tile.rows() - row < TILE_ROWS ? tile.rows() - row : TILE_ROWS;
            Span span = spans.group(row);
            multiply_wide_rows(many, span.low, span.high, call_.dim, query + row * dim_, dim_, keys,
                               products + row * COLUMNS, COLUMNS);
        }
    }

    // Products made weights e^(logit - top), zeros elsewhere in the block; what the row held is brought to the new top.
    void weigh(const LogitRow& row, T* logits, T* held, T& top, T& total) {
        constexpr int W = WIDTH<T>;
        using V = Vector<T, W>;
        finish_logits(call_, row, logits, static_cast<T*>(nullptr));
        T highest = highest_of(row, logits, top);
        if (row.span.empty() || highest == -INFINITE<T>) {
            std::memset(static_cast<void*>(logits), 0, COLUMNS * sizeof(T));
            return;
        }
        if (highest > top) {
            T factor = exponential_of(top - highest);
            total *= factor;
            for (Index d = 0; d < width_; d += W) store<W>(held + d, load<W>(held + d) * factor);
            top = highest;
        }
        V totals{};
        for (Index c = row.low; c < row.high; c += W) {
            V weight = exponential_of_negative<W>(load<W>(logits + c) - highest);
            totals += weight;
            store<W>(logits + c, weight);
        }
        total += sum<W, T>(totals);
        for (Index c = 0; c < row.low; c += W) store<W>(logits + c, V{});
        for (Index c = row.high; c < COLUMNS; c += W) store<W>(logits + c, V{});
        if (call_.dropout > 0) {
            Dropout keep(call_, row);
            for (Index c = row.low; c < row.high; ++c) logits[c] *= static_cast<T>(keep(c));
        }
    }

    // The largest logit so far. Of a row that has heard nothing but NaN it is 0, so that the NaN shows in the output.
    static T highest_of(const LogitRow& row, const T* logits, T top) {
        constexpr int W = WIDTH<T>;
        Vector<T, W> tops = Vector<T, W>{} - INFINITE<T>;
        for (Index c = row.low; c < row.high; c += W) {
            auto logit = load<W>(logits + c);
            tops = logit > tops ? logit : tops;
        }
        T highest = largest<W, T>(tops);
        highest = highest > top ? highest : top;
        if (highest == -INFINITE<T>)
            for (Index c = row.span.low; c < row.span.high; ++c)
                if (logits[c] != logits[c]) return 0;
        return highest;
    }

    void add_values(const Tile& tile, const Block& block, const Spans& spans, const T* weights, T* copy, T* held) {
        const T* value = row_of<T>(call_.value, tile.batch, tile.key_head, block.first);
        Index step = call_.value.row;
        if (width_ != call_.value_dim || (step != width_ && !few_)) {  // rows far apart share few lines of a cache
            gather<T>(value, step, block, call_.value_dim, width_, copy);
            value = copy, step = width_;
        }
        for (int row = 0; row < tile.rows(); row += TILE_ROWS) {
            int many = tile.rows() - row < TILE_ROWS ? tile.rows() - row : TILE_ROWS;
            Span span = spans.group(row);
            if (span.empty()) continue;
            multiply_rows<false>(many, 0, width_, span.high - span.low, weights + row * COLUMNS + span.low, COLUMNS,
                                 Right<T>::rows(value + span.low * step, step), held + row * width_, width_, true);
        }
    }

    void merge(const Tile& tile, State<T>& into, const State<T>& part) {
        for (int row = 0; row < tile.rows(); ++row) {
            if (part.top[row] == -INFINITE<T>) continue;
            T top = part.top[row] > into.top[row] ? part.top[row] : into.top[row];
            T mine = exponential_of(into.top[row] - top), its = exponential_of(part.top[row] - top);
            into.total[row] = into.total[row] * mine + part.total[row] * its;
            T* held = into.sum + row * width_;
            const T* other = part.sum + row * width_;
            for (Index d = 0; d < width_; ++d) held[d] = held[d] * mine + other[d] * its;
            into.top[row] = top;
        }
    }

    void finish(const Tile& tile, const State<T>& state) {
        for (int row = 0; row < tile.rows(); ++row) {
            T* out = row_of<T>(call_.out, tile.batch, tile.head(row), tile.query(row));
            const T* held = state.sum + row * width_;
            bool dead = state.top[row] == -INFINITE<T>;
            T share = dead ? T(0) : 1 / state.total[row];
            T nothing = 0;  // NaN once a number is not finite
            for (Index d = 0; d < call_.value_dim; ++d) {
                out[d] = held[d] * share;
                nothing += out[d] * 0;
            }
            if (nothing != 0 && call_.not_finite) __atomic_store_n(call_.not_finite, 1, __ATOMIC_RELAXED);
            Index place = (tile.batch * call_.heads + tile.head(row)) * call_.queries + tile.query(row);
            T log_total = logarithm_of(state.total[row]), lse = state.top[row] + log_total;
            static_cast<T*>(call_.lse)[place] = dead ? -INFINITE<T> : lse;
            static_cast<T*>(call_.rest)[place] = dead ? T(0) : log_total - (lse - state.top[row]);
        }
    }

    const BlockAttention& call_;
    Tiling tiling_;
    Index dim_, width_;  // rounded up to whole vectors
    bool few_;
    Index parts_, part_keys_;
    int failed_ = 0;
};

}  // namespace

int block_attention(const BlockAttention& call) {
    if (call.is_double) return Forward<double>(call).run();
    return Forward<float>(call).run();
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
