// pixels.h for AVX-512 F, BW, DQ, VL, VNNI and VBMI. Compiled for that target: only intrinsics and code of this file
// may be in here, since an inline function from elsewhere could end up in code that other CPUs run.
#if defined(__x86_64__)
#include "cpu/resize/pixels_lanes.h"

namespace feeder {
namespace {

struct Avx512 {
    using T = __m512i;
    static constexpr int kRows = 16;
    static constexpr bool kShufflesBytes = true;

    static T load(const void* at) { return _mm512_loadu_si512(at); }
    static void store(void* at, T value) { _mm512_storeu_si512(at, value); }
    static T set16(int x) { return _mm512_set1_epi16(static_cast<short>(x)); }
    static T set32(int x) { return _mm512_set1_epi32(x); }
    static T add16(T a, T b) { return _mm512_add_epi16(a, b); }
    static T adds16(T a, T b) { return _mm512_adds_epi16(a, b); }
    static T sub16(T a, T b) { return _mm512_sub_epi16(a, b); }
    static T mulhrs16(T a, T b) { return _mm512_mulhrs_epi16(a, b); }
    static T round_q7(T a) { return _mm512_mulhrs_epi16(a, set16(1 << 8)); }
    static T add32(T a, T b) { return _mm512_add_epi32(a, b); }
    static T multiply_add(T sum, T a, T b) { return _mm512_dpwssd_epi32(sum, a, b); }
    template <int kShift>
    static T srai32(T a) { return _mm512_srai_epi32(a, kShift); }
    template <int kShift>
    static T slli32(T a) { return _mm512_slli_epi32(a, kShift); }
    static T packs32(T a, T b) { return _mm512_packs_epi32(a, b); }
    static T max16(T a, T b) { return _mm512_max_epi16(a, b); }
    static T packus16(T a, T b) { return _mm512_packus_epi16(a, b); }
    static T unpacklo8(T a, T b) { return _mm512_unpacklo_epi8(a, b); }
    static T unpackhi8(T a, T b) { return _mm512_unpackhi_epi8(a, b); }
    static T unpacklo32(T a, T b) { return _mm512_unpacklo_epi32(a, b); }
    static T unpackhi32(T a, T b) { return _mm512_unpackhi_epi32(a, b); }
    static T unpacklo64(T a, T b) { return _mm512_unpacklo_epi64(a, b); }
    static T unpackhi64(T a, T b) { return _mm512_unpackhi_epi64(a, b); }
    static T shuffle8(T a, __m128i order) { return _mm512_shuffle_epi8(a, _mm512_broadcast_i32x4(order)); }

    // Lane L: 16 bytes at `at` + L * step bytes.
    static T load_lanes(const void* at, ptrdiff_t step_bytes) {
        const char* from = static_cast<const char*>(at);
        const __m128i l0 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
        const __m128i l1 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + step_bytes));
        const __m128i l2 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 2 * step_bytes));
        const __m128i l3 = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from + 3 * step_bytes));
        __m512i v = _mm512_castsi128_si512(l0);
        v = _mm512_mask_broadcast_i32x4(v, 0x00f0, l1);
        v = _mm512_mask_broadcast_i32x4(v, 0x0f00, l2);
        return _mm512_mask_broadcast_i32x4(v, 0xf000, l3);
    }
    static void store_lanes(uint8_t* at, ptrdiff_t step_bytes, T value) {
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_castsi512_si128(value));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + step_bytes), _mm512_extracti32x4_epi32(value, 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 2 * step_bytes), _mm512_extracti32x4_epi32(value, 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 3 * step_bytes), _mm512_extracti32x4_epi32(value, 3));
    }
};
using Loops = Pixels<Avx512>;

inline __m512i load(const void* at) { return Avx512::load(at); }
inline void store(void* at, __m512i value) { Avx512::store(at, value); }

inline __mmask64 first_bytes(int n) { return n >= 64 ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; }

