// unpack.h with AVX-512 VBMI and VBMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/jpeg/zigzag.h"
#include "cpu/packed/unpack.h"

namespace feeder {
namespace {

// By code: the first bit of each field, the fields' mask, and their bias, a byte for each of 8 fields. And the place in
// zigzag order of each coefficient in natural order.
struct Tables {
    alignas(64) uint64_t first_bits[8];
    alignas(64) uint64_t masks[8];
    alignas(64) uint64_t biases[8];
    alignas(64) uint8_t zigzag[64];
};

constexpr Tables make_tables() {
    Tables tables{};
    for (int code = 0; code < 8; ++code) {
        const uint64_t width = static_cast<uint64_t>(kWidths[code]);
        for (uint64_t i = 0; i < 8; ++i) {
            tables.first_bits[code] |= (width * i) << (8 * i);
            tables.masks[code] |= ((1ull << width) - 1) << (8 * i);
            tables.biases[code] |= (width == 0 ? 0 : 1ull << (width - 1)) << (8 * i);
        }
    }
    for (uint8_t k = 0; k < 64; ++k) tables.zigzag[kNaturalOrder[k]] = k;
    return tables;
}
constexpr Tables kTables = make_tables();

}  // namespace

void unpack_avx512(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t*) {
    const __m512i first_bits = _mm512_load_si512(kTables.first_bits);
    const __m512i masks = _mm512_load_si512(kTables.masks);
    const __m512i biases = _mm512_load_si512(kTables.biases);
    const __m512i zigzag = _mm512_load_si512(kTables.zigzag);
    for (int n = 0; n < count; ++n) {
        const PackedBlock& block = blocks[n];
        const unsigned shape = block.shape;
        const __m512i codes =
            _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(table.codes[shape].data())));
        // A masked load and the expand of a register: Zen 4 takes hundreds of cycles to expand from memory.
        const __mmask64 loaded = _bzhi_u64(~0ull, table.bytes[shape]);
        const __m512i payload = _mm512_maskz_loadu_epi8(loaded, block.payload);
        __m512i x = _mm512_maskz_expand_epi8(table.byte_mask[shape], payload);
        x = _mm512_multishift_epi64_epi8(_mm512_permutexvar_epi64(codes, first_bits), x);
        x = _mm512_and_si512(x, _mm512_permutexvar_epi64(codes, masks));
        x = _mm512_sub_epi8(x, _mm512_permutexvar_epi64(codes, biases));
        x = _mm512_permutexvar_epi8(zigzag, x);
        _mm512_store_si512(block.out, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(x)));
        _mm512_store_si512(block.out + 32, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(x, 1)));
        block.out[0] = 0;
    }
}

}  // namespace feeder
#endif
