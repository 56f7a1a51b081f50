// pixels.h for AVX2 with F16C. Compiled for that target: only intrinsics and code of this file may be in here, since
// an inline function from elsewhere could end up in code that other CPUs run.
#if defined(__x86_64__)
#include <immintrin.h>

#include "pixels.h"

namespace feeder {
namespace {

inline __m256i load(const void* at) { return _mm256_loadu_si256(static_cast<const __m256i*>(at)); }
inline void store(void* at, __m256i value) { _mm256_storeu_si256(static_cast<__m256i*>(at), value); }
inline __m128i load_half(const void* at) { return _mm_loadu_si128(static_cast<const __m128i*>(at)); }
inline void store_half(void* at, __m128i value) { _mm_storeu_si128(static_cast<__m128i*>(at), value); }
inline __m256i multiply_add(__m256i sum, __m256i a, __m256i b) {
    return _mm256_add_epi32(sum, _mm256_madd_epi16(a, b));
}

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, int pairs, int width, int16_t* out) {
    if (width < 32) return portable_kernels().vertical_q7(rows, coefficients, pairs, width, out);
    const __m256i zero = _mm256_setzero_si256();
    const __m256i round = _mm256_set1_epi32(1 << (kPlainBits - 8));
    for (int at = 0; at < width; at += 32) {
        const int x = at + 32 <= width ? at : width - 32;  // the last one overlaps: nothing beside a row is read
        __m256i s0 = round, s1 = round, s2 = round, s3 = round;
        for (int p = 0; p < pairs; ++p) {
            const __m256i k = _mm256_set1_epi32(coefficients[p]);
            const __m256i a = load(rows[2 * p] + x), b = load(rows[2 * p + 1] + x);
            const __m256i lo = _mm256_unpacklo_epi8(a, b), hi = _mm256_unpackhi_epi8(a, b);
            s0 = multiply_add(s0, _mm256_unpacklo_epi8(lo, zero), k);
            s1 = multiply_add(s1, _mm256_unpackhi_epi8(lo, zero), k);
            s2 = multiply_add(s2, _mm256_unpacklo_epi8(hi, zero), k);
            s3 = multiply_add(s3, _mm256_unpackhi_epi8(hi, zero), k);
        }
        constexpr int shift = kPlainBits - 7;
        const __m256i even = _mm256_packs_epi32(_mm256_srai_epi32(s0, shift), _mm256_srai_epi32(s1, shift));
        const __m256i odd = _mm256_packs_epi32(_mm256_srai_epi32(s2, shift), _mm256_srai_epi32(s3, shift));
        store(out + x, _mm256_permute2x128_si256(even, odd, 0x20));
        store(out + x + 16, _mm256_permute2x128_si256(even, odd, 0x31));
    }
}

inline __m256i exact_sum(__m256i high, __m256i low) {
    return _mm256_srli_epi32(_mm256_add_epi32(_mm256_slli_epi32(high, kExactLowBits), low), kExactBits);
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, int pairs, int width,
                    uint8_t* out) {
    const __m256i zero = _mm256_setzero_si256();
    const __m256i round = _mm256_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 16) {
        __m256i h0 = zero, h1 = zero, l0 = round, l1 = round;
        for (int p = 0; p < pairs; ++p) {
            const __m256i kh = _mm256_set1_epi32(high[p]), kl = _mm256_set1_epi32(low[p]);
            const __m256i a = _mm256_cvtepu8_epi16(load_half(rows[2 * p] + x));
            const __m256i b = _mm256_cvtepu8_epi16(load_half(rows[2 * p + 1] + x));
            const __m256i lo = _mm256_unpacklo_epi16(a, b), hi = _mm256_unpackhi_epi16(a, b);
            h0 = multiply_add(h0, lo, kh);
            h1 = multiply_add(h1, hi, kh);
            l0 = multiply_add(l0, lo, kl);
            l1 = multiply_add(l1, hi, kl);
        }
        const __m256i words = _mm256_packs_epi32(exact_sum(h0, l0), exact_sum(h1, l1));
        store_half(out + x,
                   _mm_packus_epi16(_mm256_castsi256_si128(words), _mm256_extracti128_si256(words, 1)));
    }
}

