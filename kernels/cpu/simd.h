// The instruction set of the kernels: chosen once from the CPU, and settable for tests.
#pragma once

#include <cstdint>

namespace feeder {

enum class SimdLevel : uint8_t {
    portable,  // plain C++, any CPU; with SSE2, which every x86-64 has, where that pays
    avx2,      // AVX2, FMA, F16C: x86 since 2013
    avx512,    // AVX-512 F, BW, DQ, VL, VNNI, VBMI, VBMI2: Ice Lake, Zen 4 and later
};

// The best level that this CPU and operating system can run.
SimdLevel best_simd_level();

// The level in use: the best one, unless set_simd_level() chose another.
SimdLevel simd_level();

// Makes all threads use `level` from now on. False, and no change, if this CPU can't run it. For tests and
// benchmarks: every level gives the same bytes.
bool set_simd_level(SimdLevel level);

// True on CPUs of AMD, or with its cores.
bool is_amd();

// True where vectors of 512 bits pay between other code, too: on AMD's CPUs since Zen 5. Zen 4 takes two cycles for each
// operation, and Intel's CPUs slow down.
bool has_cheap_512_bits();

// False on AMD's CPUs before Zen 3, which take hundreds of cycles for BMI2's pdep.
bool has_fast_pdep();

// Makes has_fast_pdep() false on this CPU, too, or true again where it was. For tests: the bytes are the same.
void pretend_slow_pdep(bool is_slow);

// True on x86-64. Asked for the resize's portable level, which has loops without SSE2, too.
bool has_sse2();

// Makes has_sse2() false on this CPU, too, or true again where it was. For tests: the bytes are the same.
void pretend_no_sse2(bool is_missing);

}  // namespace feeder
