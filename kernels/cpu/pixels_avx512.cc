// pixels.h for AVX-512 F, BW, DQ, VL, VNNI and VBMI. Compiled for that target: only intrinsics and code of this file
// may be in here, since an inline function from elsewhere could end up in code that other CPUs run.
#if defined(__x86_64__)
#include <immintrin.h>

#include "pixels.h"

namespace feeder {
namespace {

inline __m512i load(const void* at) { return _mm512_loadu_si512(at); }
inline void store(void* at, __m512i value) { _mm512_storeu_si512(at, value); }

template <int kPairs>
inline __attribute__((always_inline)) void vertical_q7_of(const uint8_t* const* rows, const int32_t* coefficients,
                                                         int pairs, int width, int16_t* out) {
    const int n = kPairs ? kPairs : pairs;
    const __m512i zero = _mm512_setzero_si512();
    const __m512i round = _mm512_set1_epi32(1 << (kPlainBits - 8));
    const __m512i first_half = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i second_half = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    for (int x = 0; x < width; x += 64) {
        const int left = width - x;
        const __mmask64 mask = left >= 64 ? ~0ull : (1ull << left) - 1;
        __m512i s0 = round, s1 = round, s2 = round, s3 = round;
        for (int p = 0; p < n; ++p) {
            const __m512i k = _mm512_set1_epi32(coefficients[p]);
            const __m512i a = _mm512_maskz_loadu_epi8(mask, rows[2 * p] + x);
            const __m512i b = _mm512_maskz_loadu_epi8(mask, rows[2 * p + 1] + x);
            const __m512i lo = _mm512_unpacklo_epi8(a, b), hi = _mm512_unpackhi_epi8(a, b);
            s0 = _mm512_dpwssd_epi32(s0, _mm512_unpacklo_epi8(lo, zero), k);
            s1 = _mm512_dpwssd_epi32(s1, _mm512_unpackhi_epi8(lo, zero), k);
            s2 = _mm512_dpwssd_epi32(s2, _mm512_unpacklo_epi8(hi, zero), k);
            s3 = _mm512_dpwssd_epi32(s3, _mm512_unpackhi_epi8(hi, zero), k);
        }
        constexpr int shift = kPlainBits - 7;
        const __m512i even = _mm512_packs_epi32(_mm512_srai_epi32(s0, shift), _mm512_srai_epi32(s1, shift));
        const __m512i odd = _mm512_packs_epi32(_mm512_srai_epi32(s2, shift), _mm512_srai_epi32(s3, shift));
        store(out + x, _mm512_permutex2var_epi64(even, first_half, odd));
        store(out + x + 32, _mm512_permutex2var_epi64(even, second_half, odd));
    }
}

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, int pairs, int width, int16_t* out) {
    switch (pairs) {
        case 1: return vertical_q7_of<1>(rows, coefficients, pairs, width, out);
        case 2: return vertical_q7_of<2>(rows, coefficients, pairs, width, out);
        case 3: return vertical_q7_of<3>(rows, coefficients, pairs, width, out);
        default: return vertical_q7_of<0>(rows, coefficients, pairs, width, out);
    }
}

inline __m512i exact_sum(__m512i high, __m512i low) {
    return _mm512_srli_epi32(_mm512_add_epi32(_mm512_slli_epi32(high, kExactLowBits), low), kExactBits);
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, int pairs, int width,
                    uint8_t* out) {
    const __m512i zero = _mm512_setzero_si512();
    const __m512i round = _mm512_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 64) {
        __m512i h0 = zero, h1 = zero, h2 = zero, h3 = zero;
        __m512i l0 = round, l1 = round, l2 = round, l3 = round;
        for (int p = 0; p < pairs; ++p) {
            const __m512i kh = _mm512_set1_epi32(high[p]), kl = _mm512_set1_epi32(low[p]);
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
        const __m512i even = _mm512_packs_epi32(exact_sum(h0, l0), exact_sum(h1, l1));
        const __m512i odd = _mm512_packs_epi32(exact_sum(h2, l2), exact_sum(h3, l3));
        store(out + x, _mm512_packus_epi16(even, odd));
    }
}

// Four vectors whose 128-bit lane L holds 4 x int32 of row 4L + r become four vectors, one per int32 column, with the
// 16 rows in order.
inline void turn(__m512i v[4]) {
    const __m512i a = _mm512_unpacklo_epi32(v[0], v[1]), b = _mm512_unpackhi_epi32(v[0], v[1]);
    const __m512i c = _mm512_unpacklo_epi32(v[2], v[3]), d = _mm512_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm512_unpacklo_epi64(a, c);
    v[1] = _mm512_unpackhi_epi64(a, c);
    v[2] = _mm512_unpacklo_epi64(b, d);
    v[3] = _mm512_unpackhi_epi64(b, d);
}

// Lane L: 16 bytes at `at` + L * step bytes.
inline __m512i load_lanes(const void* at, ptrdiff_t step_bytes) {
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

void pair_columns_q7(const int16_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
    for (int x = 0; x < columns; x += 8, pairs += 4 * kLanes) {
        __m512i v[4];
        for (int r = 0; r < 4; ++r) v[r] = load_lanes(stripe + r * stride + x, 4 * stride * 2);
        turn(v);
        for (int c = 0; c < 4; ++c) store(pairs + c * kLanes, v[c]);
    }
}

void pair_columns_exact(const uint8_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
    const __m512i zero = _mm512_setzero_si512();
    for (int x = 0; x < columns; x += 16, pairs += 8 * kLanes) {
        __m512i lo[4], hi[4];
        for (int r = 0; r < 4; ++r) {
            const __m512i v = load_lanes(stripe + r * stride + x, 4 * stride);
            lo[r] = _mm512_unpacklo_epi8(v, zero);
            hi[r] = _mm512_unpackhi_epi8(v, zero);
        }
        turn(lo);
        turn(hi);
        for (int c = 0; c < 4; ++c) store(pairs + c * kLanes, lo[c]);
        for (int c = 0; c < 4; ++c) store(pairs + (4 + c) * kLanes, hi[c]);
    }
}

template <int kPairs>
inline __attribute__((always_inline)) void horizontal_q7_of(const int32_t* pairs, const ColumnTable& table,
                                                           int16_t* out) {
    const int n = kPairs ? kPairs : table.pairs;
    const int width = table.width;
    const int32_t* first = table.first;
    const int32_t* k = table.plain;
    const __m512i round = _mm512_set1_epi32(1 << (kPlainBits - 1));
    for (int x = 0; x < width; x += 2, k += 2 * n, out += 2 * kLanes) {
        const int32_t* a = pairs + static_cast<ptrdiff_t>(first[x]) * kLanes;
        const int32_t* b = pairs + static_cast<ptrdiff_t>(first[x + 1]) * kLanes;
        __m512i sa = round, sb = round;
        for (int p = 0; p < n; ++p) {
            sa = _mm512_dpwssd_epi32(sa, load(a + p * kLanes), _mm512_set1_epi32(k[p]));
            sb = _mm512_dpwssd_epi32(sb, load(b + p * kLanes), _mm512_set1_epi32(k[n + p]));
        }
        store(out, _mm512_packs_epi32(_mm512_srai_epi32(sa, kPlainBits), _mm512_srai_epi32(sb, kPlainBits)));
    }
}

void horizontal_q7(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
    switch (table.pairs) {
        case 1: return horizontal_q7_of<1>(pairs, table, out);
        case 2: return horizontal_q7_of<2>(pairs, table, out);
        case 3: return horizontal_q7_of<3>(pairs, table, out);
        case 4: return horizontal_q7_of<4>(pairs, table, out);
        default: return horizontal_q7_of<0>(pairs, table, out);
    }
}

template <int kPairs>
inline __attribute__((always_inline)) void horizontal_exact_of(const int32_t* pairs, const ColumnTable& table,
                                                              int16_t* out) {
    const int n = kPairs ? kPairs : table.pairs;
    const int width = table.width;
    const int32_t* first = table.first;
    const int32_t* kh = table.high;
    const int32_t* kl = table.low;
    const __m512i zero = _mm512_setzero_si512();
    const __m512i round = _mm512_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 2, kh += 2 * n, kl += 2 * n, out += 2 * kLanes) {
        const int32_t* a = pairs + static_cast<ptrdiff_t>(first[x]) * kLanes;
        const int32_t* b = pairs + static_cast<ptrdiff_t>(first[x + 1]) * kLanes;
        __m512i ha = zero, hb = zero, la = round, lb = round;
        for (int p = 0; p < n; ++p) {
            const __m512i va = load(a + p * kLanes), vb = load(b + p * kLanes);
            ha = _mm512_dpwssd_epi32(ha, va, _mm512_set1_epi32(kh[p]));
            la = _mm512_dpwssd_epi32(la, va, _mm512_set1_epi32(kl[p]));
            hb = _mm512_dpwssd_epi32(hb, vb, _mm512_set1_epi32(kh[n + p]));
            lb = _mm512_dpwssd_epi32(lb, vb, _mm512_set1_epi32(kl[n + p]));
        }
        store(out, _mm512_packs_epi32(exact_sum(ha, la), exact_sum(hb, lb)));
    }
}

void horizontal_exact(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
    switch (table.pairs) {
        case 1: return horizontal_exact_of<1>(pairs, table, out);
        case 2: return horizontal_exact_of<2>(pairs, table, out);
        case 3: return horizontal_exact_of<3>(pairs, table, out);
        case 4: return horizontal_exact_of<4>(pairs, table, out);
        default: return horizontal_exact_of<0>(pairs, table, out);
    }
}

// Within each lane, 4 columns x 4 rows of bytes to 4 rows x 4 columns.
inline __m512i turn_bytes(__m512i v) {
    const __m512i order = _mm512_broadcast_i32x4(_mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    return _mm512_shuffle_epi8(v, order);
}

// Four vectors of turn_bytes(), 16 columns in all, to 16 rows of 16 bytes.
inline void store_rows(__m512i v[4], uint8_t* out, ptrdiff_t stride) {
    turn(v);
    for (int r = 0; r < 4; ++r) {
        uint8_t* at = out + r * stride;
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at), _mm512_castsi512_si128(v[r]));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 4 * stride), _mm512_extracti32x4_epi32(v[r], 1));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 8 * stride), _mm512_extracti32x4_epi32(v[r], 2));
        _mm_storeu_si128(reinterpret_cast<__m128i*>(at + 12 * stride), _mm512_extracti32x4_epi32(v[r], 3));
    }
}

