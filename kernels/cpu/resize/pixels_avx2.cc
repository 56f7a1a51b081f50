// pixels.h for AVX2 with F16C. Compiled for that target: only intrinsics and code of this file may be in here, since
// an inline function from elsewhere could end up in code that other CPUs run.
#if defined(__x86_64__)
#include "cpu/resize/pixels_lanes.h"

namespace feeder {
namespace {

inline __m128i load_half(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
inline void store_half(void* at, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(at), value); }

struct Avx2 {
    using T = __m256i;
    static constexpr int kRows = 8;
    static constexpr bool kShufflesBytes = true;

    static T load(const void* at) { return _mm256_loadu_si256(static_cast<const T*>(at)); }
    static void store(void* at, T value) { _mm256_storeu_si256(static_cast<T*>(at), value); }
    static T set16(int x) { return _mm256_set1_epi16(static_cast<short>(x)); }
    static T set32(int x) { return _mm256_set1_epi32(x); }
    static T add16(T a, T b) { return _mm256_add_epi16(a, b); }
    static T adds16(T a, T b) { return _mm256_adds_epi16(a, b); }
    static T sub16(T a, T b) { return _mm256_sub_epi16(a, b); }
    static T mulhrs16(T a, T b) { return _mm256_mulhrs_epi16(a, b); }
    static T round_q7(T a) { return _mm256_mulhrs_epi16(a, set16(1 << 8)); }
    static T add32(T a, T b) { return _mm256_add_epi32(a, b); }
    static T multiply_add(T sum, T a, T b) { return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b)); }
    template <int kShift>
    static T srai32(T a) { return _mm256_srai_epi32(a, kShift); }
    template <int kShift>
    static T slli32(T a) { return _mm256_slli_epi32(a, kShift); }
    static T packs32(T a, T b) { return _mm256_packs_epi32(a, b); }
    static T max16(T a, T b) { return _mm256_max_epi16(a, b); }
    static T packus16(T a, T b) { return _mm256_packus_epi16(a, b); }
    static T unpacklo8(T a, T b) { return _mm256_unpacklo_epi8(a, b); }
    static T unpackhi8(T a, T b) { return _mm256_unpackhi_epi8(a, b); }
    static T unpacklo32(T a, T b) { return _mm256_unpacklo_epi32(a, b); }
    static T unpackhi32(T a, T b) { return _mm256_unpackhi_epi32(a, b); }
    static T unpacklo64(T a, T b) { return _mm256_unpacklo_epi64(a, b); }
    static T unpackhi64(T a, T b) { return _mm256_unpackhi_epi64(a, b); }
    static T shuffle8(T a, __m128i order) { return _mm256_shuffle_epi8(a, _mm256_broadcastsi128_si256(order)); }

