// unpack.h with AVX-512 VBMI and VBMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/jpeg/idct_avx512.h"
#include "cpu/jpeg/zigzag.h"
#include "cpu/packed/unpack.h"

namespace feeder {
namespace {

// By code: the first bit of each field, the fields' mask, and their bias, a byte for each of 8 fields. The place in zigzag
// order of each coefficient in natural order. For a first group, its coefficients in the order of Idct::corner_rows(): the
// first four columns of rows 0 and 2, and of rows 1 and 3, interleaved; 0x80 for those of other groups.
struct Tables {
    alignas(64) uint64_t first_bits[8];
    alignas(64) uint64_t masks[8];
    alignas(64) uint64_t biases[8];
    alignas(64) uint8_t zigzag[64];
    alignas(64) uint8_t numbers[64];
    alignas(32) uint8_t corner02[32];
    alignas(32) uint8_t corner13[32];
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
    for (uint8_t k = 0; k < 64; ++k) {
        tables.zigzag[kNaturalOrder[k]] = k;
        tables.numbers[k] = k;
    }
    for (int i = 0; i < 32; ++i) tables.corner02[i] = tables.corner13[i] = 0x80;
    for (uint8_t k = 0; k < 8; ++k) {
        const int row = kNaturalOrder[k] / 8, column = kNaturalOrder[k] % 8;
        for (int block = 0; block < 4; ++block) {  // 8 bytes of each; a shuffle's places are those in its 16
            const int at = 8 * block + 2 * column + row / 2;
            (row % 2 == 0 ? tables.corner02 : tables.corner13)[at] = static_cast<uint8_t>(8 * (block % 2) + k);
        }
    }
    return tables;
}
constexpr Tables kTables = make_tables();

struct Unpacker {
    const __m512i first_bits = _mm512_load_si512(kTables.first_bits);
    const __m512i masks = _mm512_load_si512(kTables.masks);
    const __m512i biases = _mm512_load_si512(kTables.biases);

    // The coefficients in zigzag order, a byte each; the DC coefficient is any number.
    inline __attribute__((always_inline)) __m512i block(const ShapeTable& table, unsigned shape,
                                                        const uint8_t* payload) const {
        const __m512i codes =
            _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(&table.codes[shape])));
        // A masked load and the expand of a register: Zen 4 takes hundreds of cycles to expand from memory.
        const __mmask64 loaded = _bzhi_u64(~0ull, table.bytes[shape]);
        __m512i x = _mm512_maskz_expand_epi8(table.byte_mask[shape], _mm512_maskz_loadu_epi8(loaded, payload));
        x = _mm512_multishift_epi64_epi8(_mm512_permutexvar_epi64(codes, first_bits), x);
        x = _mm512_and_si512(x, _mm512_permutexvar_epi64(codes, masks));
        return _mm512_sub_epi8(x, _mm512_permutexvar_epi64(codes, biases));
    }
};

void unpack(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t*) {
    const Unpacker unpacker;
    for (int n = 0; n < count; ++n) {
        const PackedBlock& block = blocks[n];
        const __m512i x = unpacker.block(table, block.shape, block.payload);
        _mm512_store_si512(block.out, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(x)));
        _mm512_store_si512(block.out + 32, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(x, 1)));
        block.out[0] = 0;
    }
}

// The bytes of a table of 256 at 64 places.
inline __attribute__((always_inline)) __m512i look_up(const uint8_t* table, __m512i places) {
    const __m512i lower = _mm512_permutex2var_epi8(_mm512_load_si512(table), places, _mm512_load_si512(table + 64));
    const __m512i upper = _mm512_permutex2var_epi8(_mm512_load_si512(table + 128), places, _mm512_load_si512(table + 192));
    return _mm512_mask_mov_epi8(lower, _mm512_movepi8_mask(places), upper);
}

