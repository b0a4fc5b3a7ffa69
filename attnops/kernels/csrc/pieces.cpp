#include "pieces.h"

#include <algorithm>

namespace attnops {

namespace {
constexpr std::int64_t MOST_ROWS = 1 << 14;  // of a piece: rows without edges are work too
}

Pieces::Pieces(const std::int64_t* pointer, std::int64_t rows, std::int64_t size) {
    for (std::int64_t row = 0; row < rows;) {
        if (pointer[row + 1] - pointer[row] > 2 * size) {
            cut_hub(pointer, row++, size);
            continue;
        }
        const std::int64_t* most = pointer + std::min(rows, row + MOST_ROWS) + 1;
        std::int64_t end = std::upper_bound(pointer + row + 1, most, pointer[row] + size) - pointer - 1;
        end = std::max(end, row + 1);
        pieces_.push_back({row, end, pointer[row], pointer[end], -1});
        row = end;
    }
}

Pieces::~Pieces() = default;

void Pieces::cut_hub(const std::int64_t* pointer, std::int64_t row, std::int64_t size) {
    std::int64_t count = (pointer[row + 1] - pointer[row] + size - 1) / size;
    hubs_.push_back({row, parts_, parts_ + count});
    for (std::int64_t first = pointer[row]; first < pointer[row + 1]; first += size)
        pieces_.push_back({row, row + 1, first, std::min(pointer[row + 1], first + size), parts_++});
}

std::int64_t Pieces::count() const { return static_cast<std::int64_t>(pieces_.size()); }
std::int64_t Pieces::hub_count() const { return static_cast<std::int64_t>(hubs_.size()); }
const Piece& Pieces::operator[](std::int64_t index) const { return pieces_[static_cast<std::size_t>(index)]; }
const Hub& Pieces::hub(std::int64_t index) const { return hubs_[static_cast<std::size_t>(index)]; }

}  // namespace attnops
