// The inner loops of resize and store, once per SIMD level. All levels give the same bytes.
//
// The resize works on stripes of kLanes output rows: the vertical pass fills a stripe row by row; pair_columns()
// turns it so that the rows lie in the lanes of a vector; in the horizontal pass an output column is then a sum of
// whole vectors times broadcast coefficients, without a gather or shuffle; finish_*() turns it back.
//
// Coefficients come in pairs, two int16 in an int32 (the first in the low half), as the multiply-add instructions
// take them. Two precisions:
//     q7     8-bit samples -> int16 with 7 fractional bits, 0 to 2**15 - 1 -> the same; coefficients of 14 bits
//     exact  8-bit samples -> 8-bit samples -> 8-bit samples, as Pillow does; coefficients of 22 bits, in two parts:
//            high (the upper 15 bits) and low (the lower 8)
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/simd.h"

namespace feeder {

inline constexpr int kLanes = 16;         // rows in a stripe
inline constexpr int kColumnBlock = 16;   // finish_*() and pair_columns() work on multiples of this
inline constexpr int kRowPadding = 64;    // rows in working memory may be read and written up to a multiple of this
inline constexpr int kPattern = 48;       // elements in an affine pattern: a multiple of 3 and of every vector length
inline constexpr int kPatternMemory = kPattern + 16;  // a pattern can be begun at any element of a vector
inline constexpr int kPlainBits = 14;     // fractional bits of q7 coefficients
inline constexpr int kExactBits = 22;     // fractional bits of exact coefficients
inline constexpr int kExactLowBits = 8;   // of them in the low part

// The coefficients of a horizontal pass: output x reads the `pairs` column pairs from first[x] on.
// `width` is a multiple of kColumnBlock; outputs beyond those wanted read nothing that others don't.
struct ColumnTable {
    const int32_t* first;  // [width]
    const int32_t* plain;  // [pairs, width], q7
    const int32_t* high;   // [pairs, width], exact
    const int32_t* low;    // [pairs, width], exact
    int pairs;
    int width;
};

struct PixelKernels {
    // Weighted sum of 2 * pairs rows of samples. Reads only `width` samples of each; `out` is padded. Coefficients are
    // `step` apart.
    void (*vertical_q7)(const uint8_t* const* rows, const int32_t* coefficients, ptrdiff_t step, int pairs, int width,
                        int16_t* out);

    // The same in the exact precision. Rows and `out` are padded.
    void (*vertical_exact)(const uint8_t* const* rows, const int32_t* high, const int32_t* low, ptrdiff_t step,
                           int pairs, int width, uint8_t* out);

    // Turns a stripe [kLanes, stride] into column pairs [columns / 2, kLanes], each an int32 of two neighbours (the
    // portable code has an order of its own within a pair). `columns` is a multiple of kColumnBlock.
    void (*pair_columns_q7)(const int16_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs);
    void (*pair_columns_exact)(const uint8_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs);

    // Column pairs to output columns, kLanes int16 each, in an order that only finish_*() of the same level knows.
    // For vectors it is [width / 2, 4, 2, 4]: two columns, 4 groups of rows, column, row. exact: 8-bit samples.
    void (*horizontal_q7)(const int32_t* pairs, const ColumnTable& table, int16_t* out);
    void (*horizontal_exact)(const int32_t* pairs, const ColumnTable& table, int16_t* out);

    // Three planes of horizontal_q7() to 8-bit RGB: rgb[c] is [kLanes, stride]. `width` is a multiple of kColumnBlock.
    void (*finish_ycbcr)(const int16_t* y, const int16_t* cb, const int16_t* cr, int width, uint8_t* const rgb[3],
                         ptrdiff_t stride);

    // One plane of horizontal_exact() to [kLanes, stride].
    void (*finish_exact)(const int16_t* plane, int width, uint8_t* out, ptrdiff_t stride);

    // n pixels of three interleaved samples to three rows (padded), and back to exactly 3 * n bytes.
    void (*deinterleave)(const uint8_t* pixels, int n, uint8_t* const rows[3]);
    void (*interleave)(const uint8_t* const rows[3], int n, uint8_t* pixels);

    // out[i] = samples[i] * scale[i % kPattern] + bias[i % kPattern], product and sum rounded to float32, then to
    // the dtype (nearest, ties to even). `samples` is padded; `out` is written for n elements; `scale` and `bias` have
    // kPatternMemory elements.
    void (*affine_float32)(const uint8_t* samples, int n, const float* scale, const float* bias, float* out);
    void (*affine_float16)(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out);
    void (*affine_bfloat16)(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out);

    // Copies n samples.
    void (*copy)(const uint8_t* samples, int n, uint8_t* out);

    // True if affine_float32() and copy() store whole cache lines past the caches, with the fence of ~RowStore() behind
    // them. A line of which `out` has a part is stored through them, which takes longer: `out` had better be long.
    bool streams;
};

// JFIF's YCbCr to RGB in 15 fractional bits, beyond the whole part: R = Y + Cr + kRedCr * Cr and so on.
inline constexpr int16_t kRedCr = 13173;     // 0.402
inline constexpr int16_t kGreenCb = -11277;  // -0.344136
inline constexpr int16_t kGreenCr = -23401;  // -0.714136
inline constexpr int16_t kBlueCb = 25297;    // 0.772

const PixelKernels& portable_kernels();
#if defined(__x86_64__)
const PixelKernels& sse2_kernels();
const PixelKernels& avx2_kernels();
const PixelKernels& avx512_kernels();
#endif

// The kernels of simd_level().
inline const PixelKernels& pixel_kernels() {
#if defined(__x86_64__)
    switch (simd_level()) {
        case SimdLevel::avx512: return avx512_kernels();
        case SimdLevel::avx2: return avx2_kernels();
        case SimdLevel::portable:
            if (has_sse2()) return sse2_kernels();
            break;
    }
#endif
    return portable_kernels();
}

}  // namespace feeder