// The sums of the elements before each one of 32, and `before`; `before` becomes the sum of all.
inline __attribute__((always_inline)) __m512i sums_before(__m512i values, __m512i& before) {
    const __m512i last = _mm512_set1_epi16(0x0F0E);  // a shuffle: the last element of each lane, everywhere in it
    __m512i sums = _mm512_add_epi16(values, _mm512_bslli_epi128(values, 2));
    sums = _mm512_add_epi16(sums, _mm512_bslli_epi128(sums, 4));
    sums = _mm512_add_epi16(sums, _mm512_bslli_epi128(sums, 8));
    const __m512i lanes = _mm512_shuffle_epi8(sums, last);
    const __m512i after_one = _mm512_maskz_shuffle_i64x2(0xFC, lanes, lanes, 0x90);    // of the lanes before: 0, 0, 1, 2
    const __m512i after_two = _mm512_maskz_shuffle_i64x2(0xF0, lanes, lanes, 0x40);    // 0, 0, 0, 1
    const __m512i after_three = _mm512_maskz_shuffle_i64x2(0xC0, lanes, lanes, 0x00);  // 0
    const __m512i of_lanes = _mm512_add_epi16(_mm512_add_epi16(before, after_one), _mm512_add_epi16(after_two, after_three));
    const __m512i all = _mm512_add_epi16(of_lanes, lanes);
    before = _mm512_shuffle_i64x2(all, all, 0xFF);
    return _mm512_sub_epi16(_mm512_add_epi16(sums, of_lanes), values);
}

// Adds the blocks of a mask to a queue. `offsets`: places of the payloads of the first and the last 32.
inline __attribute__((always_inline)) void add_blocks(BlockQueue& queue, __mmask64 blocks, const BlockRun& run,
                                                      __m512i shapes, const __m512i* offsets, const __m512i* dc) {
    alignas(64) uint8_t index[BlockRun::kMost];
    alignas(64) uint16_t place[BlockRun::kMost + 32];
    const __mmask32 half[2] = {static_cast<__mmask32>(blocks), static_cast<__mmask32>(blocks >> 32)};
    const int first = __builtin_popcount(half[0]), count = first + __builtin_popcount(half[1]);
    _mm512_store_si512(index, _mm512_maskz_compress_epi8(blocks, _mm512_load_si512(kTables.numbers)));
    _mm512_storeu_si512(queue.shape + queue.count, _mm512_maskz_compress_epi8(blocks, shapes));
    for (int h = 0, at = 0; h < 2; ++h, at = first) {
        _mm512_storeu_si512(place + at, _mm512_maskz_compress_epi16(half[h], offsets[h]));
        _mm512_storeu_si512(queue.dc + queue.count + at, _mm512_maskz_compress_epi16(half[h], dc[h]));
    }
    const __m512i payload = _mm512_set1_epi64(static_cast<long long>(reinterpret_cast<uintptr_t>(run.payload)));
    const __m512i out = _mm512_set1_epi64(static_cast<long long>(reinterpret_cast<uintptr_t>(run.out)));
    for (int i = 0; i < count; i += 8) {
        const __m512i places = _mm512_cvtepu16_epi64(_mm_load_si128(reinterpret_cast<const __m128i*>(place + i)));
        const __m512i numbers = _mm512_cvtepu8_epi64(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(index + i)));
        _mm512_storeu_si512(queue.payload + queue.count + i, _mm512_add_epi64(payload, places));
        _mm512_storeu_si512(queue.out + queue.count + i, _mm512_add_epi64(out, _mm512_slli_epi64(numbers, 3)));
    }
    queue.count += count;
}

