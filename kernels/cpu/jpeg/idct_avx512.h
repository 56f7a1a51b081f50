// The vectors of idct_lanes.h for AVX-512: four blocks at a time. For files of that level only.
#pragma once

#include "cpu/jpeg/idct_lanes.h"

namespace feeder {
namespace {

struct Avx512 {
    using T = __m512i;
    static constexpr int kBlocks = 4;
    static constexpr bool kFusedSums = true;  // add_madd() is one instruction

    static __m128i lane(const int16_t* at) { return _mm_load_si128(reinterpret_cast<const __m128i*>(at)); }
    static T load_lane(const int16_t* at) { return _mm512_broadcast_i32x4(lane(at)); }
    static T load_row(const IdctBlock* blocks, int row) {
        T v = _mm512_castsi128_si512(lane(blocks[0].coefficients + 8 * row));
        v = _mm512_mask_broadcast_i32x4(v, 0x00F0, lane(blocks[1].coefficients + 8 * row));
        v = _mm512_mask_broadcast_i32x4(v, 0x0F00, lane(blocks[2].coefficients + 8 * row));
        return _mm512_mask_broadcast_i32x4(v, 0xF000, lane(blocks[3].coefficients + 8 * row));
    }
    static T set8(int x) { return _mm512_set1_epi8(static_cast<char>(x)); }
    static T set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
    static T set32(int x) { return _mm512_set1_epi32(x); }
    static T add8(T a, T b) { return _mm512_add_epi8(a, b); }
    static T add16(T a, T b) { return _mm512_add_epi16(a, b); }
    static T sub16(T a, T b) { return _mm512_sub_epi16(a, b); }
    static T mullo16(T a, T b) { return _mm512_mullo_epi16(a, b); }
    static T madd(T a, T b) { return _mm512_madd_epi16(a, b); }
    static T add_madd(T sum, T a, T b) { return _mm512_dpwssd_epi32(sum, a, b); }
    static T add32(T a, T b) { return _mm512_add_epi32(a, b); }
    static T sub32(T a, T b) { return _mm512_sub_epi32(a, b); }
    template <int kShift>
    static T srai32(T a) { return _mm512_srai_epi32(a, kShift); }
    static T packs32(T a, T b) { return _mm512_packs_epi32(a, b); }
    static T packs16(T a, T b) { return _mm512_packs_epi16(a, b); }
    static T unpacklo8(T a, T b) { return _mm512_unpacklo_epi8(a, b); }
    static T unpackhi8(T a, T b) { return _mm512_unpackhi_epi8(a, b); }
    static T unpacklo16(T a, T b) { return _mm512_unpacklo_epi16(a, b); }
    static T unpackhi16(T a, T b) { return _mm512_unpackhi_epi16(a, b); }
    static T unpacklo32(T a, T b) { return _mm512_unpacklo_epi32(a, b); }
    static T unpackhi32(T a, T b) { return _mm512_unpackhi_epi32(a, b); }
    static T unpacklo64(T a, T b) { return _mm512_unpacklo_epi64(a, b); }
    static T unpackhi64(T a, T b) { return _mm512_unpackhi_epi64(a, b); }

    static bool any_beyond(T row) {
        return _mm512_test_epi16_mask(add16(row, set16(kSafeLevel)), set16(-2 * kSafeLevel)) != 0;
    }
    // Two rows of each block, from `row` on.
    static void store_rows(T rows, uint8_t* const* out, ptrdiff_t stride, int row) {
        const __m128i lane[4] = {_mm512_castsi512_si128(rows), _mm512_extracti32x4_epi32(rows, 1),
                                 _mm512_extracti32x4_epi32(rows, 2), _mm512_extracti32x4_epi32(rows, 3)};
        for (int i = 0; i < kBlocks; ++i) {
            uint8_t* const at = out[i] + row * stride;
            _mm_storel_epi64(reinterpret_cast<__m128i*>(at), lane[i]);
            _mm_storeh_pd(reinterpret_cast<double*>(at + stride), _mm_castsi128_pd(lane[i]));
        }
    }
};

}  // namespace
}  // namespace feeder