// Four vectors whose 128-bit lane L holds 4 x int32 of row 4L + r become four vectors, one per int32 column, with the
// 8 rows in order.
inline void turn(__m256i v[4]) {
    const __m256i a = _mm256_unpacklo_epi32(v[0], v[1]), b = _mm256_unpackhi_epi32(v[0], v[1]);
    const __m256i c = _mm256_unpacklo_epi32(v[2], v[3]), d = _mm256_unpackhi_epi32(v[2], v[3]);
    v[0] = _mm256_unpacklo_epi64(a, c);
    v[1] = _mm256_unpackhi_epi64(a, c);
    v[2] = _mm256_unpacklo_epi64(b, d);
    v[3] = _mm256_unpackhi_epi64(b, d);
}

// Lane L: 16 bytes at `at` + L * step bytes.
inline __m256i load_lanes(const void* at, ptrdiff_t step_bytes) {
    const char* from = static_cast<const char*>(at);
    return _mm256_inserti128_si256(_mm256_castsi128_si256(load_half(from)), load_half(from + step_bytes), 1);
}

void pair_columns_q7(const int16_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
    for (int half = 0; half < 2; ++half, stripe += 8 * stride) {
        int32_t* to = pairs + 8 * half;
        for (int x = 0; x < columns; x += 8, to += 4 * kLanes) {
            __m256i v[4];
            for (int r = 0; r < 4; ++r) v[r] = load_lanes(stripe + r * stride + x, 4 * stride * 2);
            turn(v);
            for (int c = 0; c < 4; ++c) store(to + c * kLanes, v[c]);
        }
    }
}

void pair_columns_exact(const uint8_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
    const __m256i zero = _mm256_setzero_si256();
    for (int half = 0; half < 2; ++half, stripe += 8 * stride) {
        int32_t* to = pairs + 8 * half;
        for (int x = 0; x < columns; x += 16, to += 8 * kLanes) {
            __m256i lo[4], hi[4];
            for (int r = 0; r < 4; ++r) {
                const __m256i v = load_lanes(stripe + r * stride + x, 4 * stride);
                lo[r] = _mm256_unpacklo_epi8(v, zero);
                hi[r] = _mm256_unpackhi_epi8(v, zero);
            }
            turn(lo);
            turn(hi);
            for (int c = 0; c < 4; ++c) store(to + c * kLanes, lo[c]);
            for (int c = 0; c < 4; ++c) store(to + (4 + c) * kLanes, hi[c]);
        }
    }
}