uint64_t add_run(const ShapeTable& table, const BlockRun& run, BlockQueue& corner, BlockQueue& full, int& payload_bytes) {
    const __mmask64 all = _bzhi_u64(~0ull, static_cast<unsigned>(run.count));
    uint64_t patched = 0;
    for (int p = 0; p < run.patch_count; ++p) patched |= uint64_t{1} << run.patches[p].block;
    const __m512i shapes = _mm512_maskz_loadu_epi8(all, run.shapes);
    const __m512i found = _mm512_maskz_mov_epi8(all, look_up(table.kind_and_bytes, shapes));
    const __mmask64 is_full = _mm512_movepi8_mask(found) | patched;
    const __mmask64 is_flat = all & ~_mm512_test_epi8_mask(found, found) & ~patched;
    for (int p = 0; p < run.patch_count; ++p) {
        const uint64_t before = _bzhi_u64(is_full, run.patches[p].block);
        run.patches[p].block = static_cast<uint8_t>(full.count + __builtin_popcountll(before));
    }
    const __m512i bytes = _mm512_andnot_si512(_mm512_set1_epi8(static_cast<char>(ShapeTable::kFull)), found);
    __m512i before = _mm512_setzero_si512();
    __m512i offsets[2];
    offsets[0] = sums_before(_mm512_cvtepu8_epi16(_mm512_castsi512_si256(bytes)), before);
    offsets[1] = sums_before(_mm512_cvtepu8_epi16(_mm512_extracti64x4_epi64(bytes, 1)), before);
    payload_bytes = _mm_cvtsi128_si32(_mm512_castsi512_si128(before)) & 0xFFFF;
    const __m512i dc[2] = {_mm512_maskz_loadu_epi16(static_cast<__mmask32>(all), run.dc),
                           _mm512_maskz_loadu_epi16(static_cast<__mmask32>(all >> 32), run.dc + 32)};
    add_blocks(corner, all & ~is_full & ~is_flat, run, shapes, offsets, dc);
    add_blocks(full, is_full, run, shapes, offsets, dc);
    return is_flat;
}

using Transform = Idct<Avx512>;

// Puts four DC coefficients into the first element of each lane.
inline __attribute__((always_inline)) __m512i with_dc(__m512i rows, const int16_t* dc) {
    const __m512i places = _mm512_setr_epi64(0, 0, 1, 0, 2, 0, 3, 0);
    const __m512i four = _mm512_castsi128_si512(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(dc)));
    return _mm512_mask_permutexvar_epi16(rows, 0x01010101, places, four);
}

// The number of block i of four from `first` on; from `count` on, that of the last one.
inline int block_of_four(int first, int i, int count) { return first + i < count ? first + i : count - 1; }

inline __attribute__((always_inline)) __m512i with_dc_of(__m512i rows, const BlockQueue& queue, int first, int count) {
    alignas(8) int16_t dc[4];
    for (int i = 0; i < 4; ++i) dc[i] = queue.dc[block_of_four(first, i, count)];
    return with_dc(rows, first + 4 <= count ? queue.dc + first : dc);
}

void unpack_queue(const ShapeTable& table, const BlockQueue& queue, int count, const uint8_t*, QueueRows& rows) {
    const Unpacker unpacker;
    const __m512i zigzag = _mm512_load_si512(kTables.zigzag);
    const __m512i rows03 = _mm512_setr_epi64(0, 8, 1, 9, 2, 10, 3, 11);
    const __m512i rows47 = _mm512_setr_epi64(4, 12, 5, 13, 6, 14, 7, 15);
    const __m512i lower = _mm512_setr_epi64(0, 1, 8, 9, 2, 3, 10, 11);
    const __m512i upper = _mm512_setr_epi64(4, 5, 12, 13, 6, 7, 14, 15);
    __m512i* to = reinterpret_cast<__m512i*>(rows.coefficients);
    for (int first = 0; first < count; first += 4, to += 8) {
        __m512i block[4];
        for (int i = 0; i < 4; ++i) {
            const int n = block_of_four(first, i, count);
            block[i] = _mm512_permutexvar_epi8(zigzag, unpacker.block(table, queue.shape[n], queue.payload[n]));
        }
        // Rows of all four blocks next to each other, two rows in a vector.
        const __m512i a = _mm512_permutex2var_epi64(block[0], rows03, block[1]);
        const __m512i b = _mm512_permutex2var_epi64(block[2], rows03, block[3]);
        const __m512i c = _mm512_permutex2var_epi64(block[0], rows47, block[1]);
        const __m512i d = _mm512_permutex2var_epi64(block[2], rows47, block[3]);
        const __m512i two[4] = {_mm512_permutex2var_epi64(a, lower, b), _mm512_permutex2var_epi64(a, upper, b),
                                _mm512_permutex2var_epi64(c, lower, d), _mm512_permutex2var_epi64(c, upper, d)};
        _mm512_store_si512(to, with_dc_of(_mm512_cvtepi8_epi16(_mm512_castsi512_si256(two[0])), queue, first, count));
        _mm512_store_si512(to + 1, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(two[0], 1)));
        for (int i = 1; i < 4; ++i) {
            _mm512_store_si512(to + 2 * i, _mm512_cvtepi8_epi16(_mm512_castsi512_si256(two[i])));
            _mm512_store_si512(to + 2 * i + 1, _mm512_cvtepi8_epi16(_mm512_extracti64x4_epi64(two[i], 1)));
        }
    }
}

