// The transform of Note [inverse DCT] on vectors of any number of 128-bit lanes. For files of one SIMD level only: everything is
// local to the file that includes it, since each is compiled for another CPU.
#pragma once

#include <immintrin.h>

#include "cpu/jpeg/idct.h"

namespace feeder {
namespace {

// 13 fractional bits, as in jidctint.c.
constexpr int kF0298 = 2446, kF0390 = 3196, kF0541 = 4433, kF0765 = 6270, kF0899 = 7373, kF1175 = 9633, kF1501 = 12299,
              kF1847 = 15137, kF1961 = 16069, kF2053 = 16819, kF2562 = 20995, kF3072 = 25172;
constexpr int kConstBits = 13;
constexpr int kPass1Bits = 2;

// V: the vector operations of one instruction set; V::kBlocks lanes of 8 x int16 or 4 x int32.
template <typename V>
struct Idct {
    using T = typename V::T;

    // An even number of 16-bit constants that pair up with interleaved inputs.
    static T pair(int a, int b) {
        return V::set32(static_cast<int>((static_cast<uint32_t>(b) << 16) | (static_cast<uint32_t>(a) & 0xFFFF)));
    }

    // Sums of products for the lower and the upper four columns.
    struct Wide {
        T lo, hi;
    };
    static Wide interleave(T a, T b) { return {V::unpacklo16(a, b), V::unpackhi16(a, b)}; }
    static Wide madd(Wide x, T k) { return {V::madd(x.lo, k), V::madd(x.hi, k)}; }
    static Wide add_madd(Wide sum, Wide x, T k) { return {V::add_madd(sum.lo, x.lo, k), V::add_madd(sum.hi, x.hi, k)}; }
    static Wide add(Wide a, Wide b) { return {V::add32(a.lo, b.lo), V::add32(a.hi, b.hi)}; }
    static Wide sub(Wide a, Wide b) { return {V::sub32(a.lo, b.lo), V::sub32(a.hi, b.hi)}; }
    template <int kShift>
    static T descale(Wide x) {
        return V::packs32(V::template srai32<kShift>(x.lo), V::template srai32<kShift>(x.hi));
    }

    // One dimension, over the vectors. The rounding of the descale comes in with the even part's first products: as
    // `unit` times `half`.
    template <int kShift>
    static void transform(T v[8]) {
        constexpr int unit = kShift == kConstBits - kPass1Bits ? 1 : 16;
        constexpr int half = kShift == kConstBits - kPass1Bits ? 1 << (kShift - 1) : 1 << (kShift - 5);
        static_assert(unit * half == 1 << (kShift - 1));
        const T units = V::set16(unit);
        const T whole = pair(1 << kConstBits, half);
        const Wide in26 = interleave(v[2], v[6]);
        const Wide tmp0 = madd(interleave(V::add16(v[0], v[4]), units), whole);
        const Wide tmp1 = madd(interleave(V::sub16(v[0], v[4]), units), whole);
        Wide e0, e1, e2, e3;
        if constexpr (V::kFusedSums) {
            e0 = add_madd(tmp0, in26, pair(kF0541 + kF0765, kF0541));
            e3 = add_madd(tmp0, in26, pair(-kF0541 - kF0765, -kF0541));
            e1 = add_madd(tmp1, in26, pair(kF0541, kF0541 - kF1847));
            e2 = add_madd(tmp1, in26, pair(-kF0541, kF1847 - kF0541));
        } else {
            const Wide tmp2 = madd(in26, pair(kF0541, kF0541 - kF1847));
            const Wide tmp3 = madd(in26, pair(kF0541 + kF0765, kF0541));
            e0 = add(tmp0, tmp3);
            e3 = sub(tmp0, tmp3);
            e1 = add(tmp1, tmp2);
            e2 = sub(tmp1, tmp2);
        }

        const Wide z34 = interleave(V::add16(v[3], v[7]), V::add16(v[1], v[5]));
        const Wide z3 = madd(z34, pair(kF1175 - kF1961, kF1175));
        const Wide z4 = madd(z34, pair(kF1175, kF1175 - kF0390));
        const Wide in71 = interleave(v[7], v[1]), in53 = interleave(v[5], v[3]);
        const Wide o0 = add_madd(z3, in71, pair(kF0298 - kF0899, -kF0899));
        const Wide o3 = add_madd(z4, in71, pair(-kF0899, kF1501 - kF0899));
        const Wide o1 = add_madd(z4, in53, pair(kF2053 - kF2562, -kF2562));
        const Wide o2 = add_madd(z3, in53, pair(-kF2562, kF3072 - kF2562));

        v[0] = descale<kShift>(add(e0, o3));
        v[7] = descale<kShift>(sub(e0, o3));
        v[1] = descale<kShift>(add(e1, o2));
        v[6] = descale<kShift>(sub(e1, o2));
        v[2] = descale<kShift>(add(e2, o1));
        v[5] = descale<kShift>(sub(e2, o1));
        v[3] = descale<kShift>(add(e3, o0));
        v[4] = descale<kShift>(sub(e3, o0));
    }

