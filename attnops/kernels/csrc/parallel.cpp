#include "parallel.h"

#include <atomic>
#include <system_error>
#include <thread>
#include <vector>

namespace attnops {

OpenMP openmp = nullptr;

namespace {

struct Shared {
    void (*body)(const void*, std::int64_t);
    const void* context;
    std::int64_t tasks;
    std::atomic<std::int64_t> next{0};
};

void run_shared(void* argument) {
    auto& shared = *static_cast<Shared*>(argument);
    for (std::int64_t task; (task = shared.next.fetch_add(1, std::memory_order_relaxed)) < shared.tasks;)
        shared.body(shared.context, task);
}

}  // namespace

void run_tasks(std::int64_t tasks, int threads, void (*body)(const void*, std::int64_t), const void* context) {
    if (threads > tasks) threads = static_cast<int>(tasks);
    Shared shared{body, context, tasks};
    if (threads <= 1) {
        run_shared(&shared);
        return;
    }
    if (openmp) {
        openmp(&run_shared, &shared, static_cast<unsigned>(threads), 0);
        return;
    }
    std::vector<std::thread> others;
    try {
        for (int other = 1; other < threads; ++other) others.emplace_back(&run_shared, &shared);
    } catch (const std::system_error&) {  // the system gives no more threads: those there are do the work
    }
    run_shared(&shared);
    for (auto& other : others) other.join();
}

}  // namespace attnops