int transform_queue(const BlockQueue& queue, const QueueRows& rows, int first, int count, const int16_t* quant,
                    ptrdiff_t stride) {
    for (; first < count; first += 4) {
        __m512i v[8];
        for (int row = 0; row < 8; ++row)
            v[row] = _mm512_load_si512(reinterpret_cast<const __m512i*>(rows.coefficients + 64 * first) + row);
        uint8_t* out[4];
        for (int i = 0; i < 4; ++i) out[i] = queue.out[block_of_four(first, i, count)];
        if (!Transform::full_rows(v, quant, out, stride)) return first;
    }
    return count;
}

int corner(const ShapeTable& table, const BlockQueue& queue, int first, int count, const uint8_t* end,
           const int16_t* quant, ptrdiff_t stride) {
    const __m512i quant02 = _mm512_unpacklo_epi16(Avx512::load_lane(quant), Avx512::load_lane(quant + 16));
    const __m512i quant13 = _mm512_unpacklo_epi16(Avx512::load_lane(quant + 8), Avx512::load_lane(quant + 24));
    const __m256i shuffle02 = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.corner02));
    const __m256i shuffle13 = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.corner13));
    for (; first < count; first += 4) {
        uint8_t* out[4];
        __m128i two[2];
        for (int i = 0; i < 4; ++i) {
            const int n = block_of_four(first, i, count);
            out[i] = queue.out[n];
            if (end - queue.payload[n] < 8) return first;
            uint64_t word;
            __builtin_memcpy(&word, queue.payload[n], sizeof(word));
            word = _pdep_u64(word, table.mask[queue.shape[n]][0]);
            const __m128i bias = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table.bias[queue.shape[n]]));
            const __m128i x = _mm_sub_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(word)), bias);
            two[i / 2] = i % 2 == 0 ? x : _mm_unpacklo_epi64(two[i / 2], x);
        }
        const __m256i x = _mm256_set_m128i(two[1], two[0]);
        __m512i in02 = with_dc_of(_mm512_cvtepi8_epi16(_mm256_shuffle_epi8(x, shuffle02)), queue, first, count);
        __m512i in13 = _mm512_cvtepi8_epi16(_mm256_shuffle_epi8(x, shuffle13));
        in02 = Avx512::mullo16(in02, quant02);
        in13 = Avx512::mullo16(in13, quant13);
        if (Avx512::any_beyond(in02)) return first;
        Transform::corner_rows(in02, in13, out, stride);
    }
    return count;
}

}  // namespace

const UnpackKernels& avx512_unpack_kernels() {
    static const UnpackKernels kernels = {
        unpack, add_run, avx2_unpack_kernels().read_dc, 4, unpack_queue, transform_queue, corner};
    return kernels;
}

}  // namespace feeder
#endif
