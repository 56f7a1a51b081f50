// The payload of a packed JPEG's blocks to coefficients, without a bit reader and without a branch that depends on them.
#pragma once

#include <cstdint>

#include "cpu/packed/codebook.h"
#include "cpu/simd.h"

namespace feeder {

// Note [unpacking]
// A group of 8 coefficients of w bits takes w bytes, so the w-bit fields of all groups can be spread to bytes at once:
// the payload's bytes go to the first w of each group's 8, and then each field to its byte. AVX-512 does this with one
// expand and one multishift, AVX2 and BMI2 with a pdep for each group. A shape's tables replace all decisions. Bytes then
// go from zigzag to natural order, by shuffles, and are widened.

struct PackedBlock {
    const uint8_t* payload;
    int16_t* out;  // 64 coefficients in natural order, aligned to 64 bytes; DC becomes 0
    uint8_t shape;
};

// Unpacks blocks whose payloads end before `end`; nothing is read from there on.
using UnpackBlocks = void (*)(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end);

void unpack_portable(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end);
#if defined(__x86_64__)
void unpack_avx2(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end);
void unpack_avx512(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end);
#endif

// The function for simd_level().
inline UnpackBlocks unpack_blocks() {
#if defined(__x86_64__)
    switch (simd_level()) {
        case SimdLevel::avx512: return unpack_avx512;
        case SimdLevel::avx2: return has_fast_pdep() ? unpack_avx2 : unpack_portable;
        case SimdLevel::portable: break;
    }
#endif
    return unpack_portable;
}

}  // namespace feeder