    // The same where only the first four inputs are not zero: four products make each half of a butterfly.
    struct Butterfly {
        T e0, e1, e2, e3, o0, o1, o2, o3;
    };
    static Butterfly corner_products(T in02, T in13, T round) {
        return {V::add32(V::madd(in02, pair(1 << kConstBits, kF0541 + kF0765)), round),
                V::add32(V::madd(in02, pair(1 << kConstBits, kF0541)), round),
                V::add32(V::madd(in02, pair(1 << kConstBits, -kF0541)), round),
                V::add32(V::madd(in02, pair(1 << kConstBits, -kF0541 - kF0765)), round),
                V::madd(in13, pair(kF1175 - kF0899, kF1175 - kF1961)),
                V::madd(in13, pair(kF1175 - kF0390, kF1175 - kF2562)),
                V::madd(in13, pair(kF1175, kF1175 - kF1961 + kF3072 - kF2562)),
                V::madd(in13, pair(kF1501 - kF0899 + kF1175 - kF0390, kF1175))};
    }

    // 8 x 8 int16 in each lane.
    static void transpose(T v[8]) {
        const T a0 = V::unpacklo16(v[0], v[1]), a1 = V::unpackhi16(v[0], v[1]);
        const T a2 = V::unpacklo16(v[2], v[3]), a3 = V::unpackhi16(v[2], v[3]);
        const T a4 = V::unpacklo16(v[4], v[5]), a5 = V::unpackhi16(v[4], v[5]);
        const T a6 = V::unpacklo16(v[6], v[7]), a7 = V::unpackhi16(v[6], v[7]);
        const T b0 = V::unpacklo32(a0, a2), b1 = V::unpackhi32(a0, a2);
        const T b2 = V::unpacklo32(a4, a6), b3 = V::unpackhi32(a4, a6);
        const T b4 = V::unpacklo32(a1, a3), b5 = V::unpackhi32(a1, a3);
        const T b6 = V::unpacklo32(a5, a7), b7 = V::unpackhi32(a5, a7);
        v[0] = V::unpacklo64(b0, b2);
        v[1] = V::unpackhi64(b0, b2);
        v[2] = V::unpacklo64(b1, b3);
        v[3] = V::unpackhi64(b1, b3);
        v[4] = V::unpacklo64(b4, b6);
        v[5] = V::unpackhi64(b4, b6);
        v[6] = V::unpacklo64(b5, b7);
        v[7] = V::unpackhi64(b5, b7);
    }

    // Columns of int16 to rows of samples around 128, stored at out[block].
    static void store(const T v[8], uint8_t* const* out, ptrdiff_t stride) {
        const T level = V::set8(-128);
        // Lane: columns 0 and 4 (and so on), 8 rows each.
        const T c04 = V::packs16(v[0], v[4]), c15 = V::packs16(v[1], v[5]);
        const T c26 = V::packs16(v[2], v[6]), c37 = V::packs16(v[3], v[7]);
        const T c01 = V::unpacklo8(c04, c15), c45 = V::unpackhi8(c04, c15);  // pairs of columns, by row
        const T c23 = V::unpacklo8(c26, c37), c67 = V::unpackhi8(c26, c37);
        const T left03 = V::unpacklo16(c01, c23), left47 = V::unpackhi16(c01, c23);  // four columns, rows 0-3 and 4-7
        const T right03 = V::unpacklo16(c45, c67), right47 = V::unpackhi16(c45, c67);
        V::store_rows(V::add8(V::unpacklo32(left03, right03), level), out, stride, 0);
        V::store_rows(V::add8(V::unpackhi32(left03, right03), level), out, stride, 2);
        V::store_rows(V::add8(V::unpacklo32(left47, right47), level), out, stride, 4);
        V::store_rows(V::add8(V::unpackhi32(left47, right47), level), out, stride, 6);
    }

    // Rows of coefficients, a block in each lane, to samples. False, and nothing done: a first row is not safe.
    static inline __attribute__((always_inline)) bool full_rows(T v[8], const int16_t* quant, uint8_t* const* out,
                                                                ptrdiff_t stride) {
        for (int row = 0; row < 8; ++row) v[row] = V::mullo16(v[row], V::load_lane(quant + 8 * row));
        if (V::any_beyond(v[0])) return false;
        transform<kConstBits - kPass1Bits>(v);
        transpose(v);
        transform<kConstBits + kPass1Bits + 3>(v);
        store(v, out, stride);
        return true;
    }

