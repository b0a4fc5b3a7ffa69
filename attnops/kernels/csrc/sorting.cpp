// An edge list grouped by target, and the result by source: two stable counting sorts. A stable sort has one result,
// so that it is the same for any number of threads.
#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <memory>

#include "interface.h"
#include "parallel.h"

namespace attnops {
namespace {

struct Free {
    void operator()(std::int64_t* memory) const { std::free(memory); }
};

constexpr std::int64_t FEW = 1 << 14;  // edges that are not worth a second thread

// Parts of the edges, each counted and placed by one thread. A part has counters of its own for every group, but for
// the last, which counts in `pointer`: one part where groups are many beside the edges, so that no scratch outgrows them.
std::int64_t parts_of(std::int64_t edges, std::int64_t groups, std::int64_t threads) {
    std::int64_t most = std::min(edges / FEW, edges / (groups + 1));
    return std::max<std::int64_t>(1, std::min(threads, most));
}

// pointer [groups + 1]: group i lies at the places pointer[i] … pointer[i + 1]; order [edges]: the edge at each place;
// place [edges]: its inverse. Returns 1 where memory ran out and 2 where a key is no group: order and place are then
// not written.
template <typename Index>
int group(const Index* keys, std::int64_t edges, std::int64_t groups, std::int64_t threads, std::int64_t* pointer,
          std::int64_t* order, std::int64_t* place) {
    std::int64_t parts = parts_of(edges, groups, threads);
    std::unique_ptr<std::int64_t, Free> scratch;
    if (parts > 1) {
        scratch.reset(static_cast<std::int64_t*>(std::calloc((parts - 1) * groups + 1, sizeof(std::int64_t))));
        if (!scratch) return 1;
    }
    std::fill(pointer, pointer + groups + 1, 0);
    auto counters = [&](std::int64_t part) { return part == parts - 1 ? pointer : scratch.get() + part * groups; };
    auto first = [&](std::int64_t part) { return edges / parts * part + std::min(part, edges % parts); };

    std::atomic<bool> outside{false};
    parallel(parts, static_cast<int>(threads), [&](std::int64_t part) {
        std::int64_t* count = counters(part);
        bool wrong = false;
        for (std::int64_t edge = first(part); edge < first(part + 1); ++edge) {
            std::int64_t key = keys[edge];
            if (key < 0 || key >= groups) wrong = true;
            else ++count[key];
        }
        if (wrong) outside.store(true);
    });
    if (outside.load()) return 2;

    std::int64_t total = 0;
    for (std::int64_t key = 0; key < groups; ++key)
        for (std::int64_t part = 0; part < parts; ++part) {
            std::int64_t& next = counters(part)[key];
            std::int64_t count = next;
            next = total;
            total += count;
        }

    parallel(parts, static_cast<int>(threads), [&](std::int64_t part) {
        std::int64_t* next = counters(part);
        for (std::int64_t edge = first(part); edge < first(part + 1); ++edge) {
            std::int64_t at = next[keys[edge]]++;
            order[at] = edge;
            place[edge] = at;
        }
    });
    // The last part has moved each group's pointer to the group's end, where the next one begins.
    std::copy_backward(pointer, pointer + groups, pointer + groups + 1);
    pointer[0] = 0;
    return 0;
}

template <typename Index>
int sort(const SortEdges& call) {
    auto source = static_cast<const Index*>(call.source), target = static_cast<const Index*>(call.target);
    int failed = group(target, call.edges, call.queries, call.threads, call.pointer, call.order, call.place);
    if (failed) return failed;
    std::int64_t parts = std::max<std::int64_t>(1, call.edges / FEW);
    auto first = [&](std::int64_t part) { return call.edges / parts * part + std::min(part, call.edges % parts); };
    parallel(parts, static_cast<int>(call.threads), [&](std::int64_t part) {
        std::int64_t at = first(part), end = first(part + 1);
        std::int64_t* above = std::upper_bound(call.pointer, call.pointer + call.queries + 1, at);
        for (; at < end; ++at) {
            while (*above <= at) ++above;
            call.sorted_target[at] = above - call.pointer - 1;
            call.sorted_source[at] = source[call.order[at]];
        }
    });
    return group(static_cast<const std::int64_t*>(call.sorted_source), call.edges, call.keys, call.threads,
                 call.source_pointer, call.source_order, call.source_place);
}

}  // namespace
}  // namespace attnops

extern "C" {

// 0; 1 where memory ran out; 2 where an end is no node.
int attnops_sort_edges(const SortEdges* call) {
    return call->is_narrow ? attnops::sort<std::int32_t>(*call) : attnops::sort<std::int64_t>(*call);
}
std::int64_t attnops_sort_edges_size() { return sizeof(SortEdges); }
}
