// Attention over blocks of a grid, backward: each task owns some keys, walks over the tiles that reach them, and makes
// their weights again from the lse that the forward kept (Dao et al. 2022, arXiv:2205.14135, algorithm 4).
//
//     P = exp(S - lse)    dV = Pᵀ dO    dS = P ∘ (dO Vᵀ - Δ)    dQ = dS K    dK = dSᵀ Q    Δ = rowsum(dO ∘ O) - dlse
#include "block_logits.h"
#include "parallel.h"

namespace attnops {
namespace ATTNOPS_LEVEL {
namespace {

constexpr Index SEGMENT = 1024;      // keys of a segment, at least
constexpr Index ENOUGH_TASKS = 32;
constexpr Index MOST_COPIES = 3;     // of dQ, at most, that segments hold apart before they are added

// The rows of a tile that may attend some of TILE_ROWS neighbouring keys, for all of a block's keys.
struct ColumnGroups {
    Span rows[COLUMNS / TILE_ROWS + 1];

    ColumnGroups(const Spans& spans, const Tile& tile) {
        for (auto& group : rows) group = spans.every ? Span{0, tile.rows()} : Span{0, 0};
        if (spans.every) return;
        for (int row = 0; row < tile.rows(); ++row) {
            const Span& span = spans.row(row);
            if (span.empty()) continue;
            for (Index group = span.low / TILE_ROWS; group <= (span.high - 1) / TILE_ROWS; ++group)
                rows[group].include({row, row + 1});
        }
    }
};

// What one task needs besides its operands.
template <typename T>
struct Workspace {
    Scratch<T> query, grad_out, turned_keys, turned_values, keys, weights, dweights, slopes, dquery, dkey, dvalue;
    Spans spans;

    Workspace(Index rows, Index dim, Index width, bool softcap)
        : query(rows * dim), grad_out(rows * width), turned_keys(COLUMNS * dim), turned_values(COLUMNS * width),
          keys(COLUMNS * dim), weights(rows * COLUMNS), dweights(rows * COLUMNS),
          slopes(softcap ? rows * COLUMNS : 0), dquery(rows * dim), dkey(COLUMNS * dim), dvalue(COLUMNS * width),
          spans(rows) {}

    explicit operator bool() const {
        return query && grad_out && turned_keys && turned_values && keys && weights && dweights && slopes && dquery &&
               dkey && dvalue && spans;
    }
};

template <typename T>
class Backward {
 public:
    explicit Backward(const BlockAttention& call)
        : call_(call),
          tiling_(call),
          dim_(round_up(call.dim, WIDTH<T>)),
          width_(round_up(call.value_dim, WIDTH<T>)),
          reached_(call.batches * tiling_.tiles),
          delta_(call.batches * call.heads * call.queries) {
        for (int table = 0; table < call.num_tables; ++table)
            if (call.tables[table].grad) term_size_ += table_size(call.tables[table]);
        for (int slope = 0; slope < call.num_slopes; ++slope)
            if (call.slopes[slope].grad) term_size_ += tiling_.group;
        if (!reached_ || !delta_) return;
        for (Index batch = 0; batch < call.batches; ++batch)
            for (Index tile = 0; tile < tiling_.tiles; ++tile)
                reached_[batch * tiling_.tiles + tile] = reach(call, tiling_.tile(call, batch, 0, tile));
        cut_segments();
    }

    int run() {
        if (!reached_ || !delta_) return 1;
        Index heads = call_.batches * call_.key_heads, tasks = heads * segments_;
        parallel(call_.batches * call_.heads, call_.threads, [&](Index task) { sum_delta(task); });
        Scratch<T> copies(heads * copy_rows_ * dim_, true), terms(tasks * term_size_, true);
        if (!copies || !terms) return 1;
        copies_ = copies, terms_ = terms;
        parallel(tasks, call_.threads, [&](Index task) {
            Workspace<T> work(tiling_.rows(), dim_, width_, call_.softcap > 0);
            if (!work) return fail();
            Index head = task % heads, segment = task / heads;  // under a causal pattern the first have the most to do
            walk(head / call_.key_heads, head % call_.key_heads, segment, work);
        });
        parallel(heads, call_.threads, [&](Index head) {
            for (Index segment = 1; segment < segments_; ++segment)
                add_copy(head / call_.key_heads, head % call_.key_heads, segment);
        });
        add_term_gradients();
        return failed_;
    }

 private:
    void fail() { __atomic_store_n(&failed_, 1, __ATOMIC_RELAXED); }

    Index table_size(const BlockTable& table) const {
        return (table.head ? tiling_.group : 1) * table.rows * table.length;
    }

