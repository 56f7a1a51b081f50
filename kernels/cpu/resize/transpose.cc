#include "cpu/resize/transpose.h"

#include <algorithm>

#if defined(__SSE2__)
#include <emmintrin.h>
#endif

namespace feeder {
namespace {

constexpr int kBlock = 16;

#if defined(__SSE2__)
// One round of pairing rows r and r + 8; four rounds turn 16 x 16 bytes.
void interleave_halves(const __m128i from[kBlock], __m128i to[kBlock]) {
    for (int r = 0; r < kBlock / 2; ++r) {
        to[2 * r] = _mm_unpacklo_epi8(from[r], from[r + kBlock / 2]);
        to[2 * r + 1] = _mm_unpackhi_epi8(from[r], from[r + kBlock / 2]);
    }
}

void turn_block(const uint8_t* from, ptrdiff_t stride, uint8_t* to, ptrdiff_t to_stride) {
    __m128i a[kBlock], b[kBlock];
    for (int r = 0; r < kBlock; ++r) a[r] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + r * stride));
    interleave_halves(a, b);
    interleave_halves(b, a);
    interleave_halves(a, b);
    interleave_halves(b, a);
    for (int r = 0; r < kBlock; ++r) _mm_storeu_si128(reinterpret_cast<__m128i*>(to + r * to_stride), a[r]);
}
#else
void turn_block(const uint8_t* from, ptrdiff_t stride, uint8_t* to, ptrdiff_t to_stride) {
    for (int x = 0; x < kBlock; ++x)
        for (int y = 0; y < kBlock; ++y) to[x * to_stride + y] = from[y * stride + x];
}
#endif

}  // namespace

void transpose(const uint8_t* from, ptrdiff_t stride, ptrdiff_t step, int width, int height, uint8_t* to,
               ptrdiff_t to_stride) {
    for (int y0 = 0; y0 < height; y0 += kBlock) {
        const int y1 = std::min(y0 + kBlock, height);
        int x0 = 0;
        if (step == 1 && y1 - y0 == kBlock)
            for (; x0 + kBlock <= width; x0 += kBlock)
                turn_block(from + y0 * stride + x0, stride, to + x0 * to_stride + y0, to_stride);
        for (int x = x0; x < width; ++x)
            for (int y = y0; y < y1; ++y) to[x * to_stride + y] = from[y * stride + x * step];
    }
}

}  // namespace feeder