template <int kPairs>
inline __attribute__((always_inline)) void horizontal_q7_of(const int32_t* pairs, const ColumnTable& table,
                                                           int16_t* out) {
    const int n = kPairs ? kPairs : table.pairs;
    const int width = table.width;
    const int32_t* first = table.first;
    const int32_t* k = table.plain;
    const __m256i round = _mm256_set1_epi32(1 << (kPlainBits - 1));
    for (int x = 0; x < width; x += 2, k += 2 * n, out += 2 * kLanes) {
        const int32_t* a = pairs + static_cast<ptrdiff_t>(first[x]) * kLanes;
        const int32_t* b = pairs + static_cast<ptrdiff_t>(first[x + 1]) * kLanes;
        __m256i a0 = round, a1 = round, b0 = round, b1 = round;
        for (int p = 0; p < n; ++p) {
            const __m256i ka = _mm256_set1_epi32(k[p]), kb = _mm256_set1_epi32(k[n + p]);
            a0 = multiply_add(a0, load(a + p * kLanes), ka);
            a1 = multiply_add(a1, load(a + p * kLanes + 8), ka);
            b0 = multiply_add(b0, load(b + p * kLanes), kb);
            b1 = multiply_add(b1, load(b + p * kLanes + 8), kb);
        }
        store(out, _mm256_packs_epi32(_mm256_srai_epi32(a0, kPlainBits), _mm256_srai_epi32(b0, kPlainBits)));
        store(out + 16, _mm256_packs_epi32(_mm256_srai_epi32(a1, kPlainBits), _mm256_srai_epi32(b1, kPlainBits)));
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
    const __m256i zero = _mm256_setzero_si256();
    const __m256i round = _mm256_set1_epi32(1 << (kExactBits - 1));
    for (int x = 0; x < width; x += 2, kh += 2 * n, kl += 2 * n, out += 2 * kLanes) {
        for (int half = 0; half < 16; half += 8) {
            const int32_t* a = pairs + static_cast<ptrdiff_t>(first[x]) * kLanes + half;
            const int32_t* b = pairs + static_cast<ptrdiff_t>(first[x + 1]) * kLanes + half;
            __m256i ha = zero, hb = zero, la = round, lb = round;
            for (int p = 0; p < n; ++p) {
                const __m256i va = load(a + p * kLanes), vb = load(b + p * kLanes);
                ha = multiply_add(ha, va, _mm256_set1_epi32(kh[p]));
                la = multiply_add(la, va, _mm256_set1_epi32(kl[p]));
                hb = multiply_add(hb, vb, _mm256_set1_epi32(kh[n + p]));
                lb = multiply_add(lb, vb, _mm256_set1_epi32(kl[n + p]));
            }
            store(out + 2 * half, _mm256_packs_epi32(exact_sum(ha, la), exact_sum(hb, lb)));
        }
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
inline __m256i turn_bytes(__m256i v) {
    const __m128i order = _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15);
    return _mm256_shuffle_epi8(v, _mm256_broadcastsi128_si256(order));
}

// Four vectors of turn_bytes(), 16 columns in all, to 8 rows of 16 bytes.
inline void store_rows(__m256i v[4], uint8_t* out, ptrdiff_t stride) {
    turn(v);
    for (int r = 0; r < 4; ++r) {
        store_half(out + r * stride, _mm256_castsi256_si128(v[r]));
        store_half(out + (r + 4) * stride, _mm256_extracti128_si256(v[r], 1));
    }
}

void finish_ycbcr(const int16_t* y, const int16_t* cb, const int16_t* cr, int width, uint8_t* const rgb[3],
                  ptrdiff_t stride) {
    const __m256i zero = _mm256_set1_epi16(128 << 7);
    const __m256i red_cr = _mm256_set1_epi16(kRedCr), blue_cb = _mm256_set1_epi16(kBlueCb);
    const __m256i green_cb = _mm256_set1_epi16(kGreenCb), green_cr = _mm256_set1_epi16(kGreenCr);
    const __m256i to_byte = _mm256_set1_epi16(1 << 8);
    for (int x = 0; x < width; x += 16, y += 256, cb += 256, cr += 256) {
        for (int rows = 0; rows < 16; rows += 8) {
            __m256i red[4], green[4], blue[4];
            for (int q = 0; q < 4; ++q) {
                __m256i r[2], g[2], b[2];
                for (int half = 0; half < 2; ++half) {
                    const int at = 64 * q + 32 * half + 2 * rows;
                    const __m256i luma = load(y + at);
                    const __m256i u = _mm256_sub_epi16(load(cb + at), zero);
                    const __m256i v = _mm256_sub_epi16(load(cr + at), zero);
                    const __m256i dr = _mm256_add_epi16(v, _mm256_mulhrs_epi16(v, red_cr));
                    const __m256i dg =
                        _mm256_add_epi16(_mm256_mulhrs_epi16(u, green_cb), _mm256_mulhrs_epi16(v, green_cr));
                    const __m256i db = _mm256_add_epi16(u, _mm256_mulhrs_epi16(u, blue_cb));
                    r[half] = _mm256_mulhrs_epi16(_mm256_adds_epi16(luma, dr), to_byte);
                    g[half] = _mm256_mulhrs_epi16(_mm256_adds_epi16(luma, dg), to_byte);
                    b[half] = _mm256_mulhrs_epi16(_mm256_adds_epi16(luma, db), to_byte);
                }
                red[q] = turn_bytes(_mm256_packus_epi16(r[0], r[1]));
                green[q] = turn_bytes(_mm256_packus_epi16(g[0], g[1]));
                blue[q] = turn_bytes(_mm256_packus_epi16(b[0], b[1]));
            }
            store_rows(red, rgb[0] + rows * stride + x, stride);
            store_rows(green, rgb[1] + rows * stride + x, stride);
            store_rows(blue, rgb[2] + rows * stride + x, stride);
        }
    }
}

void finish_exact(const int16_t* plane, int width, uint8_t* out, ptrdiff_t stride) {
    for (int x = 0; x < width; x += 16, plane += 256) {
        for (int rows = 0; rows < 16; rows += 8) {
            __m256i v[4];
            for (int q = 0; q < 4; ++q) {
                const int16_t* at = plane + 64 * q + 2 * rows;
                v[q] = turn_bytes(_mm256_packus_epi16(load(at), load(at + 32)));
            }
            store_rows(v, out + rows * stride + x, stride);
        }
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
    static constexpr PixelKernels kernels = {
        vertical_q7,    vertical_exact, pair_columns_q7, pair_columns_exact, horizontal_q7,
        horizontal_exact, finish_ycbcr, finish_exact,    deinterleave,       interleave,
        affine_float32, affine_float16, affine_bfloat16,
    };
    return kernels;
}

}  // namespace feeder
#endif
