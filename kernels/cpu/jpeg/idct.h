// The inverse DCT of JPEG blocks straight into planes: libjpeg-turbo's accurate integer one, to the bit.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd.h"

namespace feeder {

// Note [inverse DCT]
// The arithmetic is that of libjpeg-turbo's SIMD code for the accurate integer transform ("islow"): 16-bit products and
// sums that wrap, 32-bit sums of products, saturation when they are packed. A vector holds one block in each of its
// 128-bit lanes, so one source serves one and two blocks at a time, and no operation crosses lanes.
//
// libjpeg-turbo takes a short cut for a block with nothing but its first row, in which values wrap at 16 bits that
// otherwise saturate. Only large values differ, which no real image has: such a first row is detected, and libjpeg's own
// function transforms the block.

// A block to transform: 64 coefficients in natural order, aligned to 16 bytes, and the address of its top left sample.
struct IdctBlock {
    int16_t* coefficients;
    uint8_t* out;
};

// First rows whose dequantized values all lie in [-kSafeLevel, kSafeLevel) are as libjpeg's either way.
inline constexpr int kSafeLevel = 8192;

struct IdctKernels {
    // Transforms blocks that share a quantization table (natural order) and a stride. Returns the number of blocks
    // done, from the first on: fewer than `count` if the next one's first row is not safe.
    int (*full)(const IdctBlock* blocks, int count, const int16_t* quant, ptrdiff_t stride_bytes);
    // The same for blocks with zeros outside the upper left 4 x 4 coefficients.
    int (*corner)(const IdctBlock* blocks, int count, const int16_t* quant, ptrdiff_t stride_bytes);
};

#if defined(__x86_64__)
const IdctKernels& sse2_idct();
const IdctKernels& avx2_idct();
const IdctKernels& avx512_idct();
#endif

// The kernels of simd_level() for use beside Huffman decoding, or nullptr if libjpeg's function has to do all blocks.
inline const IdctKernels* idct_kernels() {
#if defined(__x86_64__)
    switch (simd_level()) {
        case SimdLevel::avx512: return has_cheap_512_bits() ? &avx512_idct() : &avx2_idct();
        case SimdLevel::avx2: return &avx2_idct();
        case SimdLevel::portable: return &sse2_idct();
    }
#endif
    return nullptr;
}

// The same for long runs of blocks without Huffman decoding in between.
inline const IdctKernels* wide_idct_kernels() {
#if defined(__x86_64__)
    if (simd_level() == SimdLevel::avx512) return &avx512_idct();
#endif
    return idct_kernels();
}

}  // namespace feeder
