#include "cpu/simd.h"

#include <atomic>

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace feeder {
namespace {

// Not __builtin_cpu_supports: with zig's runtime library it is linked and always false.
SimdLevel detect() {
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    constexpr unsigned kBasic = bit_OSXSAVE | bit_AVX | bit_FMA | bit_F16C;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0 || (c & kBasic) != kBasic) return SimdLevel::portable;
    // The register states that the operating system saves.
    unsigned saved = 0, upper = 0;
    __asm__("xgetbv" : "=a"(saved), "=d"(upper) : "c"(0));
    constexpr unsigned kYmm = 0x06, kZmm = 0xE6;
    if (__get_cpuid_count(7, 0, &a, &b, &c, &d) == 0) return SimdLevel::portable;
    constexpr unsigned kAvx2 = bit_AVX2 | bit_BMI2;
    if ((saved & kYmm) != kYmm || (b & kAvx2) != kAvx2) return SimdLevel::portable;
    constexpr unsigned kAvx512 = bit_AVX512F | bit_AVX512BW | bit_AVX512DQ | bit_AVX512VL;
    constexpr unsigned kMore = bit_AVX512VNNI | bit_AVX512VBMI | bit_AVX512VBMI2;
    if ((saved & kZmm) != kZmm || (b & kAvx512) != kAvx512 || (c & kMore) != kMore) return SimdLevel::avx2;
    return SimdLevel::avx512;
#else
    return SimdLevel::portable;
#endif
}

// AMD's families of CPUs. Zen 4 is of Zen 3's.
constexpr unsigned kZen3 = 0x19, kZen5 = 0x1A;

unsigned cpu_family() {
#if defined(__x86_64__)
    unsigned a = 0, b = 0, c = 0, d = 0;
    if (__get_cpuid(1, &a, &b, &c, &d) == 0) return 0;
    return (a >> 8 & 0xF) + (a >> 20 & 0xFF);
#else
    return 0;
#endif
}

std::atomic<SimdLevel>& current() {
    static std::atomic<SimdLevel> level{best_simd_level()};
    return level;
}

std::atomic<bool> pdep_is_slow{false}, sse2_is_missing{false};

}  // namespace

SimdLevel best_simd_level() {
    static const SimdLevel best = detect();
    return best;
}

bool is_amd() {
#if defined(__x86_64__)
    static const bool found = [] {
        unsigned a = 0, vendor = 0, c = 0, d = 0;
        constexpr unsigned kHygon = 0x6F677948;  // "Hygo"
        return __get_cpuid(0, &a, &vendor, &c, &d) != 0 && (vendor == signature_AMD_ebx || vendor == kHygon);
    }();
    return found;
#else
    return false;
#endif
}

bool has_fast_pdep() {
    static const bool fast = !is_amd() || cpu_family() >= kZen3;
    return fast && !pdep_is_slow.load(std::memory_order_relaxed);
}

bool has_cheap_512_bits() {
    static const bool cheap = is_amd() && cpu_family() >= kZen5;
    return cheap;
}

void pretend_slow_pdep(bool is_slow) { pdep_is_slow.store(is_slow, std::memory_order_relaxed); }

bool has_sse2() {
#if defined(__x86_64__)
    return !sse2_is_missing.load(std::memory_order_relaxed);
#else
    return false;
#endif
}

void pretend_no_sse2(bool is_missing) { sse2_is_missing.store(is_missing, std::memory_order_relaxed); }

SimdLevel simd_level() { return current().load(std::memory_order_relaxed); }

bool set_simd_level(SimdLevel level) {
    if (level > best_simd_level()) return false;
    current().store(level, std::memory_order_relaxed);
    return true;
}

}  // namespace feeder