    static bool full(const IdctBlock* blocks, const int16_t* quant, ptrdiff_t stride) {
        T v[8];
        for (int row = 0; row < 8; ++row) v[row] = V::load_row(blocks, row);
        uint8_t* out[V::kBlocks];
        for (int i = 0; i < V::kBlocks; ++i) out[i] = blocks[i].out;
        return full_rows(v, quant, out, stride);
    }

    static bool corner(const IdctBlock* blocks, const int16_t* quant, ptrdiff_t stride) {
        T v[4];
        for (int row = 0; row < 4; ++row) v[row] = V::mullo16(V::load_row(blocks, row), V::load_lane(quant + 8 * row));
        if (V::any_beyond(v[0])) return false;
        uint8_t* out[V::kBlocks];
        for (int i = 0; i < V::kBlocks; ++i) out[i] = blocks[i].out;
        // Only the lower four columns: half vectors are enough.
        corner_rows(V::unpacklo16(v[0], v[2]), V::unpacklo16(v[1], v[3]), out, stride);
        return true;
    }

    // Dequantized: the first four columns of rows 0 and 2, and of 1 and 3, interleaved.
    static inline __attribute__((always_inline)) void corner_rows(T in02, T in13, uint8_t* const* out,
                                                                  ptrdiff_t stride) {
        constexpr int shift1 = kConstBits - kPass1Bits, shift2 = kConstBits + kPass1Bits + 3;
        const Butterfly p = corner_products(in02, in13, V::set32(1 << (shift1 - 1)));
        const auto both = [](T a, T b) { return V::packs32(V::template srai32<shift1>(a), V::template srai32<shift1>(b)); };
        const T r04 = both(V::add32(p.e0, p.o3), V::sub32(p.e3, p.o0));  // rows 0 and 4, four columns each
        const T r15 = both(V::add32(p.e1, p.o2), V::sub32(p.e2, p.o1));
        const T r26 = both(V::add32(p.e2, p.o1), V::sub32(p.e1, p.o2));
        const T r37 = both(V::add32(p.e3, p.o0), V::sub32(p.e0, p.o3));
        // To columns 0 and 2, 1 and 3, interleaved by row as the second pass wants them.
        const T a0 = V::unpacklo16(r04, r15), a1 = V::unpacklo16(r26, r37);  // columns 0-3, rows in pairs 01 and 23
        const T a2 = V::unpackhi16(r04, r15), a3 = V::unpackhi16(r26, r37);  // 45 and 67
        const T b0 = V::unpacklo32(a0, a1), b1 = V::unpackhi32(a0, a1);      // columns 0 1, 2 3 of rows 0-3
        const T b2 = V::unpacklo32(a2, a3), b3 = V::unpackhi32(a2, a3);      // of rows 4-7
        const T round = V::set32(1 << (shift2 - 1));
        const Butterfly lo = corner_products(V::unpacklo16(b0, b1), V::unpackhi16(b0, b1), round);
        const Butterfly hi = corner_products(V::unpacklo16(b2, b3), V::unpackhi16(b2, b3), round);
        T v[8];
        v[0] = descale<shift2>({V::add32(lo.e0, lo.o3), V::add32(hi.e0, hi.o3)});
        v[7] = descale<shift2>({V::sub32(lo.e0, lo.o3), V::sub32(hi.e0, hi.o3)});
        v[1] = descale<shift2>({V::add32(lo.e1, lo.o2), V::add32(hi.e1, hi.o2)});
        v[6] = descale<shift2>({V::sub32(lo.e1, lo.o2), V::sub32(hi.e1, hi.o2)});
        v[2] = descale<shift2>({V::add32(lo.e2, lo.o1), V::add32(hi.e2, hi.o1)});
        v[5] = descale<shift2>({V::sub32(lo.e2, lo.o1), V::sub32(hi.e2, hi.o1)});
        v[3] = descale<shift2>({V::add32(lo.e3, lo.o0), V::add32(hi.e3, hi.o0)});
        v[4] = descale<shift2>({V::sub32(lo.e3, lo.o0), V::sub32(hi.e3, hi.o0)});
        store(v, out, stride);
    }

    // As many at a time as there are lanes; the last ones are filled up with copies of the last block.
    template <bool (*kTransform)(const IdctBlock*, const int16_t*, ptrdiff_t)>
    static int all(const IdctBlock* blocks, int count, const int16_t* quant, ptrdiff_t stride) {
        int done = 0;
        for (; done + V::kBlocks <= count; done += V::kBlocks)
            if (!kTransform(blocks + done, quant, stride)) return done;
        if (done == count) return done;
        IdctBlock last[V::kBlocks];
        for (int i = 0; i < V::kBlocks; ++i) last[i] = blocks[done + i < count ? done + i : count - 1];
        return kTransform(last, quant, stride) ? count : done;
    }

    static constexpr IdctKernels kKernels = {all<full>, all<corner>};
};

}  // namespace
}  // namespace feeder
