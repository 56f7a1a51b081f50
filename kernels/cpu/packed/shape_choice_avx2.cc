// The choice of shapes with AVX2, 32 shapes at a time, and payloads with BMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "cpu/packed/shape_choice.h"

namespace feeder {
namespace {

// The largest number that is within the patches of any width but 0.
constexpr int kMostUsual = 61;
static_assert(kWidths[1] == 2 && kMostHigh * (1 << kWidths[1]) + (1 << (kWidths[1] - 1)) - 1 == kMostUsual);

// Adds what 4 groups cost with the code for `width` bits. A number n is in a byte, as n if it is not negative, else as -1 - n.
__m256i add_cost(__m256i costs, __m256i numbers, __m256i is_zero, int code, int width) {
    __m256i fits;
    __m256i cost = _mm256_set1_epi8(kPatchBytes);
    if (width == 0) {
        const __m256i limit = _mm256_set1_epi8(kMostHigh);
        const __m256i within = _mm256_cmpeq_epi8(_mm256_max_epu8(numbers, limit), limit);
        fits = is_zero;
        cost = _mm256_blendv_epi8(_mm256_set1_epi8(BlockCosts::kBeyond), cost, within);
    } else {
        const __m256i most = _mm256_set1_epi8(static_cast<char>((1 << (width - 1)) - 1));
        fits = _mm256_cmpeq_epi8(_mm256_max_epu8(numbers, most), most);
    }
    const __m256i sums = _mm256_sad_epu8(_mm256_andnot_si256(fits, cost), _mm256_setzero_si256());
    return _mm256_add_epi8(costs, _mm256_slli_epi64(sums, 8 * code));
}

FEEDER_INLINE void set_costs(const OrderedBlock& block, BlockCosts& costs) {
    const __m256i* const from = reinterpret_cast<const __m256i*>(block.coefficients);
    __m256i widths = _mm256_setzero_si256();
    for (int code = 0; code < 8; ++code)
        widths = _mm256_or_si256(widths, _mm256_set1_epi64x(int64_t{kWidths[code]} << (8 * code)));
    for (size_t half = 0; half < 2; ++half) {
        const __m256i low = _mm256_load_si256(from + 2 * half), high = _mm256_load_si256(from + 2 * half + 1);
        const auto folded = [](__m256i v) { return _mm256_xor_si256(v, _mm256_srai_epi16(v, 15)); };
        // Groups 0, 2, 1 and 3 of this half.
        const __m256i numbers = _mm256_packus_epi16(folded(low), folded(high));
        const __m256i zero = _mm256_setzero_si256();
        const __m256i is_zero = _mm256_packs_epi16(_mm256_cmpeq_epi16(low, zero), _mm256_cmpeq_epi16(high, zero));
        __m256i sums = widths;
        for (int code = 0; code < 8; ++code) sums = add_cost(sums, numbers, is_zero, code, kWidths[code]);
        sums = _mm256_permute4x64_epi64(sums, 0b11011000);
        _mm256_storeu_si256(reinterpret_cast<__m256i*>(costs.of_code[4 * half]), sums);
        const __m256i most = _mm256_set1_epi8(kMostUsual);
        const __m256i usual = _mm256_cmpeq_epi8(_mm256_max_epu8(numbers, most), most);
        const unsigned large = ~static_cast<unsigned>(_mm256_movemask_epi8(usual));
        if (large == 0) continue;
        constexpr size_t kGroupOf[4] = {0, 2, 1, 3};
        for (size_t i = 0; i < 4; ++i)
            if ((large >> (8 * i) & 0xFF) != 0) costs.set_group(block, 4 * half + kGroupOf[i]);
    }
}

FEEDER_INLINE ShapeChoice choose(const ShapeTable& table, const BlockCosts& costs) {
    __m256i of_code[kGroups];
    for (int g = 0; g < kGroups; ++g) {
        const __m128i eight = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(costs.of_code[g]));
        of_code[g] = _mm256_broadcastsi128_si256(eight);
    }
    __m256i totals[kMostShapes / 32];
    __m256i least = _mm256_set1_epi8(-1);
    const int vectors = (table.count + 31) / 32;
    for (int n = 0; n < vectors; ++n) {
        __m256i total = _mm256_setzero_si256();
        for (int g = 0; g < kGroups; ++g) {
            const __m256i codes = _mm256_load_si256(reinterpret_cast<const __m256i*>(table.by_group[g]) + n);
            total = _mm256_adds_epu8(total, _mm256_shuffle_epi8(of_code[g], codes));
        }
        totals[n] = total;
        least = _mm256_min_epu8(least, total);
    }
    __m128i one = _mm_min_epu8(_mm256_castsi256_si128(least), _mm256_extracti128_si256(least, 1));
    one = _mm_min_epu8(one, _mm_srli_epi16(one, 8));  // of pairs, in the lower byte
    const int found = _mm_cvtsi128_si32(_mm_minpos_epu16(_mm_and_si128(one, _mm_set1_epi16(0xFF)))) & 0xFF;
    const __m256i wanted = _mm256_set1_epi8(static_cast<char>(found));
    for (int n = 0; n < vectors; ++n) {
        const unsigned equal = static_cast<unsigned>(_mm256_movemask_epi8(_mm256_cmpeq_epi8(totals[n], wanted)));
        if (equal != 0) return {32 * n + __builtin_ctz(equal), found};
    }
    return {0, found};
}

}  // namespace

void set_costs_avx2(const OrderedBlock& block, BlockCosts& costs) { set_costs(block, costs); }

ShapeChoice choose_shape_avx2(const ShapeTable& table, const BlockCosts& costs) { return choose(table, costs); }

void choose_shapes_avx2(const ShapeTable& table, const OrderedBlock* const* blocks, int count, ShapeChoice* out) {
    for (int i = 0; i < count; ++i) {
        BlockCosts costs;
        set_costs(*blocks[i], costs);
        out[i] = choose(table, costs);
    }
}

uint8_t* write_payload_bmi2(const ShapeTable& table, int shape, const OrderedBlock& block, uint8_t* to) {
    const __m256i* const from = reinterpret_cast<const __m256i*>(block.coefficients);
    const __m256i low_byte = _mm256_set1_epi16(0xFF);
    alignas(32) uint64_t groups[kGroups];
    for (int half = 0; half < 2; ++half) {
        const __m256i a = _mm256_and_si256(_mm256_load_si256(from + 2 * half), low_byte);
        const __m256i b = _mm256_and_si256(_mm256_load_si256(from + 2 * half + 1), low_byte);
        const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packus_epi16(a, b), 0b11011000);
        _mm256_store_si256(reinterpret_cast<__m256i*>(groups + 4 * half), bytes);
    }
    // Modulo 2^w, adding 2^(w-1) changes the highest bit.
    const uint64_t* const masks = table.mask[shape];
    const uint64_t* const biases = table.bias[shape];
    for (int g = 0; g < kGroups; ++g) {
        const uint64_t word = _pext_u64(groups[g] ^ biases[g], masks[g]);
        std::memcpy(to, &word, sizeof(word));
        to += kWidths[table.codes[shape][static_cast<size_t>(g)]];
    }
    return to;
}

}  // namespace feeder
#endif
