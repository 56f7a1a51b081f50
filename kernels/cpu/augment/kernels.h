// The loops of augmentation, once per SIMD level. All levels give the same bytes; see Note [Pillow's bytes].
//
// Planes are dense, and may be read and written up to kPlanePadding bytes past their end, and read before their start; the
// padding's bytes mean nothing.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/bytes.h"
#include "cpu/simd.h"

namespace feeder {

inline constexpr size_t kPlanePadding = 128;
inline constexpr size_t kNumberPadding = 8;  // floats
inline constexpr int kRowMargin = 64;  // samples before and after those of a row in working memory

// Half of a symmetric kernel: weight[0] is the middle's, and all of them add up to 1 << bits. One more is zero.
struct BlurTaps {
    int radius;
    int bits;
    int16_t weight[34];
};

struct AugmentKernels {
    void (*look_up)(const uint8_t* samples, size_t n, const uint8_t* table, uint8_t* out);

    // Sum of the gray of all n pixels after a table; null for none.
    uint64_t (*gray_sum)(const uint8_t* const rgb[3], size_t n, const uint8_t* table);
    void (*grayscale)(uint8_t* const rgb[3], size_t n);

    // A table, null for none, then gray + factor * (pixel - gray). The factor is 0 to kMostFactor.
    void (*saturate)(uint8_t* const rgb[3], size_t n, const uint8_t* table, float factor);
    void (*shift_hue)(uint8_t* const rgb[3], size_t n, int shift);
    void (*sharpen)(const uint8_t* samples, int height, int width, float factor, uint8_t* out);

    // Takes pixels from places in 65536ths, x = place[0] x + place[1] y + place[2] and y likewise. `pixels` is interleaved,
    // with an area of less than 2^29, and a byte of padding.
    void (*warp)(const int32_t place[6], const uint8_t* pixels, int height, int width, uint32_t fill,
                 uint8_t* const rgb[3]);

    // An affine map of six numbers, or a perspective of eight, in Pillow's doubles. `pixels` is interleaved, with
    // kPlanePadding.
    void (*warp_bilinear)(const double* map, bool is_affine, const uint8_t* pixels, int height, int width, uint32_t fill,
                          uint8_t* const rgb[3]);
    void (*warp_bicubic)(const double* map, bool is_affine, const uint8_t* pixels, int height, int width, uint32_t fill,
                         uint8_t* const rgb[3]);

    // `row` is working memory of the width and kRowMargin on both sides, twice.
    void (*blur)(const BlurTaps& columns, const BlurTaps& rows, const uint8_t* samples, int height, int width,
                 int16_t* row, uint8_t* out);

    // Normally distributed numbers first ... first + n - 1 of a key; see normal.h. `out` is padded by kNumberPadding.
    void (*normal)(uint64_t key, uint64_t first, size_t n, float* out);
};

inline constexpr float kMostFactor = 1e6f;  // which already leaves nothing but 0, 255 and what it does not change

// The sample whose value stands for one outside of 0 ... n - 1, as numpy's and torch's "reflect".
FEEDER_INLINE int reflected(int i, int n) {
    if (n == 1) return 0;
    const int period = 2 * (n - 1);
    i %= period;
    if (i < 0) i += period;
    return i < n ? i : period - i;
}

const AugmentKernels& portable_augment_kernels();
#if defined(__x86_64__)
const AugmentKernels& avx2_augment_kernels();
const AugmentKernels& avx512_augment_kernels();
#endif

// The kernels of simd_level().
inline const AugmentKernels& augment_kernels() {
#if defined(__x86_64__)
    switch (simd_level()) {
        case SimdLevel::avx512: return avx512_augment_kernels();
        case SimdLevel::avx2: return avx2_augment_kernels();
        case SimdLevel::portable: break;
    }
#endif
    return portable_augment_kernels();
}

}  // namespace feeder
