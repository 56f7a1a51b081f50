// idct.h for any x86-64: one block at a time.
#if defined(__x86_64__)
#include "cpu/jpeg/idct_lanes.h"

namespace feeder {
namespace {

struct Sse2 {
    using T = __m128i;
    static constexpr int kBlocks = 1;
    static constexpr bool kFusedSums = false;  // add_madd() is one instruction

    static T load_lane(const int16_t* at) { return _mm_load_si128(reinterpret_cast<const __m128i*>(at)); }
    static T load_row(const IdctBlock* blocks, int row) { return load_lane(blocks[0].coefficients + 8 * row); }
    static T set8(int x) { return _mm_set1_epi8(static_cast<char>(x)); }
    static T set16(int x) { return _mm_set1_epi16(static_cast<short>(x)); }
    static T set32(int x) { return _mm_set1_epi32(x); }
    static T add8(T a, T b) { return _mm_add_epi8(a, b); }
    static T add16(T a, T b) { return _mm_add_epi16(a, b); }
    static T sub16(T a, T b) { return _mm_sub_epi16(a, b); }
    static T mullo16(T a, T b) { return _mm_mullo_epi16(a, b); }
    static T madd(T a, T b) { return _mm_madd_epi16(a, b); }
    static T add_madd(T sum, T a, T b) { return add32(sum, madd(a, b)); }
    static T add32(T a, T b) { return _mm_add_epi32(a, b); }
    static T sub32(T a, T b) { return _mm_sub_epi32(a, b); }
    template <int kShift>
    static T srai32(T a) { return _mm_srai_epi32(a, kShift); }
    static T packs32(T a, T b) { return _mm_packs_epi32(a, b); }
    static T packs16(T a, T b) { return _mm_packs_epi16(a, b); }
    static T unpacklo8(T a, T b) { return _mm_unpacklo_epi8(a, b); }
    static T unpackhi8(T a, T b) { return _mm_unpackhi_epi8(a, b); }
    static T unpacklo16(T a, T b) { return _mm_unpacklo_epi16(a, b); }
    static T unpackhi16(T a, T b) { return _mm_unpackhi_epi16(a, b); }
    static T unpacklo32(T a, T b) { return _mm_unpacklo_epi32(a, b); }
    static T unpackhi32(T a, T b) { return _mm_unpackhi_epi32(a, b); }
    static T unpacklo64(T a, T b) { return _mm_unpacklo_epi64(a, b); }
    static T unpackhi64(T a, T b) { return _mm_unpackhi_epi64(a, b); }

    static bool any_beyond(T row) {
        const T beyond = _mm_srli_epi16(add16(row, set16(kSafeLevel)), 14);
        return _mm_movemask_epi8(_mm_cmpeq_epi16(beyond, _mm_setzero_si128())) != 0xFFFF;
    }
    // Two rows of each block, from `row` on.
    static void store_rows(T rows, uint8_t* const* out, ptrdiff_t stride, int row) {
        uint8_t* const at = out[0] + row * stride;
        _mm_storel_epi64(reinterpret_cast<__m128i*>(at), rows);
        _mm_storeh_pd(reinterpret_cast<double*>(at + stride), _mm_castsi128_pd(rows));
    }
};

}  // namespace

const IdctKernels& sse2_idct() { return Idct<Sse2>::kKernels; }

}  // namespace feeder
#endif
