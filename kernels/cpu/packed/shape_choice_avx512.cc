// The choice of shapes with AVX-512: all groups of a block at once, and 64 shapes at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/packed/shape_choice.h"

namespace feeder {
namespace {

// The largest number that is within the patches of any width but 0.
constexpr int kMostUsual = 61;
static_assert(kWidths[1] == 2 && kMostHigh * (1 << kWidths[1]) + (1 << (kWidths[1] - 1)) - 1 == kMostUsual);

// A block's BlockCosts.
FEEDER_INLINE __m512i costs_of(const OrderedBlock& block) {
    const __m512i low = _mm512_load_si512(block.coefficients), high = _mm512_load_si512(block.coefficients + 32);
    // Each in a byte: n if it is not negative, else -1 - n.
    const auto folded = [](__m512i v) {
        return _mm512_cvtusepi16_epi8(_mm512_xor_si512(v, _mm512_srai_epi16(v, 15)));
    };
    const __m512i numbers = _mm512_inserti64x4(_mm512_castsi256_si512(folded(low)), folded(high), 1);
    const __mmask64 nonzero = _mm512_test_epi16_mask(low, low) | __mmask64{_mm512_test_epi16_mask(high, high)} << 32;
    const __m512i patch = _mm512_set1_epi8(kPatchBytes), zero = _mm512_setzero_si512();
    const __mmask64 beyond = _mm512_cmpgt_epu8_mask(numbers, _mm512_set1_epi8(kMostHigh));
    const __m512i of_none = _mm512_mask_mov_epi8(_mm512_maskz_mov_epi8(nonzero, patch), beyond,
                                                 _mm512_set1_epi8(BlockCosts::kBeyond));
    __m512i sums = _mm512_sad_epu8(of_none, zero);
    static_assert(kWidths[0] == 0);
#pragma GCC unroll 7
    for (int code = 1; code < 8; ++code) {
        const __m512i most = _mm512_set1_epi8(static_cast<char>((1 << (kWidths[code] - 1)) - 1));
        const __m512i cost = _mm512_maskz_mov_epi8(_mm512_cmpgt_epu8_mask(numbers, most), patch);
        const __m512i sum = _mm512_add_epi64(_mm512_sad_epu8(cost, zero), _mm512_set1_epi64(kWidths[code]));
        sums = _mm512_or_si512(sums, _mm512_slli_epi64(sum, static_cast<unsigned>(8 * code)));
    }
    uint64_t large = _mm512_cmpgt_epu8_mask(numbers, _mm512_set1_epi8(kMostUsual));
    if (large == 0) [[likely]] return sums;
    BlockCosts costs;
    _mm512_storeu_si512(costs.of_code, sums);
    while (large != 0) {
        const size_t group = static_cast<size_t>(__builtin_ctzll(large)) / 8;
        costs.set_group(block, group);
        large &= ~(uint64_t{0xFF} << (8 * group));
    }
    return _mm512_loadu_si512(costs.of_code);
}

FEEDER_INLINE ShapeChoice choose(const ShapeTable& table, __m512i costs) {    static_assert(sizeof(BlockCosts) == sizeof(__m512i));
    // The cost of each pair of codes, for pairs of groups.
    const __m512i upper = _mm512_set_epi64(0x0707070707070707, 0x0606060606060606, 0x0505050505050505, 0x0404040404040404,
                                           0x0303030303030303, 0x0202020202020202, 0x0101010101010101, 0);
    __m512i of_pair[kGroups / 2];
#pragma GCC unroll 4
    for (int p = 0; p < kGroups / 2; ++p) {
        const __m512i first = _mm512_permutexvar_epi64(_mm512_set1_epi64(2 * p), costs);
        const __m512i second = _mm512_permutexvar_epi64(_mm512_set1_epi64(2 * p + 1), costs);
        of_pair[p] = _mm512_adds_epu8(first, _mm512_shuffle_epi8(second, upper));
    }
    constexpr int kVectors = kMostShapes / 64;
    __m512i totals[kVectors];
#pragma GCC unroll 4
    for (int n = 0; n < kVectors; ++n) {
        const auto cost = [&](int p) {
            return _mm512_permutexvar_epi8(_mm512_load_si512(table.by_pair[p] + 64 * n), of_pair[p]);
        };
        totals[n] = _mm512_adds_epu8(_mm512_adds_epu8(cost(0), cost(1)), _mm512_adds_epu8(cost(2), cost(3)));
    }
    const __m512i least = _mm512_min_epu8(_mm512_min_epu8(totals[0], totals[1]), _mm512_min_epu8(totals[2], totals[3]));
    const __m256i half = _mm256_min_epu8(_mm512_castsi512_si256(least), _mm512_extracti64x4_epi64(least, 1));
    __m128i one = _mm_min_epu8(_mm256_castsi256_si128(half), _mm256_extracti128_si256(half, 1));
    one = _mm_min_epu8(one, _mm_srli_epi16(one, 8));  // of pairs, in the lower byte
    const int found = _mm_cvtsi128_si32(_mm_minpos_epu16(_mm_and_si128(one, _mm_set1_epi16(0xFF)))) & 0xFF;
    const __m512i wanted = _mm512_set1_epi8(static_cast<char>(found));
    int shape = 0;
#pragma GCC unroll 4
    for (int n = kVectors - 1; n >= 0; --n) {
        const uint64_t equal = _mm512_cmpeq_epi8_mask(totals[n], wanted);
        shape = equal != 0 ? 64 * n + __builtin_ctzll(equal) : shape;
    }
    return {shape, found};
}

}  // namespace

void set_costs_avx512(const OrderedBlock& block, BlockCosts& costs) {
    _mm512_storeu_si512(costs.of_code, costs_of(block));
}

ShapeChoice choose_shape_avx512(const ShapeTable& table, const BlockCosts& costs) {
    return choose(table, _mm512_loadu_si512(costs.of_code));
}

void choose_shapes_avx512(const ShapeTable& table, const OrderedBlock* const* blocks, int count, ShapeChoice* out) {
    for (int i = 0; i < count; ++i) out[i] = choose(table, costs_of(*blocks[i]));
}

}  // namespace feeder
#endif