    // So many segments that threads have work, and that the copies of dQ stay few.
    void cut_segments() {
        Index heads = call_.batches * call_.key_heads, most = (call_.keys + SEGMENT - 1) / SEGMENT;
        segments_ = (ENOUGH_TASKS + heads - 1) / heads;
        if (segments_ > most) segments_ = most;
        if (segments_ < 1) segments_ = 1;
        for (;; --segments_) {
            segment_keys_ = round_up((call_.keys + segments_ - 1) / segments_, COLUMNS);
            copy_rows_ = 0;
            for (Index segment = 1; segment < segments_; ++segment) copy_rows_ += rows_of_copy(segment);
            if (segments_ == 1 || copy_rows_ <= MOST_COPIES * tiling_.tiles * tiling_.rows()) return;
        }
    }

    Span keys_of(Index segment) const {
        Index low = segment * segment_keys_, high = low + segment_keys_;
        return {low < call_.keys ? low : call_.keys, high < call_.keys ? high : call_.keys};
    }

    // The tiles that reach a segment, in any batch row.
    Span tiles_of(Index segment) const {
        Span keys = keys_of(segment), tiles{0, 0};
        for (Index batch = 0; batch < call_.batches; ++batch)
            for (Index tile = 0; tile < tiling_.tiles; ++tile) {
                const Span& reached = reached_[batch * tiling_.tiles + tile];
                if (reached.low < keys.high && keys.low < reached.high) tiles.include({tile, tile + 1});
            }
        return tiles;
    }

    Index rows_of_copy(Index segment) const {
        Span tiles = tiles_of(segment);
        return (tiles.high - tiles.low) * tiling_.rows();
    }

    // Where a segment's part of dQ lies: tile after tile, from the first that reaches it. Segment 0 has none.
    T* copy_of(Index batch, Index key_head, Index segment) const {
        Index before = 0;
        for (Index other = 1; other < segment; ++other) before += rows_of_copy(other);
        return copies_ + ((batch * call_.key_heads + key_head) * copy_rows_ + before) * dim_;
    }

    // In double: dS is a difference of this and another product, and what that rounds is enough.
    static T dot(const T* left, const T* right, Index count) {
        double total = 0;
        for (Index d = 0; d < count; ++d) total += static_cast<double>(left[d]) * static_cast<double>(right[d]);
        return static_cast<T>(total);
    }

    void sum_delta(Index number) {
        Index batch = number / call_.heads, head = number % call_.heads;
        for (Index query = 0; query < call_.queries; ++query) {
            const T* out = row_of<T>(call_.out, batch, head, query);
            const T* grad = row_of<T>(call_.grad_out, batch, head, query);
            T total = dot(out, grad, call_.value_dim);
            Index place = number * call_.queries + query;
            delta_[place] = call_.grad_lse ? total - static_cast<const T*>(call_.grad_lse)[place] : total;
        }
    }

    void walk(Index batch, Index key_head, Index segment, Workspace<T>& work) {
        Span keys = keys_of(segment), tiles = tiles_of(segment);
        T* copy = segment ? copy_of(batch, key_head, segment) : nullptr;
        T* terms = terms_ + ((segment * call_.batches + batch) * call_.key_heads + key_head) * term_size_;
        for (Index first = keys.low; first < keys.high; first += COLUMNS) {
            Block block{first, static_cast<int>(keys.high - first < COLUMNS ? keys.high - first : COLUMNS)};
            bool begun = false;
            for (Index number = tiles.low; number < tiles.high; ++number) {
                const Span& reached = reached_[batch * tiling_.tiles + number];
                if (reached.high <= first || first + block.count <= reached.low) continue;
                Tile tile = tiling_.tile(call_, batch, key_head, number);
                work.spans.read(call_, tile, block);
                if (!work.spans.any) continue;
                if (!begun) begin(batch, key_head, block, work);
                begun = true;
                meet(tile, block, work, terms);
                T* to = copy ? copy + (number - tiles.low) * tiling_.rows() * dim_ : nullptr;
                add_query_gradient(tile, work, to);
            }
            if (begun) add_key_gradients(batch, key_head, block, work);
        }
    }

    // Load a block of keys and values.
    void begin(Index batch, Index key_head, const Block& block, Workspace<T>& work) {
        const T* key = row_of<T>(call_.key, batch, key_head, block.first);
        pack_turned<T>(key, call_.key.row, block.count, call_.dim, work.turned_keys);
        gather<T>(key, call_.key.row, block, call_.dim, dim_, work.keys);
        pack_turned<T>(row_of<T>(call_.value, batch, key_head, block.first), call_.value.row, block.count,
                       call_.value_dim, work.turned_values);
        std::memset(static_cast<void*>(work.dkey), 0, static_cast<std::size_t>(COLUMNS * dim_) * sizeof(T));
        std::memset(static_cast<void*>(work.dvalue), 0, static_cast<std::size_t>(COLUMNS * width_) * sizeof(T));
    }

