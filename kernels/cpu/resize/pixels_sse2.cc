// pixels.h for any x86-64. SSE2 has no rounded product of fractions and no shuffle of bytes: both take a few instructions.
#if defined(__x86_64__)
#include "cpu/resize/pixels_lanes.h"

namespace feeder {
namespace {

struct Sse2 {
    using T = __m128i;
    static constexpr int kRows = 4;
    static constexpr bool kShufflesBytes = false;

    static T load(const void* at) { return _mm_loadu_si128(static_cast<const T*>(at)); }
    static T load_half(const void* at) { return _mm_loadl_epi64(static_cast<const T*>(at)); }
    static void store(void* at, T value) { _mm_storeu_si128(static_cast<T*>(at), value); }
    static void store_half(void* at, T value) { _mm_storel_epi64(static_cast<T*>(at), value); }
    static T set16(int x) { return _mm_set1_epi16(static_cast<short>(x)); }
    static T set32(int x) { return _mm_set1_epi32(x); }
    static T add16(T a, T b) { return _mm_add_epi16(a, b); }
    static T adds16(T a, T b) { return _mm_adds_epi16(a, b); }
    static T sub16(T a, T b) { return _mm_sub_epi16(a, b); }
    static T mulhrs16(T a, T b) {
        const T high = _mm_mulhi_epi16(a, b), low = _mm_mullo_epi16(a, b);
        const T rounded = _mm_avg_epu16(_mm_srli_epi16(low, 14), _mm_setzero_si128());
        return add16(add16(high, high), rounded);
    }
    static T round_q7(T a) { return _mm_srai_epi16(adds16(a, set16(1 << 6)), 7); }
    static T add32(T a, T b) { return _mm_add_epi32(a, b); }
    static T multiply_add(T sum, T a, T b) { return _mm_add_epi32(sum, _mm_madd_epi16(a, b)); }
    template <int kShift>
    static T srai32(T a) { return _mm_srai_epi32(a, kShift); }
    template <int kShift>
    static T slli32(T a) { return _mm_slli_epi32(a, kShift); }
    static T packs32(T a, T b) { return _mm_packs_epi32(a, b); }
    static T max16(T a, T b) { return _mm_max_epi16(a, b); }
    static T packus16(T a, T b) { return _mm_packus_epi16(a, b); }
    static T unpacklo8(T a, T b) { return _mm_unpacklo_epi8(a, b); }
    static T unpackhi8(T a, T b) { return _mm_unpackhi_epi8(a, b); }
    static T unpacklo32(T a, T b) { return _mm_unpacklo_epi32(a, b); }
    static T unpackhi32(T a, T b) { return _mm_unpackhi_epi32(a, b); }
    static T unpacklo64(T a, T b) { return _mm_unpacklo_epi64(a, b); }
    static T unpackhi64(T a, T b) { return _mm_unpackhi_epi64(a, b); }

    // There is one lane.
    static T load_lanes(const void* at, ptrdiff_t) { return load(at); }
    static void store_lanes(void* at, ptrdiff_t, T value) { store(at, value); }
};
using Loops = Pixels<Sse2>;

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, ptrdiff_t step, int pairs, int width,
                 int16_t* out) {
    if (width < 16) return portable_kernels().vertical_q7(rows, coefficients, step, pairs, width, out);
    for (int at = 0; at < width; at += 16) {
        const int x = at + 16 <= width ? at : width - 16;  // the last one overlaps: nothing beside a row is read
        __m128i first, second;
        Loops::sum_rows_q7(
            rows, coefficients, step, pairs, [x](const uint8_t* row) { return Sse2::load(row + x); }, first, second);
        Sse2::store(out + x, first);
        Sse2::store(out + x + 8, second);
    }
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, ptrdiff_t step,
                    int pairs, int width, uint8_t* out) {
    const __m128i zero = _mm_setzero_si128();
    const __m128i round = _mm_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 8) {
        __m128i h0 = zero, h1 = zero, l0 = round, l1 = round;
        for (int p = 0; p < pairs; ++p) {
            const __m128i kh = Sse2::set32(high[p * step]), kl = Sse2::set32(low[p * step]);
            const __m128i both =
                Sse2::unpacklo8(Sse2::load_half(rows[2 * p] + x), Sse2::load_half(rows[2 * p + 1] + x));
            const __m128i lo = Sse2::unpacklo8(both, zero), hi = Sse2::unpackhi8(both, zero);
            h0 = Sse2::multiply_add(h0, lo, kh);
            h1 = Sse2::multiply_add(h1, hi, kh);
            l0 = Sse2::multiply_add(l0, lo, kl);
            l1 = Sse2::multiply_add(l1, hi, kl);
        }
        const __m128i words = Sse2::packs32(Loops::exact_sum(h0, l0), Loops::exact_sum(h1, l1));
        Sse2::store_half(out + x, Sse2::packus16(words, words));
    }
}

}  // namespace

const PixelKernels& sse2_kernels() {
    static const PixelKernels kernels = [] {
        PixelKernels found = portable_kernels();
        found.vertical_q7 = vertical_q7;
        found.vertical_exact = vertical_exact;
        found.pair_columns_q7 = Loops::pair_columns_q7;
        found.pair_columns_exact = Loops::pair_columns_exact;
        found.horizontal_q7 = Loops::horizontal_q7;
        found.horizontal_exact = Loops::horizontal_exact;
        found.finish_ycbcr = Loops::finish_ycbcr;
        found.finish_exact = Loops::finish_exact;
        return found;
    }();
    return kernels;
}

}  // namespace feeder
#endif