template <int kPairs>
inline __attribute__((always_inline)) void vertical_q7_of(const uint8_t* const* rows, const int32_t* coefficients,
                                                          ptrdiff_t step, int pairs, int width, int16_t* out) {
    const int n = kPairs ? kPairs : pairs;
    const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int x = 0; x < width; x += 64) {
        const __mmask64 mask = first_bytes(width - x);
        __m512i even, odd;
        Loops::sum_rows_q7(
            rows, coefficients, step, n, [&](const uint8_t* row) { return _mm512_maskz_loadu_epi8(mask, row + x); }, even,
            odd);
        store(out + x, _mm512_permutex2var_epi64(even, first_half, odd));
        store(out + x + 32, _mm512_permutex2var_epi64(even, second_half, odd));
    }
}

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, ptrdiff_t step, int pairs, int width,
                 int16_t* out) {
    switch (pairs) {
        case 1: return vertical_q7_of<1>(rows, coefficients, step, pairs, width, out);
        case 2: return vertical_q7_of<2>(rows, coefficients, step, pairs, width, out);
        case 3: return vertical_q7_of<3>(rows, coefficients, step, pairs, width, out);
        default: return vertical_q7_of<0>(rows, coefficients, step, pairs, width, out);
    }
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, ptrdiff_t step,
                    int pairs, int width, uint8_t* out) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i round = _mm512_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 64) {
        __m512i h0 = zero, h1 = zero, h2 = zero, h3 = zero;
        __m512i l0 = round, l1 = round, l2 = round, l3 = round;
        for (int p = 0; p < pairs; ++p) {
            const __m512i kh = _mm512_set1_epi32(high[p * step]), kl = _mm512_set1_epi32(low[p * step]);
            const __m512i a = load(rows[2 * p] + x), b = load(rows[2 * p + 1] + x);
            const __m512i lo = _mm512_unpacklo_epi8(a, b), hi = _mm512_unpackhi_epi8(a, b);
            const __m512i w0 = _mm512_unpacklo_epi8(lo, zero), w1 = _mm512_unpackhi_epi8(lo, zero);
            const __m512i w2 = _mm512_unpacklo_epi8(hi, zero), w3 = _mm512_unpackhi_epi8(hi, zero);
            h0 = _mm512_dpwssd_epi32(h0, w0, kh);
            h1 = _mm512_dpwssd_epi32(h1, w1, kh);
            h2 = _mm512_dpwssd_epi32(h2, w2, kh);
            h3 = _mm512_dpwssd_epi32(h3, w3, kh);
            l0 = _mm512_dpwssd_epi32(l0, w0, kl);
            l1 = _mm512_dpwssd_epi32(l1, w1, kl);
            l2 = _mm512_dpwssd_epi32(l2, w2, kl);
            l3 = _mm512_dpwssd_epi32(l3, w3, kl);
        }
        const __m512i even = _mm512_packs_epi32(Loops::exact_sum(h0, l0), Loops::exact_sum(h1, l1));
        const __m512i odd = _mm512_packs_epi32(Loops::exact_sum(h2, l2), Loops::exact_sum(h3, l3));
        store(out + x, _mm512_packus_epi16(even, odd));
    }
}

// Byte i of channel c is byte 3 * i + c of 192: the first 128 come by one permutation, the rest by a second.
struct alignas(64) Deinterleave {
    uint8_t first[3][64];
    uint8_t second[3][64];
    uint64_t from_second[3];
};
constexpr Deinterleave deinterleave_table() {
    Deinterleave t{};
    for (int c = 0; c < 3; ++c) {
        for (int i = 0; i < 64; ++i) {
            const int at = 3 * i + c;
            t.first[c][i] = static_cast<uint8_t>(at & 127);
            t.second[c][i] = static_cast<uint8_t>(at & 63);
            if (at >= 128) t.from_second[c] |= 1ull << i;
        }
    }
    return t;
}
constexpr Deinterleave kDeinterleave = deinterleave_table();

// Byte j of vector v of the 192 interleaved is pixel (64 * v + j) / 3 of channel (64 * v + j) % 3.
struct alignas(64) Interleave {
    uint8_t red_green[3][64];
    uint8_t blue[3][64];
    uint64_t is_blue[3];
};
constexpr Interleave interleave_table() {
    Interleave t{};
    for (int v = 0; v < 3; ++v) {
        for (int j = 0; j < 64; ++j) {
            const int at = 64 * v + j;
            t.red_green[v][j] = static_cast<uint8_t>(at / 3 + (at % 3 == 1 ? 64 : 0));
            t.blue[v][j] = static_cast<uint8_t>(at / 3);
            if (at % 3 == 2) t.is_blue[v] |= 1ull << j;
        }
    }
    return t;
}
constexpr Interleave kInterleave = interleave_table();

void deinterleave(const uint8_t* pixels, int n, uint8_t* const rows[3]) {
    for (int x = 0; x < n; x += 64, pixels += 192) {
        const int bytes = 3 * (n - x);
        const __m512i a = _mm512_maskz_loadu_epi8(first_bytes(bytes), pixels);
        const __m512i b = _mm512_maskz_loadu_epi8(first_bytes(bytes - 64), pixels + 64);
        const __m512i c = _mm512_maskz_loadu_epi8(first_bytes(bytes - 128), pixels + 128);
        for (int i = 0; i < 3; ++i) {
            const __m512i ab = _mm512_permutex2var_epi8(a, load(kDeinterleave.first[i]), b);
            store(rows[i] + x, _mm512_mask_permutexvar_epi8(ab, kDeinterleave.from_second[i],
                                                            load(kDeinterleave.second[i]), c));
        }
    }
}