    // A tile against a block: its weights and dS, and what they add to dK, dV and the terms.
    void meet(const Tile& tile, const Block& block, Workspace<T>& work, T* terms) {
        gather<T>(call_.query, tile, call_.dim, dim_, work.query);
        gather<T>(call_.grad_out, tile, call_.value_dim, width_, work.grad_out);
        auto keys = Right<T>::packed(work.turned_keys, call_.dim);
        auto values = Right<T>::packed(work.turned_values, call_.value_dim);
        for (int row = 0; row < tile.rows(); row += TILE_ROWS) {
            int many = tile.rows() - row < TILE_ROWS ? tile.rows() - row : TILE_ROWS;
            Span span = work.spans.group(row);
            multiply_wide_rows<T>(many, span.low, span.high, call_.dim, work.query + row * dim_, dim_, keys,
                                  work.weights + row * COLUMNS, COLUMNS);
            multiply_wide_rows<T>(many, span.low, span.high, call_.value_dim, work.grad_out + row * width_, width_,
                                  values, work.dweights + row * COLUMNS, COLUMNS);
        }
        for (int row = 0; row < tile.rows(); ++row) differentiate(tile, row, block, work, terms);
        ColumnGroups groups(work.spans, tile);
        auto query = Right<T>::rows(work.query, dim_), grad_out = Right<T>::rows(work.grad_out, width_);
        for (int column = 0; column < block.count; column += TILE_ROWS) {
            int many = block.count - column < TILE_ROWS ? block.count - column : TILE_ROWS;
            Span rows = groups.rows[column / TILE_ROWS];
            if (rows.empty()) continue;
            Index at = rows.low * COLUMNS + column, depth = rows.high - rows.low;
            multiply_rows<true, T>(many, 0, width_, depth, work.weights + at, COLUMNS,
                                   Right<T>::rows(grad_out.data + rows.low * width_, width_),
                                   work.dvalue + column * width_, width_, true);
            multiply_rows<true, T>(many, 0, dim_, depth, work.dweights + at, COLUMNS,
                                   Right<T>::rows(query.data + rows.low * dim_, dim_), work.dkey + column * dim_,
                                   dim_, true);
        }
    }

    // A row's products made weights (after dropout), and its dO·v made dS; zeros in both where it attends nothing.
    void differentiate(const Tile& tile, int number, const Block& block, Workspace<T>& work, T* terms) {
        constexpr int W = WIDTH<T>;
        using V = Vector<T, W>;
        LogitRow row = LogitRow::of<T>(tile, number, block, work.spans.row(number));
        T *logits = work.weights + number * COLUMNS, *dlogits = work.dweights + number * COLUMNS;
        T* slopes = call_.softcap > 0 ? work.slopes + number * COLUMNS : nullptr;
        Index place = (row.batch * call_.heads + row.head) * call_.queries + row.query;
        T lse = static_cast<const T*>(call_.lse)[place], delta = delta_[place];
        T rest = call_.rest ? static_cast<const T*>(call_.rest)[place] : T(0);
        if (row.span.empty() || lse == -INFINITE<T>) {
            std::memset(static_cast<void*>(logits), 0, COLUMNS * sizeof(T));
            std::memset(static_cast<void*>(dlogits), 0, COLUMNS * sizeof(T));
            if (lse == -INFINITE<T>) {  // a dead row's vectors may hold anything
                std::memset(static_cast<void*>(work.query + number * dim_), 0, dim_ * sizeof(T));
                std::memset(static_cast<void*>(work.grad_out + number * width_), 0, width_ * sizeof(T));
            }
            return;
        }
        finish_logits<T>(call_, row, logits, slopes);
        for (Index c = 0; c < row.low; c += W) store<W>(logits + c, V{}), store<W>(dlogits + c, V{});
        for (Index c = row.high; c < COLUMNS; c += W) store<W>(logits + c, V{}), store<W>(dlogits + c, V{});
        for (Index c = row.low; c < row.high; c += W) {
            V weight = exponential_of_negative<W>(load<W>(logits + c) - lse - rest);
            store<W>(logits + c, weight);
            if (call_.dropout > 0) continue;
            store<W>(dlogits + c, weight * (load<W>(dlogits + c) - delta));
        }
        if (call_.dropout > 0) {
            Dropout keep(call_, row);
            for (Index c = row.low; c < row.high; ++c) {
                T kept = static_cast<T>(keep(c));
                dlogits[c] = logits[c] * (kept * dlogits[c] - delta);
                logits[c] *= kept;
            }
        }
        gather_term_gradients(row, number % tile.group, dlogits, terms);
        if (slopes)
            for (Index c = row.low; c < row.high; ++c) dlogits[c] *= slopes[c];
    }

