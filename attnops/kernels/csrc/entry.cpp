// The library's C interface: what kernels.library loads. Chooses the vector level once.
#include <new>

#include "block_interface.h"
#include "interface.h"
#include "parallel.h"

namespace attnops {

namespace {

enum Level { PLAIN, V2, V3, V4 };

Level best_level() {
#if defined(ATTNOPS_X86_LEVELS)
    __builtin_cpu_init();
    bool v2 = __builtin_cpu_supports("sse4.2") && __builtin_cpu_supports("popcnt");
    bool v3 = v2 && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2");
    bool v4 = v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
              __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
              __builtin_cpu_supports("avx512vl");
    return v4 ? V4 : v3 ? V3 : v2 ? V2 : PLAIN;
#else
    return PLAIN;
#endif
}

Level level = best_level();

}  // namespace
}  // namespace attnops

// call at the level in use; 1 where memory runs out.
#if defined(ATTNOPS_X86_LEVELS)
#define ATTNOPS_CHOOSE(call)                            \
    try {                                               \
        switch (attnops::level) {                       \
            case attnops::V4: return attnops::v4::call; \
            case attnops::V3: return attnops::v3::call; \
            case attnops::V2: return attnops::v2::call; \
            default: return attnops::plain::call;       \
        }                                               \
    } catch (const std::bad_alloc&) {                   \
        return 1;                                       \
    }
#else
#define ATTNOPS_CHOOSE(call)          \
    try {                             \
        return attnops::plain::call;  \
    } catch (const std::bad_alloc&) { \
        return 1;                     \
    }
#endif

extern "C" {

int attnops_interface() { return ATTNOPS_INTERFACE; }

// The vector level in use, 0 (plain) to 3 (x86-64-v4).
int attnops_level() { return attnops::level; }

// Takes another level, which must not be above what the machine has; returns the level in use.
int attnops_set_level(int wanted) {
    attnops::Level best = attnops::best_level();
    if (wanted >= attnops::PLAIN && wanted <= best) attnops::level = static_cast<attnops::Level>(wanted);
    return attnops::level;
}

void attnops_set_openmp(void* entry) { attnops::use_openmp(reinterpret_cast<attnops::OpenMP>(entry)); }

int attnops_edge_attention(const EdgeAttention* call) { ATTNOPS_CHOOSE(edge_attention(*call)); }
int attnops_edge_attention_backward(const EdgeAttention* call) { ATTNOPS_CHOOSE(edge_attention_backward(*call)); }
std::int64_t attnops_edge_attention_size() { return sizeof(EdgeAttention); }

int attnops_block_attention(const BlockAttention* call) { ATTNOPS_CHOOSE(block_attention(*call)); }
int attnops_block_attention_backward(const BlockAttention* call) { ATTNOPS_CHOOSE(block_attention_backward(*call)); }
std::int64_t attnops_block_attention_size() { return sizeof(BlockAttention); }

int attnops_linear_rows(const LinearRows* call) { ATTNOPS_CHOOSE(linear_rows(*call)); }
std::int64_t attnops_linear_rows_size() { return sizeof(LinearRows); }
}
