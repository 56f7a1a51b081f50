// choose_shape() with AVX2: 32 shapes at a time.
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/packed/shape_choice.h"

namespace feeder {

int choose_shape_avx2(const ShapeTable& table, const BlockCosts& costs) {
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
        if (equal != 0) return 32 * n + __builtin_ctz(equal);
    }
    return 0;
}

}  // namespace feeder
#endif
