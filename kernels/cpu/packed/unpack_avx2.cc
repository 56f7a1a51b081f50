// unpack.h with AVX2 and BMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include <cstring>

#include "cpu/jpeg/zigzag.h"
#include "cpu/packed/unpack.h"

namespace feeder {
namespace {

// By code: the fields' mask and bias, a byte for each of 8 fields. And for each 16 coefficients in natural order, the
// shuffle of each 16 in zigzag order that are among them; 0x80 for others.
struct Tables {
    uint64_t masks[8];
    uint64_t biases[8];
    alignas(16) uint8_t shuffle[4][4][16];
};

constexpr Tables make_tables() {
    Tables tables{};
    for (int code = 0; code < 8; ++code) {
        const uint64_t width = static_cast<uint64_t>(kWidths[code]);
        for (uint64_t i = 0; i < 8; ++i) {
            tables.masks[code] |= ((1ull << width) - 1) << (8 * i);
            tables.biases[code] |= (width == 0 ? 0 : 1ull << (width - 1)) << (8 * i);
        }
    }
    for (auto& to : tables.shuffle)
        for (auto& from : to)
            for (uint8_t& place : from) place = 0x80;
    for (uint8_t k = 0; k < 64; ++k) {
        const int natural = kNaturalOrder[k];
        tables.shuffle[natural / 16][k / 16][natural % 16] = k % 16;
    }
    return tables;
}
constexpr Tables kTables = make_tables();

__m128i shuffled(__m128i from, int to, int number) {
    return _mm_shuffle_epi8(from, _mm_load_si128(reinterpret_cast<const __m128i*>(kTables.shuffle[to][number])));
}

void unpack_block(const ShapeTable& table, const PackedBlock& block) {
    const Shape& codes = table.codes[block.shape];
    alignas(64) uint64_t fields[kGroups];
    alignas(64) uint64_t biases[kGroups];
    const uint8_t* at = block.payload;
    for (int g = 0; g < kGroups; ++g) {
        const uint8_t code = codes[static_cast<size_t>(g)];
        uint64_t word;
        std::memcpy(&word, at, sizeof(word));
        fields[g] = _pdep_u64(word, kTables.masks[code]);
        biases[g] = kTables.biases[code];
        at += kWidths[code];
    }
    __m128i x[4];
    for (int i = 0; i < 4; ++i) {
        x[i] = _mm_sub_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(fields) + i),
                            _mm_load_si128(reinterpret_cast<const __m128i*>(biases) + i));
    }
    // The first 16 coefficients in natural order have none of the last 16 in zigzag order, and the reverse.
    const __m128i y[4] = {
        _mm_or_si128(_mm_or_si128(shuffled(x[0], 0, 0), shuffled(x[1], 0, 1)), shuffled(x[2], 0, 2)),
        _mm_or_si128(_mm_or_si128(shuffled(x[0], 1, 0), shuffled(x[1], 1, 1)),
                     _mm_or_si128(shuffled(x[2], 1, 2), shuffled(x[3], 1, 3))),
        _mm_or_si128(_mm_or_si128(shuffled(x[0], 2, 0), shuffled(x[1], 2, 1)),
                     _mm_or_si128(shuffled(x[2], 2, 2), shuffled(x[3], 2, 3))),
        _mm_or_si128(_mm_or_si128(shuffled(x[1], 3, 1), shuffled(x[2], 3, 2)), shuffled(x[3], 3, 3)),
    };
    for (int i = 0; i < 4; ++i)
        _mm256_store_si256(reinterpret_cast<__m256i*>(block.out + 16 * i), _mm256_cvtepi8_epi16(y[i]));
    block.out[0] = 0;
}

}  // namespace

void unpack_avx2(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end) {
    for (int n = 0; n < count; ++n) {
        // Each group is read as 8 bytes.
        if (end - blocks[n].payload >= table.bytes[blocks[n].shape] + 8) {
            unpack_block(table, blocks[n]);
        } else {
            unpack_portable(table, blocks + n, 1, end);
        }
    }
}

}  // namespace feeder
#endif
