// unpack.h with AVX2 and BMI2.
#if defined(__x86_64__)
#include <immintrin.h>

#include "cpu/jpeg/idct_avx2.h"
#include "cpu/jpeg/zigzag.h"
#include "cpu/packed/unpack.h"

namespace feeder {
namespace {

// For each 16 coefficients in natural order, the shuffle of each 16 in zigzag order that are among them; 0x80 for others. And
// for a first group, its coefficients in the order of Idct::corner_rows(): the first four columns of rows 0 and 2, then of
// rows 1 and 3, interleaved. By DC code, the bytes of each of 8 fields, and the first bit in them.
struct Tables {
    alignas(16) uint8_t shuffle[4][4][16];
    alignas(16) uint8_t corner[16];
    alignas(32) uint8_t dc_bytes[kDcCodes][32];
    alignas(32) uint32_t dc_bits[kDcCodes][8];
};

constexpr Tables make_tables() {
    Tables tables{};
    for (auto& to : tables.shuffle)
        for (auto& from : to)
            for (uint8_t& place : from) place = 0x80;
    for (uint8_t k = 0; k < 64; ++k) {
        const int natural = kNaturalOrder[k];
        tables.shuffle[natural / 16][k / 16][natural % 16] = k % 16;
    }
    for (uint8_t& place : tables.corner) place = 0x80;
    for (uint8_t k = 0; k < 8; ++k) {
        const int row = kNaturalOrder[k] / 8, column = kNaturalOrder[k] % 8;
        tables.corner[8 * (row % 2) + 2 * column + row / 2] = k;
    }
    for (int code = 0; code < kDcCodes; ++code) {
        for (int i = 0; i < 8; ++i) {
            const int bit = kDcWidths[code] * i;
            for (int k = 0; k < 4; ++k) tables.dc_bytes[code][4 * i + k] = static_cast<uint8_t>(bit / 8 + k);
            tables.dc_bits[code][i] = static_cast<uint32_t>(bit % 8);
        }
    }
    return tables;
}
constexpr Tables kTables = make_tables();

__m128i shuffled(__m128i from, int to, int number) {
    return _mm_shuffle_epi8(from, _mm_load_si128(reinterpret_cast<const __m128i*>(kTables.shuffle[to][number])));
}

// Each field to a byte. Every group is read as 8 bytes.
void spread(const ShapeTable& table, unsigned shape, const uint8_t* payload, uint64_t fields[kGroups]) {
    for (int g = 0; g < kGroups; ++g) {
        uint64_t word;
        __builtin_memcpy(&word, payload + table.offset[shape][g], sizeof(word));
        fields[g] = _pdep_u64(word, table.mask[shape][g]);
    }
}

// 16 coefficients in zigzag order, a byte each; the DC coefficient is any number.
__m128i sixteen(const ShapeTable& table, unsigned shape, const uint64_t fields[kGroups], int i) {
    return _mm_sub_epi8(_mm_load_si128(reinterpret_cast<const __m128i*>(fields) + i),
                        _mm_load_si128(reinterpret_cast<const __m128i*>(table.bias[shape]) + i));
}

// The coefficients in natural order, a byte each.
void order(const ShapeTable& table, unsigned shape, const uint64_t fields[kGroups], __m128i y[4]) {
    __m128i x[4];
    for (int i = 0; i < 4; ++i) x[i] = sixteen(table, shape, fields, i);
    // The first 16 coefficients in natural order have none of the last 16 in zigzag order, and the reverse.
    y[0] = _mm_or_si128(_mm_or_si128(shuffled(x[0], 0, 0), shuffled(x[1], 0, 1)), shuffled(x[2], 0, 2));
    y[1] = _mm_or_si128(_mm_or_si128(shuffled(x[0], 1, 0), shuffled(x[1], 1, 1)),
                        _mm_or_si128(shuffled(x[2], 1, 2), shuffled(x[3], 1, 3)));
    y[2] = _mm_or_si128(_mm_or_si128(shuffled(x[0], 2, 0), shuffled(x[1], 2, 1)),
                        _mm_or_si128(shuffled(x[2], 2, 2), shuffled(x[3], 2, 3)));
    y[3] = _mm_or_si128(_mm_or_si128(shuffled(x[1], 3, 1), shuffled(x[2], 3, 2)), shuffled(x[3], 3, 3));
}

bool may_read(const ShapeTable& table, unsigned shape, const uint8_t* payload, const uint8_t* end) {
    return end - payload >= table.bytes[shape] + 8;
}

void unpack(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end) {
    for (int n = 0; n < count; ++n) {
        const PackedBlock& block = blocks[n];
        if (!may_read(table, block.shape, block.payload, end)) {
            unpack_portable(table, blocks + n, 1, end);
            continue;
        }
        alignas(16) uint64_t fields[kGroups];
        spread(table, block.shape, block.payload, fields);
        for (int i = 0; i < 4; ++i) {
            _mm256_store_si256(reinterpret_cast<__m256i*>(block.out + 16 * i),
                               _mm256_cvtepi8_epi16(sixteen(table, block.shape, fields, i)));
        }
        block.out[0] = 0;
    }
}

using Transform = Idct<Avx2>;

void unpack_queue(const ShapeTable& table, const BlockQueue& queue, int count, const uint8_t* end, QueueRows& rows) {
    // Fields are loaded long after they were stored: a load of two stores would wait for both.
    alignas(16) uint64_t fields[BlockQueue::kMost][kGroups];
    for (int i = 0; i < count; ++i) {
        const unsigned shape = queue.shape[i];
        if (may_read(table, shape, queue.payload[i], end)) {
            spread(table, shape, queue.payload[i], fields[i]);
        } else {
            uint8_t copy[128] = {};
            for (int k = 0; k < table.bytes[shape]; ++k) copy[k] = queue.payload[i][k];
            spread(table, shape, copy, fields[i]);
        }
    }
    __m256i* to = reinterpret_cast<__m256i*>(rows.coefficients);
    for (int i = 0; i < count; i += 2, to += 8) {
        const int other = i + 1 < count ? i + 1 : i;
        __m128i a[4], b[4];
        order(table, queue.shape[i], fields[i], a);
        order(table, queue.shape[other], fields[other], b);
        __m256i first = _mm256_cvtepi8_epi16(_mm_unpacklo_epi64(a[0], b[0]));
        first = _mm256_insert_epi16(_mm256_insert_epi16(first, queue.dc[i], 0), queue.dc[other], 8);
        _mm256_store_si256(to, first);
        _mm256_store_si256(to + 1, _mm256_cvtepi8_epi16(_mm_unpackhi_epi64(a[0], b[0])));
        for (int k = 1; k < 4; ++k) {
            _mm256_store_si256(to + 2 * k, _mm256_cvtepi8_epi16(_mm_unpacklo_epi64(a[k], b[k])));
            _mm256_store_si256(to + 2 * k + 1, _mm256_cvtepi8_epi16(_mm_unpackhi_epi64(a[k], b[k])));
        }
    }
}

int transform_queue(const BlockQueue& queue, const QueueRows& rows, int first, int count, const int16_t* quant,
                    ptrdiff_t stride) {
    for (; first < count; first += 2) {
        __m256i v[8];
        for (int row = 0; row < 8; ++row)
            v[row] = _mm256_load_si256(reinterpret_cast<const __m256i*>(rows.coefficients + 64 * first) + row);
        uint8_t* const out[2] = {queue.out[first], queue.out[first + 1 < count ? first + 1 : first]};
        if (!Transform::full_rows(v, quant, out, stride)) return first;
    }
    return count;
}

int corner(const ShapeTable& table, const BlockQueue& queue, int first, int count, const uint8_t* end,
           const int16_t* quant, ptrdiff_t stride) {
    const __m256i quant02 = _mm256_unpacklo_epi16(Avx2::load_lane(quant), Avx2::load_lane(quant + 16));
    const __m256i quant13 = _mm256_unpacklo_epi16(Avx2::load_lane(quant + 8), Avx2::load_lane(quant + 24));
    const __m128i shuffle = _mm_load_si128(reinterpret_cast<const __m128i*>(kTables.corner));
    for (; first < count; first += 2) {
        const int n[2] = {first, first + 1 < count ? first + 1 : first};
        __m128i x[2];
        for (int i = 0; i < 2; ++i) {
            const unsigned shape = queue.shape[n[i]];
            if (end - queue.payload[n[i]] < 8) return first;
            uint64_t word;
            __builtin_memcpy(&word, queue.payload[n[i]], sizeof(word));
            word = _pdep_u64(word, table.mask[shape][0]);
            const __m128i bias = _mm_loadl_epi64(reinterpret_cast<const __m128i*>(table.bias[shape]));
            x[i] = _mm_shuffle_epi8(_mm_sub_epi8(_mm_cvtsi64_si128(static_cast<int64_t>(word)), bias), shuffle);
        }
        __m256i in02 = _mm256_cvtepi8_epi16(_mm_unpacklo_epi64(x[0], x[1]));
        __m256i in13 = _mm256_cvtepi8_epi16(_mm_unpackhi_epi64(x[0], x[1]));
        in02 = _mm256_insert_epi16(_mm256_insert_epi16(in02, queue.dc[n[0]], 0), queue.dc[n[1]], 8);
        in02 = Avx2::mullo16(in02, quant02);
        in13 = Avx2::mullo16(in13, quant13);
        if (Avx2::any_beyond(in02)) return first;
        uint8_t* const out[2] = {queue.out[n[0]], queue.out[n[1]]};
        Transform::corner_rows(in02, in13, out, stride);
    }
    return count;
}

void read_dc(const PackedLine& line, int count, const uint8_t* end, int16_t* out) {
    const uint8_t* at = line.dc_payload;
    for (int first = 0; first < count; first += 8) {
        const int code = line.dc_code(first / 8), width = kDcWidths[code];
        if (end - at >= 16) {
            const __m256i bytes = _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at)));
            const __m256i places = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.dc_bytes[code]));
            const __m256i bits = _mm256_load_si256(reinterpret_cast<const __m256i*>(kTables.dc_bits[code]));
            __m256i x = _mm256_srlv_epi32(_mm256_shuffle_epi8(bytes, places), bits);
            x = _mm256_and_si256(x, _mm256_set1_epi32((1 << width) - 1));
            x = _mm256_sub_epi32(x, _mm256_set1_epi32(width == 0 ? 0 : 1 << (width - 1)));
            const __m128i eight = _mm_packs_epi32(_mm256_castsi256_si128(x), _mm256_extracti128_si256(x, 1));
            _mm_storeu_si128(reinterpret_cast<__m128i*>(out + first), eight);
        } else {
            for (int i = 0; i < 8; ++i) out[first + i] = dc_field(at, code, i, end);
        }
        at += width;
    }
    if (line.has_dc_patches) patch_dc(line, count, out);
    const __m128i last = _mm_set1_epi16(0x0F0E);
    __m128i sum = _mm_setzero_si128();
    for (int first = 0; first < count; first += 8) {
        __m128i* const eight = reinterpret_cast<__m128i*>(out + first);
        __m128i x = _mm_loadu_si128(eight);
        x = _mm_add_epi16(x, _mm_slli_si128(x, 2));
        x = _mm_add_epi16(x, _mm_slli_si128(x, 4));
        x = _mm_add_epi16(x, _mm_slli_si128(x, 8));
        x = _mm_add_epi16(x, sum);
        _mm_storeu_si128(eight, x);
        sum = _mm_shuffle_epi8(x, last);
    }
}

}  // namespace

const UnpackKernels& avx2_unpack_kernels() {
    static const UnpackKernels kernels = {
        unpack, portable_unpack_kernels().add_run, read_dc, 2, unpack_queue, transform_queue, corner};
    return kernels;
}

}  // namespace feeder
#endif