    // Lane L: 16 bytes at `at` + L * step bytes.
    static T load_lanes(const void* at, ptrdiff_t step_bytes) {
        const char* from = static_cast<const char*>(at);
        return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(from)), load_half(from + step_bytes), 1);
    }
    static void store_lanes(uint8_t* at, ptrdiff_t step_bytes, T value) {
        store_half(at, _mm256_castsi256_si128(value));
        store_half(at + step_bytes, _mm256_extracti128_si256(value, 1));
    }
};
using Loops = Pixels<Avx2>;

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, ptrdiff_t step, int pairs, int width,
                 int16_t* out) {
    if (width < 32) return portable_kernels().vertical_q7(rows, coefficients, step, pairs, width, out);
    for (int at = 0; at < width; at += 32) {
        const int x = at + 32 <= width ? at : width - 32;  // the last one overlaps: nothing beside a row is read
        __m256i even, odd;
        Loops::sum_rows_q7(
            rows, coefficients, step, pairs, [x](const uint8_t* row) { return Avx2::load(row + x); }, even, odd);
        Avx2::store(out + x, _mm256_permute2x128_si256(even, odd, 0x20));
        Avx2::store(out + x + 16, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, ptrdiff_t step,
                    int pairs, int width, uint8_t* out) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i round = _mm256_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 16) {
        __m256i h0 = zero, h1 = zero, l0 = round, l1 = round;
        for (int p = 0; p < pairs; ++p) {
            const __m256i kh = _mm256_set1_epi32(high[p * step]), kl = _mm256_set1_epi32(low[p * step]);
            const __m256i a = _mm256_cvtepu8_epi16(load_half(rows[2 * p] + x));
            const __m256i b = _mm256_cvtepu8_epi16(load_half(rows[2 * p + 1] + x));
            const __m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);
            h0 = Avx2::multiply_add(h0, lo, kh);
            h1 = Avx2::multiply_add(h1, hi, kh);
            l0 = Avx2::multiply_add(l0, lo, kl);
            l1 = Avx2::multiply_add(l1, hi, kl);
        }
        const __m256i words = _mm256_packs_epi32(Loops::exact_sum(h0, l0), Loops::exact_sum(h1, l1));
        store_half(out + x,
                   _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
}

// Of the 48 bytes of 16 interleaved pixels, which byte of each 16 goes where; 0x80 makes a zero.
struct alignas(16) Shuffles {
    uint8_t split[3][3][16];  // [channel][source vector]
    uint8_t merge[3][3][16];  // [target vector][channel]
};
constexpr Shuffles make_shuffles() {
    Shuffles s{};
    for (int i = 0; i < 3; ++i) {
        for (int j = 0; j < 3; ++j) {
            for (int x = 0; x < 16; ++x) {
                const int from = 3 * x + i - 16 * j;
                s.split[i][j][x] = static_cast<uint8_t>(from >= 0 && from < 16 ? from : 0x80);
                const int at = 16 * i + x;
                s.merge[i][j][x] = static_cast<uint8_t>(at % 3 == j ? at / 3 : 0x80);
            }
        }
    }
    return s;
}
constexpr Shuffles kShuffles = make_shuffles();

inline __m128i merge(__m128i a, __m128i b, __m128i c, const uint8_t shuffles[3][16]) {
    return _mm_or_si128(_mm_or_si128(_mm_shuffle_epi8(a, load_half(shuffles[0])),
                                     _mm_shuffle_epi8(b, load_half(shuffles[1]))),
                        _mm_shuffle_epi8(c, load_half(shuffles[2])));
}

void deinterleave(const uint8_t* pixels, int n, uint8_t* const rows[3]) {
    int x = 0;
    for (; x + 16 <= n; x += 16, pixels += 48) {
        const __m128i a = load_half(pixels), b = load_half(pixels + 16), c = load_half(pixels + 32);
        for (int i = 0; i < 3; ++i) store_half(rows[i] + x, merge(a, b, c, kShuffles.split[i]));
    }
    uint8_t* const rest[3] = {rows[0] + x, rows[1] + x, rows[2] + x};
    portable_kernels().deinterleave(pixels, n - x, rest);
}

void interleave(const uint8_t* const rows[3], int n, uint8_t* pixels) {
    int x = 0;
    for (; x + 16 <= n; x += 16, pixels += 48) {
        const __m128i r = load_half(rows[0] + x), g = load_half(rows[1] + x), b = load_half(rows[2] + x);
        for (int i = 0; i < 3; ++i) store_half(pixels + 16 * i, merge(r, g, b, kShuffles.merge[i]));
    }
    const uint8_t* const rest[3] = {rows[0] + x, rows[1] + x, rows[2] + x};
    portable_kernels().interleave(rest, n - x, pixels);
}

// 8 samples, times scale, plus bias.
inline __m256 apply(const uint8_t* samples, const float* scale, const float* bias) {
    const __m256i wide = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(samples)));
    return _mm256_add_ps(_mm256_mul_ps(_mm256_cvtepi32_ps(wide), _mm256_loadu_ps(scale)), _mm256_loadu_ps(bias));
}

void affine_float32(const uint8_t* samples, int n, const float* scale, const float* bias, float* out) {
    int x = 0, i = 0;
    for (; x + 8 <= n; x += 8, i = i == 40 ? 0 : i + 8)
        _mm256_storeu_ps(out + x, apply(samples + x, scale + i, bias + i));
    portable_kernels().affine_float32(samples + x, n - x, scale + i, bias + i, out + x);
}

void affine_float16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    int x = 0, i = 0;
    for (; x + 8 <= n; x += 8, i = i == 40 ? 0 : i + 8) {
        const __m256 v = apply(samples + x, scale + i, bias + i);
        store_half(out + x, _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC));
    }
    portable_kernels().affine_float16(samples + x, n - x, scale + i, bias + i, out + x);
}

void affine_bfloat16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    int x = 0, i = 0;
    for (; x + 8 <= n; x += 8, i = i == 40 ? 0 : i + 8) {
        const __m256i bits = _mm256_castps_si256(apply(samples + x, scale + i, bias + i));
        const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
        const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
        const __m256i words = _mm256_srli_epi32(rounded, 16);
        store_half(out + x, _mm_packus_epi32(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
    portable_kernels().affine_bfloat16(samples + x, n - x, scale + i, bias + i, out + x);
}

}  // namespace

const PixelKernels& avx2_kernels() {
    static const PixelKernels kernels = {
        vertical_q7,
        vertical_exact,
        Loops::pair_columns_q7,
        Loops::pair_columns_exact,
        Loops::horizontal_q7,
        Loops::horizontal_exact,
        Loops::finish_ycbcr,
        Loops::finish_exact,
        deinterleave,
        interleave,
        affine_float32,
        affine_float16,
        affine_bfloat16,
        portable_kernels().copy,
        false,
    };
    return kernels;
}

}  // namespace feeder
#endif
