#include "cpu/simd.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace feeder {
namespace {

#if defined(__x86_64__)
// clang before 17 has no name for it in __builtin_cpu_supports.
bool has_f16c() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_F16C) != 0;
}
#endif

SimdLevel detect() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 =
        __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && has_f16c() && __builtin_cpu_supports("bmi2");
    const bool avx512 = avx2 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                        __builtin_cpu_supports("avx512vnni") && __builtin_cpu_supports("avx512vbmi");
    if (avx512) return SimdLevel::avx512;
    if (avx2) return SimdLevel::avx2;
#endif
    return SimdLevel::portable;
}

std::atomic<SimdLevel>& current() {
    static std::atomic<SimdLevel> level{best_simd_level()};
    return level;
}

}  // namespace

SimdLevel best_simd_level() {
    static const SimdLevel best = detect();
    return best;
}

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

bool set_simd_level(SimdLevel level) {
    if (level > best_simd_level()) return false;
    current().store(level, std::memory_order_relaxed);
    return true;
}

}  // namespace feeder