    void gather_term_gradients(const LogitRow& row, Index member, const T* dlogits, T* terms) {
        for (int number = 0; number < call_.num_tables; ++number) {
            const BlockTable& table = call_.tables[number];
            if (!table.grad) continue;
            add_table_gradient<T>(table, row, member, dlogits, terms);
            terms += table_size(table);
        }
        for (int number = 0; number < call_.num_slopes; ++number) {
            if (!call_.slopes[number].grad) continue;
            terms[member] += slope_gradient<T>(call_.slopes[number], row, dlogits);
            terms += tiling_.group;
        }
        if (call_.grad_additive) {
            Index place = (row.batch * call_.heads + row.head) * call_.queries + row.query;
            T* to = static_cast<T*>(call_.grad_additive) + place * call_.keys + row.first_key;
            for (Index c = row.span.low; c < row.span.high; ++c) to[c] = dlogits[c];
        }
    }

    void add_query_gradient(const Tile& tile, Workspace<T>& work, T* copy) {
        T scale = static_cast<T>(call_.scale);
        for (int row = 0; row < tile.rows(); row += TILE_ROWS) {
            int many = tile.rows() - row < TILE_ROWS ? tile.rows() - row : TILE_ROWS;
            Span span = work.spans.group(row);
            if (span.empty()) continue;
            multiply_rows<false, T>(many, 0, dim_, span.high - span.low, work.dweights + row * COLUMNS + span.low,
                                    COLUMNS, Right<T>::rows(work.keys + span.low * dim_, dim_), work.dquery, dim_,
                                    false);
            for (int i = 0; i < many; ++i) {
                T* to = copy ? copy + (row + i) * dim_
                             : row_of<T>(call_.grad_query, tile.batch, tile.head(row + i), tile.query(row + i));
                const T* from = work.dquery + i * dim_;
                for (Index d = 0; d < call_.dim; ++d) to[d] += scale * from[d];
            }
        }
    }

    void add_key_gradients(Index batch, Index key_head, const Block& block, const Workspace<T>& work) {
        T scale = static_cast<T>(call_.scale);
        for (int row = 0; row < block.count; ++row) {
            T* dkey = row_of<T>(call_.grad_key, batch, key_head, block.first + row);
            T* dvalue = row_of<T>(call_.grad_value, batch, key_head, block.first + row);
            for (Index d = 0; d < call_.dim; ++d) dkey[d] += scale * work.dkey[row * dim_ + d];
            for (Index d = 0; d < call_.value_dim; ++d) dvalue[d] += work.dvalue[row * width_ + d];
        }
    }

    // A segment's part of dQ, added to the whole.
    void add_copy(Index batch, Index key_head, Index segment) {
        Span tiles = tiles_of(segment);
        const T* copy = copy_of(batch, key_head, segment);
        for (Index number = tiles.low; number < tiles.high; ++number) {
            Tile tile = tiling_.tile(call_, batch, key_head, number);
            const T* from = copy + (number - tiles.low) * tiling_.rows() * dim_;
            for (int row = 0; row < tile.rows(); ++row, from += dim_) {
                T* to = row_of<T>(call_.grad_query, batch, tile.head(row), tile.query(row));
                for (Index d = 0; d < call_.dim; ++d) to[d] += from[d];
            }
        }
    }

    // What the tasks gathered for each term, added in their order.
    void add_term_gradients() {
        const T* from = terms_;
        for (Index task = 0; term_size_ && task < segments_ * call_.batches * call_.key_heads; ++task) {
            Index key_head = task % call_.key_heads, batch = task / call_.key_heads % call_.batches;
            for (int number = 0; number < call_.num_tables; ++number) {
                const BlockTable& table = call_.tables[number];
                if (!table.grad) continue;
                T* to = static_cast<T*>(table.grad) + batch * table.batch + key_head * tiling_.group * table.head;
                for (Index place = 0; place < table_size(table); ++place) to[place] += from[place];
                from += table_size(table);
            }
            for (int number = 0; number < call_.num_slopes; ++number) {
                if (!call_.slopes[number].grad) continue;
                T* to = static_cast<T*>(call_.slopes[number].grad) + key_head * tiling_.group;
                for (Index member = 0; member < tiling_.group; ++member) to[member] += from[member];
                from += tiling_.group;
            }
        }
    }

    const BlockAttention& call_;
    Tiling tiling_;
    Index dim_, width_;      // rounded up to whole vectors
    Scratch<Span> reached_;  // the keys that each tile reaches, batch row by batch row
    Scratch<T> delta_;
    Index segments_ = 1, segment_keys_ = 0, copy_rows_ = 0, term_size_ = 0;
    T *copies_ = nullptr, *terms_ = nullptr;
    int failed_ = 0;
};

}  // namespace

int block_attention_backward(const BlockAttention& call) {
    if (call.is_double) return Backward<double>(call).run();
    return Backward<float>(call).run();
}

}  // namespace ATTNOPS_LEVEL
}  // namespace attnops
