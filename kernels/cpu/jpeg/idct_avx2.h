// The vectors of idct_lanes.h for AVX2: two blocks at a time. For files of that level only.
#pragma once

#include "cpu/jpeg/idct_lanes.h"

namespace feeder {
namespace {

struct Avx2 {
    using T = __m256i;
    static constexpr int kBlocks = 2;
    static constexpr bool kFusedSums = false;  // add_madd() is one instruction

    static __m128i half(const int16_t* at) { return _mm_load_si128(reinterpret_cast<const __m128i*>(at)); }
    static T load_lane(const int16_t* at) { return _mm256_broadcastsi128_si256(half(at)); }
    static T load_row(const IdctBlock* blocks, int row) {
        return _mm256_inserti128_si256(_mm256_castsi128_si256(half(blocks[0].coefficients + 8 * row)),
                                       half(blocks[1].coefficients + 8 * row), 1);
    }
    static T set8(int x) { return _mm256_set1_epi8(static_cast<char>(x)); }
    static T set16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
    static T set32(int x) { return _mm256_set1_epi32(x); }
    static T add8(T a, T b) { return _mm256_add_epi8(a, b); }
    static T add16(T a, T b) { return _mm256_add_epi16(a, b); }
    static T sub16(T a, T b) { return _mm256_sub_epi16(a, b); }
    static T mullo16(T a, T b) { return _mm256_mullo_epi16(a, b); }
    static T madd(T a, T b) { return _mm256_madd_epi16(a, b); }
    static T add_madd(T sum, T a, T b) { return add32(sum, madd(a, b)); }
    static T add32(T a, T b) { return _mm256_add_epi32(a, b); }
    static T sub32(T a, T b) { return _mm256_sub_epi32(a, b); }
    template <int kShift>
    static T srai32(T a) { return _mm256_srai_epi32(a, kShift); }
    static T packs32(T a, T b) { return _mm256_packs_epi32(a, b); }
    static T packs16(T a, T b) { return _mm256_packs_epi16(a, b); }
    static T unpacklo8(T a, T b) { return _mm256_unpacklo_epi8(a, b); }
    static T unpackhi8(T a, T b) { return _mm256_unpackhi_epi8(a, b); }
    static T unpacklo16(T a, T b) { return _mm256_unpacklo_epi16(a, b); }
    static T unpackhi16(T a, T b) { return _mm256_unpackhi_epi16(a, b); }
    static T unpacklo32(T a, T b) { return _mm256_unpacklo_epi32(a, b); }
    static T unpackhi32(T a, T b) { return _mm256_unpackhi_epi32(a, b); }
    static T unpacklo64(T a, T b) { return _mm256_unpacklo_epi64(a, b); }
    static T unpackhi64(T a, T b) { return _mm256_unpackhi_epi64(a, b); }

    static bool any_beyond(T row) {
        return !_mm256_testz_si256(add16(row, set16(kSafeLevel)), set16(-2 * kSafeLevel));
    }
    // Two rows of each block, from `row` on.
    static void store_rows(T rows, uint8_t* const* out, ptrdiff_t stride, int row) {
        const __m128i lane[2] = {_mm256_castsi256_si128(rows), _mm256_extracti128_si256(rows, 1)};
        for (int i = 0; i < kBlocks; ++i) {
            uint8_t* const at = out[i] + row * stride;
            _mm_storel_epi64(reinterpret_cast<__m128i*>(at), lane[i]);
            _mm_storeh_pd(reinterpret_cast<double*>(at + stride), _mm_castsi128_pd(lane[i]));
        }
    }
};

}  // namespace
}  // namespace feeder
