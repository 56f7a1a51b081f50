// The loops of pixels.h that are the same for vectors of any number of 128-bit lanes: no operation in them crosses lanes.
// For pixels_sse2.cc, pixels_avx2.cc and pixels_avx512.cc only: everything is local to the file that includes it, since
// each is compiled for another CPU.
#pragma once

#include <immintrin.h>

#include "cpu/resize/pixels.h"

namespace feeder {
namespace {

// V: the operations of a vector V::T, which holds V::kRows int32. round_q7() rounds int16 with 7 fractional bits
// to whole ones; the other operations are named as the instructions. kShufflesBytes: there is shuffle8().
template <typename V>
struct Pixels {
    using T = typename V::T;
    // A stripe takes kParts vectors of int32, and one vector of int16 for two columns of each part.
    static constexpr int kRows = V::kRows;
    static constexpr int kParts = kLanes / kRows;

    // The sums of one vector of samples per row, `n` pairs of rows: as int16, in the order of the samples within each
    // lane. read(row): the vector of a row.
    template <typename Read>
    static inline __attribute__((always_inline)) void sum_rows_q7(const uint8_t* const* rows,
                                                                  const int32_t* coefficients, ptrdiff_t step, int n,
                                                                  const Read& read, T& even, T& odd) {
        const T zero = V::set32(0);
        const T round = V::set32(1 << (kPlainBits - 8));
        T s0 = round, s1 = round, s2 = round, s3 = round;
        for (int p = 0; p < n; ++p) {
            const T k = V::set32(coefficients[p * step]);
            const T a = read(rows[2 * p]), b = read(rows[2 * p + 1]);
            const T lo = V::unpacklo8(a, b), hi = V::unpackhi8(a, b);
            s0 = V::multiply_add(s0, V::unpacklo8(lo, zero), k);
            s1 = V::multiply_add(s1, V::unpackhi8(lo, zero), k);
            s2 = V::multiply_add(s2, V::unpacklo8(hi, zero), k);
            s3 = V::multiply_add(s3, V::unpackhi8(hi, zero), k);
        }
        constexpr int shift = kPlainBits - 7;
        even = to_q7(V::template srai32<shift>(s0), V::template srai32<shift>(s1));
        odd = to_q7(V::template srai32<shift>(s2), V::template srai32<shift>(s3));
    }

    // Sums as int16, 0 or more: where weights are negative they may be outside of what samples are.
    static T to_q7(T a, T b) { return V::max16(V::packs32(a, b), V::set32(0)); }

    static T exact_sum(T high, T low) {
        return V::template srai32<kExactBits>(V::add32(V::template slli32<kExactLowBits>(high), low));
    }

    // Four vectors whose lane L holds 4 x int32 of row 4L + r become four vectors, one per int32 column, with their rows
    // in order.
    static void turn(T v[4]) {
        const T a = V::unpacklo32(v[0], v[1]), b = V::unpackhi32(v[0], v[1]);
        const T c = V::unpacklo32(v[2], v[3]), d = V::unpackhi32(v[2], v[3]);
        v[0] = V::unpacklo64(a, c);
        v[1] = V::unpackhi64(a, c);
        v[2] = V::unpacklo64(b, d);
        v[3] = V::unpackhi64(b, d);
    }

    static void pair_columns_q7(const int16_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
        for (int part = 0; part < kParts; ++part, stripe += kRows * stride) {
            int32_t* to = pairs + kRows * part;
            for (int x = 0; x < columns; x += 8, to += 4 * kLanes) {
                T v[4];
                for (int r = 0; r < 4; ++r) v[r] = V::load_lanes(stripe + r * stride + x, 4 * stride * 2);
                turn(v);
                for (int c = 0; c < 4; ++c) V::store(to + c * kLanes, v[c]);
            }
        }
    }

