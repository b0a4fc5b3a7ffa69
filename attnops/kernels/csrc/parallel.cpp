#include "parallel.h"

#include <pthread.h>

#include <atomic>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

namespace attnops {

namespace {

OpenMP openmp = nullptr;

struct Shared {
    void (*body)(const void*, std::int64_t);
    const void* context;
    std::int64_t tasks;
    std::atomic<std::int64_t> next{0};
    std::atomic<bool> out_of_memory{false};
};

void run_shared(void* argument) {
    auto& shared = *static_cast<Shared*>(argument);
    try {
        for (std::int64_t task; (task = shared.next.fetch_add(1, std::memory_order_relaxed)) < shared.tasks;)
            shared.body(shared.context, task);
    } catch (const std::bad_alloc&) {  // no exception may leave a thread
        shared.out_of_memory = true;
    }
}

void run_on_own_threads(Shared& shared, int threads) {
    std::vector<std::thread> others;
    try {
        for (int other = 1; other < threads; ++other) others.emplace_back(&run_shared, &shared);
    } catch (const std::system_error&) {  // the system gives no more threads: those there are do the work
    } catch (const std::bad_alloc&) {
    }
    run_shared(&shared);
    for (auto& other : others) other.join();
}

}  // namespace

void run_tasks(std::int64_t tasks, int threads, void (*body)(const void*, std::int64_t), const void* context) {
    if (threads > tasks) threads = static_cast<int>(tasks);
    Shared shared{body, context, tasks};
    if (threads <= 1)
        run_shared(&shared);
    else if (openmp)
        openmp(&run_shared, &shared, static_cast<unsigned>(threads), 0);
    else
        run_on_own_threads(shared, threads);
    if (shared.out_of_memory) throw std::bad_alloc();
}

void use_openmp(OpenMP entry) {
    openmp = entry;
    // OpenMP's threads do not outlive a fork, and it would wait for them in the child for ever.
    pthread_atfork(nullptr, nullptr, [] { openmp = nullptr; });
}

}  // namespace attnops
