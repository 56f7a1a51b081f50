#include "simd.h"

#include <atomic>

namespace feeder {
namespace {

SimdLevel detect() {
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
                      __builtin_cpu_supports("f16c") && __builtin_cpu_supports("bmi2");
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