    static void pair_columns_exact(const uint8_t* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
        const T zero = V::set32(0);
        for (int part = 0; part < kParts; ++part, stripe += kRows * stride) {
            int32_t* to = pairs + kRows * part;
            for (int x = 0; x < columns; x += 16, to += 8 * kLanes) {
                T lo[4], hi[4];
                for (int r = 0; r < 4; ++r) {
                    const T v = V::load_lanes(stripe + r * stride + x, 4 * stride);
                    lo[r] = V::unpacklo8(v, zero);
                    hi[r] = V::unpackhi8(v, zero);
                }
                turn(lo);
                turn(hi);
                for (int c = 0; c < 4; ++c) V::store(to + c * kLanes, lo[c]);
                for (int c = 0; c < 4; ++c) V::store(to + (4 + c) * kLanes, hi[c]);
            }
        }
    }

    // kPairs: table.pairs where it is known, which saves the loop; 0 for any number.
    template <int kPairs>
    static inline __attribute__((always_inline)) void horizontal_q7_of(const int32_t* pairs, const ColumnTable& table,
                                                                       int16_t* out) {
        const int n = kPairs ? kPairs : table.pairs;
        const int width = table.width;
        const ptrdiff_t step = width;
        const int32_t* first = table.first;
        const int32_t* k = table.plain;
        const T round = V::set32(1 << (kPlainBits - 1));
        for (int x = 0; x < width; x += 2, k += 2, out += 2 * kLanes) {
            const int32_t* a = pairs + static_cast<ptrdiff_t>(first[x]) * kLanes;
            const int32_t* b = pairs + static_cast<ptrdiff_t>(first[x + 1]) * kLanes;
            T sa[kParts], sb[kParts];
            for (int part = 0; part < kParts; ++part) sa[part] = sb[part] = round;
            for (int p = 0; p < n; ++p) {
                const T ka = V::set32(k[p * step]), kb = V::set32(k[p * step + 1]);
                for (int part = 0; part < kParts; ++part) {
                    sa[part] = V::multiply_add(sa[part], V::load(a + p * kLanes + kRows * part), ka);
                    sb[part] = V::multiply_add(sb[part], V::load(b + p * kLanes + kRows * part), kb);
                }
            }
            for (int part = 0; part < kParts; ++part) {
                V::store(out + 2 * kRows * part, to_q7(V::template srai32<kPlainBits>(sa[part]),
                                                       V::template srai32<kPlainBits>(sb[part])));
            }
        }
    }

    static void horizontal_q7(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
        switch (table.pairs) {
            case 1: return horizontal_q7_of<1>(pairs, table, out);
            case 2: return horizontal_q7_of<2>(pairs, table, out);
            case 3: return horizontal_q7_of<3>(pairs, table, out);
            case 4: return horizontal_q7_of<4>(pairs, table, out);
            default: return horizontal_q7_of<0>(pairs, table, out);
        }
    }

    template <int kPairs>
    static inline __attribute__((always_inline)) void horizontal_exact_of(const int32_t* pairs,
                                                                          const ColumnTable& table, int16_t* out) {
        const int n = kPairs ? kPairs : table.pairs;
        const int width = table.width;
        const ptrdiff_t step = width;
        const int32_t* first = table.first;
        const int32_t* kh = table.high;
        const int32_t* kl = table.low;
        const T zero = V::set32(0);
        const T round = V::set32(1 << (kExactBits - 1));
        for (int x = 0; x < width; x += 2, kh += 2, kl += 2, out += 2 * kLanes) {
            for (int row = 0; row < kLanes; row += kRows) {
                const int32_t* a = pairs + static_cast<ptrdiff_t>(first[x]) * kLanes + row;
                const int32_t* b = pairs + static_cast<ptrdiff_t>(first[x + 1]) * kLanes + row;
                T ha = zero, hb = zero, la = round, lb = round;
                for (int p = 0; p < n; ++p) {
                    const T va = V::load(a + p * kLanes), vb = V::load(b + p * kLanes);
                    ha = V::multiply_add(ha, va, V::set32(kh[p * step]));
                    la = V::multiply_add(la, va, V::set32(kl[p * step]));
                    hb = V::multiply_add(hb, vb, V::set32(kh[p * step + 1]));
                    lb = V::multiply_add(lb, vb, V::set32(kl[p * step + 1]));
                }
                V::store(out + 2 * row, V::packs32(exact_sum(ha, la), exact_sum(hb, lb)));
            }
        }
    }