void finish_ycbcr(const int16_t* y, const int16_t* cb, const int16_t* cr, int width, uint8_t* const rgb[3],
                  ptrdiff_t stride) {
    const __m512i zero = _mm512_set1_epi16(128 << 7);
    const __m512i red_cr = _mm512_set1_epi16(kRedCr), blue_cb = _mm512_set1_epi16(kBlueCb);
    const __m512i green_cb = _mm512_set1_epi16(kGreenCb), green_cr = _mm512_set1_epi16(kGreenCr);
    const __m512i to_byte = _mm512_set1_epi16(1 << 8);
    for (int x = 0; x < width; x += 16) {
        __m512i red[4], green[4], blue[4];
        for (int q = 0; q < 4; ++q) {
            __m512i r[2], g[2], b[2];
            for (int half = 0; half < 2; ++half, y += 32, cb += 32, cr += 32) {
                const __m512i luma = load(y);
                const __m512i u = _mm512_sub_epi16(load(cb), zero), v = _mm512_sub_epi16(load(cr), zero);
                const __m512i dr = _mm512_add_epi16(v, _mm512_mulhrs_epi16(v, red_cr));
                const __m512i dg =
                    _mm512_add_epi16(_mm512_mulhrs_epi16(u, green_cb), _mm512_mulhrs_epi16(v, green_cr));
                const __m512i db = _mm512_add_epi16(u, _mm512_mulhrs_epi16(u, blue_cb));
                r[half] = _mm512_mulhrs_epi16(_mm512_adds_epi16(luma, dr), to_byte);
                g[half] = _mm512_mulhrs_epi16(_mm512_adds_epi16(luma, dg), to_byte);
                b[half] = _mm512_mulhrs_epi16(_mm512_adds_epi16(luma, db), to_byte);
            }
            red[q] = turn_bytes(_mm512_packus_epi16(r[0], r[1]));
            green[q] = turn_bytes(_mm512_packus_epi16(g[0], g[1]));
            blue[q] = turn_bytes(_mm512_packus_epi16(b[0], b[1]));
        }
        store_rows(red, rgb[0] + x, stride);
        store_rows(green, rgb[1] + x, stride);
        store_rows(blue, rgb[2] + x, stride);
    }
}

void finish_exact(const int16_t* plane, int width, uint8_t* out, ptrdiff_t stride) {
    for (int x = 0; x < width; x += 16) {
        __m512i v[4];
        for (int q = 0; q < 4; ++q, plane += 64) v[q] = turn_bytes(_mm512_packus_epi16(load(plane), load(plane + 32)));
        store_rows(v, out + x, stride);
    }
}

// Byte i of channel c is byte 3 * i + c of the 192 at hand: the first 128 by one permutation, the rest by a second.
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

inline __mmask64 first_bytes(int n) { return n >= 64 ? ~0ull : n <= 0 ? 0 : (1ull << n) - 1; }

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
    static constexpr PixelKernels kernels = {
        vertical_q7,    vertical_exact, pair_columns_q7, pair_columns_exact, horizontal_q7,
        horizontal_exact, finish_ycbcr, finish_exact,    deinterleave,       interleave,
        affine_float32, affine_float16, affine_bfloat16,
    };
    return kernels;
}

}  // namespace feeder
#endif
