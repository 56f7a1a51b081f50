// What makes one source compile as CUDA and as C++.
//
// Note [kernels in phases]
// A kernel is a struct: kThreads, kPhases, Shared (a block's shared memory), Local (what a thread keeps from phase to
// phase), and run<phase>(batch, place, shared, local). A phase is what one thread does between two barriers. On a GPU
// kernels.cu runs the phases with __syncthreads() between them. On a CPU emulate.h runs a phase for one thread after the
// other, in any order: as no barrier lies inside, a difference between two orders is a race, and so are two threads that
// change the same shared memory.
//
// Integers and floats are those of the CPU kernels to the bit: kernels.cu is compiled with --fmad=false.
#pragma once

#include <stdint.h>

#ifdef __CUDACC__
#define FEEDER_DEVICE __device__ __forceinline__
#define FEEDER_KEPT_LOOP _Pragma("unroll 1")  // before a loop that would be unrolled for nothing
#else
#define FEEDER_DEVICE inline
#define FEEDER_KEPT_LOOP
#endif

namespace feeder::cuda {

// A thread of a grid of one dimension.
struct Place {
    uint32_t block;
    uint32_t thread;
};

struct Nothing {};

template <typename T>
FEEDER_DEVICE T least(T a, T b) {
    return a < b ? a : b;
}
template <typename T>
FEEDER_DEVICE T most(T a, T b) {
    return a > b ? a : b;
}
template <typename T>
FEEDER_DEVICE T clamped(T value, T low, T high) {
    return least(most(value, low), high);
}

FEEDER_DEVICE uint32_t swap_bytes(uint32_t word) {
#ifdef __CUDA_ARCH__
    return __byte_perm(word, 0, 0x0123);
#else
    return __builtin_bswap32(word);
#endif
}

// The four bytes from `at` on, the first one lowest. Reads the two aligned words that hold them, so memory ends with 8
// bytes that mean nothing.
FEEDER_DEVICE uint32_t load32(const uint32_t* words, uint32_t at) {
    const uint32_t* const word = words + at / 4;
    return static_cast<uint32_t>((static_cast<uint64_t>(word[1]) << 32 | word[0]) >> (8 * (at % 4)));
}
FEEDER_DEVICE uint64_t load64(const uint32_t* words, uint32_t at) {
    return static_cast<uint64_t>(load32(words, at + 4)) << 32 | load32(words, at);
}

// Sets bits in memory that threads of several blocks share.
FEEDER_DEVICE void set_bits(uint32_t* word, uint32_t bits) {
#ifdef __CUDA_ARCH__
    atomicOr(word, bits);
#else
    *word |= bits;
#endif
}

}  // namespace feeder::cuda