    static void horizontal_exact(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
        switch (table.pairs) {
            case 1: return horizontal_exact_of<1>(pairs, table, out);
            case 2: return horizontal_exact_of<2>(pairs, table, out);
            case 3: return horizontal_exact_of<3>(pairs, table, out);
            case 4: return horizontal_exact_of<4>(pairs, table, out);
            default: return horizontal_exact_of<0>(pairs, table, out);
        }
    }

    // Within each lane, 4 columns x 4 rows of bytes to 4 rows x 4 columns, where bytes can be shuffled.
    static T turn_bytes(T v) {
        if constexpr (!V::kShufflesBytes) return v;
        else return V::shuffle8(v, _mm_setr_epi8(0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15));
    }

    // Four vectors of turn_bytes(), 16 columns in all, to kRows rows of 16 bytes.
    static void store_rows(T v[4], uint8_t* out, ptrdiff_t stride) {
        if constexpr (V::kShufflesBytes) {
            turn(v);
        } else {
            // Each round takes the highest bit of a byte's place, one of its column's four, to the lowest.
            for (int bit = 0; bit < 4; ++bit) {
                const T a = v[0], b = v[1], c = v[2], d = v[3];
                v[0] = V::unpacklo8(a, c);
                v[1] = V::unpackhi8(a, c);
                v[2] = V::unpacklo8(b, d);
                v[3] = V::unpackhi8(b, d);
            }
        }
        for (int r = 0; r < 4; ++r) V::store_lanes(out + r * stride, 4 * stride, v[r]);
    }

    static void finish_ycbcr(const int16_t* y, const int16_t* cb, const int16_t* cr, int width, uint8_t* const rgb[3],
                             ptrdiff_t stride) {
        const T zero = V::set16(128 << 7);
        const T red_cr = V::set16(kRedCr), blue_cb = V::set16(kBlueCb);
        const T green_cb = V::set16(kGreenCb), green_cr = V::set16(kGreenCr);
        for (int x = 0; x < width; x += 16, y += 256, cb += 256, cr += 256) {
            for (int row = 0; row < kLanes; row += kRows) {
                T red[4], green[4], blue[4];
                for (int q = 0; q < 4; ++q) {
                    T r[2], g[2], b[2];
                    for (int half = 0; half < 2; ++half) {
                        const int at = 64 * q + 32 * half + 2 * row;
                        const T luma = V::load(y + at);
                        const T u = V::sub16(V::load(cb + at), zero), v = V::sub16(V::load(cr + at), zero);
                        const T dr = V::add16(v, V::mulhrs16(v, red_cr));
                        const T dg = V::add16(V::mulhrs16(u, green_cb), V::mulhrs16(v, green_cr));
                        const T db = V::add16(u, V::mulhrs16(u, blue_cb));
                        r[half] = V::round_q7(V::adds16(luma, dr));
                        g[half] = V::round_q7(V::adds16(luma, dg));
                        b[half] = V::round_q7(V::adds16(luma, db));
                    }
                    red[q] = turn_bytes(V::packus16(r[0], r[1]));
                    green[q] = turn_bytes(V::packus16(g[0], g[1]));
                    blue[q] = turn_bytes(V::packus16(b[0], b[1]));
                }
                store_rows(red, rgb[0] + row * stride + x, stride);
                store_rows(green, rgb[1] + row * stride + x, stride);
                store_rows(blue, rgb[2] + row * stride + x, stride);
            }
        }
    }

    static void finish_exact(const int16_t* plane, int width, uint8_t* out, ptrdiff_t stride) {
        for (int x = 0; x < width; x += 16, plane += 256) {
            for (int row = 0; row < kLanes; row += kRows) {
                T v[4];
                for (int q = 0; q < 4; ++q) {
                    const int16_t* at = plane + 64 * q + 2 * row;
                    v[q] = turn_bytes(V::packus16(V::load(at), V::load(at + 32)));
                }
                store_rows(v, out + row * stride + x, stride);
            }
        }
    }
};

}  // namespace
}  // namespace feeder
