// Tasks shared among threads. What a task computes never depends on which thread runs it, nor on how many there are.
#pragma once

#include <cstdint>

namespace attnops {

// OpenMP's own entry, where the host program has one: its threads are then shared, so that no more than the host's
// number ever run. Set once when the library is loaded; null where there is none.
using OpenMP = void (*)(void (*body)(void*), void* context, unsigned threads, unsigned flags);
void use_openmp(OpenMP entry);

void run_tasks(std::int64_t tasks, int threads, void (*body)(const void*, std::int64_t), const void* context);

// body(task) for every task in [0, tasks), by at most `threads` threads; returns when all are done. Throws bad_alloc where a task did.
template <typename Body>
inline void parallel(std::int64_t tasks, int threads, const Body& body) {
    run_tasks(
        tasks, threads, [](const void* context, std::int64_t task) { (*static_cast<const Body*>(context))(task); },
        &body);
}

}  // namespace attnops
