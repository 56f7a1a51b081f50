#include "cpu/crc32c.h"

#include <array>
#include <cstring>

#if defined(__x86_64__)
#include <cpuid.h>
#include <nmmintrin.h>
#endif

namespace feeder {
namespace {

constexpr uint32_t kPolynomial = 0x82F63B78;  // reflected

using Tables = std::array<std::array<uint32_t, 256>, 8>;

// tables[k][b]: the byte b followed by k bytes of zeros.
constexpr Tables make_tables() {
    Tables tables{};
    for (uint32_t byte = 0; byte < 256; ++byte) {
        uint32_t value = byte;
        for (int bit = 0; bit < 8; ++bit) value = value >> 1 ^ (value & 1 ? kPolynomial : 0);
        tables[0][byte] = value;
    }
    for (size_t k = 1; k < 8; ++k)
        for (size_t byte = 0; byte < 256; ++byte)
            tables[k][byte] = tables[k - 1][byte] >> 8 ^ tables[0][tables[k - 1][byte] & 0xFF];
    return tables;
}

constexpr Tables kTables = make_tables();

#if defined(__x86_64__)
// The instruction takes three cycles, and one can be started in each. So three lanes of this many bytes are read at a
// time, the later ones as if they followed nothing.
constexpr size_t kLaneBytes = 4096;

// The product of two polynomials.
constexpr uint32_t product(uint32_t a, uint32_t b) {
    uint32_t found = 0;
    for (uint32_t bit = 1U << 31; bit != 0; bit >>= 1) {
        if (a & bit) found ^= b;
        b = b >> 1 ^ (b & 1 ? kPolynomial : 0);
    }
    return found;
}

using LaneTables = std::array<std::array<uint32_t, 256>, 4>;

// tables[k][b]: byte k of a value is b, and as many bytes of zeros follow as a lane has.
constexpr LaneTables make_lane_tables() {
    uint32_t lane = 1U << 31;
    for (size_t bit = 0; bit < 8 * kLaneBytes; ++bit) lane = lane >> 1 ^ (lane & 1 ? kPolynomial : 0);
    LaneTables tables{};
    for (size_t k = 0; k < 4; ++k)
        for (uint32_t byte = 0; byte < 256; ++byte) tables[k][byte] = product(byte << (8 * k), lane);
    return tables;
}

constexpr LaneTables kLaneTables = make_lane_tables();

uint32_t after_lane(uint64_t value) {
    uint32_t found = 0;
    for (size_t k = 0; k < 4; ++k) found ^= kLaneTables[k][value >> (8 * k) & 0xFF];
    return found;
}

__attribute__((target("sse4.2,crc32"))) uint32_t crc32c_sse42(ByteSpan data, uint32_t before) {
    const uint8_t* at = data.data();
    size_t left = data.size();
    uint64_t value = ~before;
    for (; left >= 3 * kLaneBytes; at += 3 * kLaneBytes, left -= 3 * kLaneBytes) {
        uint64_t second = 0, third = 0;
        for (size_t k = 0; k < kLaneBytes; k += 8) {
            uint64_t words[3];
            for (size_t lane = 0; lane < 3; ++lane) std::memcpy(words + lane, at + lane * kLaneBytes + k, 8);
            value = _mm_crc32_u64(value, words[0]);
            second = _mm_crc32_u64(second, words[1]);
            third = _mm_crc32_u64(third, words[2]);
        }
        value = after_lane(after_lane(value) ^ second) ^ third;
    }
    for (; left >= 8; at += 8, left -= 8) {
        uint64_t word;
        std::memcpy(&word, at, 8);
        value = _mm_crc32_u64(value, word);
    }
    for (; left > 0; ++at, --left) value = _mm_crc32_u8(static_cast<uint32_t>(value), *at);
    return ~static_cast<uint32_t>(value);
}

// By CPUID, as in simd.cc.
bool has_sse42() {
    unsigned a = 0, b = 0, c = 0, d = 0;
    return __get_cpuid(1, &a, &b, &c, &d) != 0 && (c & bit_SSE4_2) != 0;
}
#endif

}  // namespace

uint32_t crc32c_portable(ByteSpan data, uint32_t before) {
    const uint8_t* at = data.data();
    size_t left = data.size();
    uint32_t value = ~before;
    for (; left >= 8; at += 8, left -= 8) {
        uint32_t next = 0;
        for (size_t k = 0; k < 4; ++k)
            next ^= kTables[7 - k][(value >> (8 * k) & 0xFF) ^ at[k]] ^ kTables[3 - k][at[4 + k]];
        value = next;
    }
    for (; left > 0; ++at, --left) value = value >> 8 ^ kTables[0][(value ^ *at) & 0xFF];
    return ~value;
}

uint32_t crc32c(ByteSpan data, uint32_t before) {
#if defined(__x86_64__)
    static const bool has_instruction = has_sse42();
    if (has_instruction) return crc32c_sse42(data, before);
#endif
    return crc32c_portable(data, before);
}

}  // namespace feeder
