// The rows of a CSR cut into pieces of about equal numbers of edges, by the graph alone: the same for any number of
// threads. A row with more edges than two pieces hold (a hub) is cut into parts, joined afterwards in their order.
#pragma once

#include <cstdint>
#include <vector>

namespace attnops {

struct Piece {
    std::int64_t first_row, last_row;    // half-open
    std::int64_t first_edge, last_edge;
    std::int64_t part;                   // which part of a hub, counted over all hubs; -1: whole rows
};

struct Hub {
    std::int64_t row, first_part, last_part;
};

class Pieces {
public:
    Pieces(const std::int64_t* pointer, std::int64_t rows, std::int64_t size);
    ~Pieces();

    std::int64_t count() const;
    std::int64_t hub_count() const;
    std::int64_t parts() const { return parts_; }
    const Piece& operator[](std::int64_t index) const;
    const Hub& hub(std::int64_t index) const;

private:
    void cut_hub(const std::int64_t* pointer, std::int64_t row, std::int64_t size);

    std::vector<Piece> pieces_;
    std::vector<Hub> hubs_;
    std::int64_t parts_ = 0;
};

}  // namespace attnops