void interleave(const uint8_t* const rows[3], int n, uint8_t* pixels) {
    for (int x = 0; x < n; x += 64, pixels += 192) {
        const int bytes = 3 * (n - x);
        const __mmask64 mask = first_bytes(n - x);
        const __m512i r = _mm512_maskz_loadu_epi8(mask, rows[0] + x);
        const __m512i g = _mm512_maskz_loadu_epi8(mask, rows[1] + x);
        const __m512i b = _mm512_maskz_loadu_epi8(mask, rows[2] + x);
        for (int v = 0; v < 3; ++v) {
            const __m512i rg = _mm512_permutex2var_epi8(r, load(kInterleave.red_green[v]), g);
            const __m512i all = _mm512_mask_permutexvar_epi8(rg, kInterleave.is_blue[v], load(kInterleave.blue[v]), b);
            _mm512_mask_storeu_epi8(pixels + 64 * v, first_bytes(bytes - 64 * v), all);
        }
    }
}

// 16 samples, times scale, plus bias.
struct Pattern {
    __m512 scale[3];
    __m512 bias[3];
    Pattern(const float* s, const float* b) {
        for (int i = 0; i < 3; ++i) {
            scale[i] = _mm512_loadu_ps(s + 16 * i);
            bias[i] = _mm512_loadu_ps(b + 16 * i);
        }
    }
    __m512 apply(const uint8_t* samples, int i) const {
        const __m512i wide = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(samples)));
        return _mm512_add_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(wide), scale[i]), bias[i]);
    }
};

inline __mmask16 first_of_16(int n) { return n >= 16 ? 0xffff : static_cast<__mmask16>((1u << n) - 1); }

void affine_float32(const uint8_t* samples, int n, const float* scale, const float* bias, float* out) {
    const Pattern pattern(scale, bias);
    int x = 0;
    for (; x + kPattern <= n; x += kPattern)
        for (int i = 0; i < 3; ++i) _mm512_storeu_ps(out + x + 16 * i, pattern.apply(samples + x + 16 * i, i));
    for (int i = 0; x < n; x += 16, ++i)
        _mm512_mask_storeu_ps(out + x, first_of_16(n - x), pattern.apply(samples + x, i));
}

// The same, whole cache lines past the caches.
void affine_float32_streamed(const uint8_t* samples, int n, const float* scale, const float* bias, float* out) {
    const uintptr_t address = reinterpret_cast<uintptr_t>(out);
    if (address % sizeof(float) != 0) return affine_float32(samples, n, scale, bias, out);
    const int to_line = static_cast<int>(-address % 64 / sizeof(float));
    const int head = to_line < n ? to_line : n;
    if (head > 0) _mm512_mask_storeu_ps(out, first_of_16(head), Pattern(scale, bias).apply(samples, 0));
    const Pattern pattern(scale + head, bias + head);
    int x = head, i = 0;
    for (; x + 16 <= n; x += 16, i = i == 2 ? 0 : i + 1) _mm512_stream_ps(out + x, pattern.apply(samples + x, i));
    if (x < n) _mm512_mask_storeu_ps(out + x, first_of_16(n - x), pattern.apply(samples + x, i));
}

// Likewise.
void copy_streamed(const uint8_t* samples, int n, uint8_t* out) {
    const int to_line = static_cast<int>(-reinterpret_cast<uintptr_t>(out) % 64);
    const int head = to_line < n ? to_line : n;
    _mm512_mask_storeu_epi8(out, first_bytes(head), _mm512_maskz_loadu_epi8(first_bytes(head), samples));
    int x = head;
    for (; x + 64 <= n; x += 64) _mm512_stream_si512(reinterpret_cast<__m512i*>(out + x), load(samples + x));
    _mm512_mask_storeu_epi8(out + x, first_bytes(n - x), _mm512_maskz_loadu_epi8(first_bytes(n - x), samples + x));
}

template <typename Convert>
inline void affine_16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out,
                      Convert convert) {
    const Pattern pattern(scale, bias);
    int x = 0;
    for (; x + kPattern <= n; x += kPattern)
        for (int i = 0; i < 3; ++i)
            _mm256_storeu_si256(reinterpret_cast<__m256i*>(out + x + 16 * i),
                                convert(pattern.apply(samples + x + 16 * i, i)));
    for (int i = 0; x < n; x += 16, ++i)
        _mm256_mask_storeu_epi16(out + x, first_of_16(n - x), convert(pattern.apply(samples + x, i)));
}

void affine_float16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    affine_16(samples, n, scale, bias, out,
              [](__m512 v) { return _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); });
}

void affine_bfloat16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    affine_16(samples, n, scale, bias, out, [](__m512 v) {
        const __m512i bits = _mm512_castps_si512(v);
        const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
        const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
        return _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded, 16));
    });
}

}  // namespace

const PixelKernels& avx512_kernels() {
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
        is_amd() ? affine_float32_streamed : affine_float32,
        affine_float16,
        affine_bfloat16,
        is_amd() ? copy_streamed : portable_kernels().copy,
        is_amd(),
    };
    return kernels;
}

}  // namespace feeder
#endif
