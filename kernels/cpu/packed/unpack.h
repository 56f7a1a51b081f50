// The payload of a packed JPEG's blocks to coefficients and samples, without a bit reader and without a branch that depends
// on them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "cpu/packed/codebook.h"
#include "cpu/packed/packed_file.h"
#include "cpu/simd.h"

namespace feeder {

// Note [unpacking]
// A group of 8 coefficients of w bits takes w bytes, so the w-bit fields of all groups can be spread to bytes at once:
// the payload's bytes go to the first w of each group's 8, and then each field to its byte. AVX-512 does this with one
// expand and one multishift, AVX2 and BMI2 with a pdep for each group. A shape's tables replace all decisions. Bytes then
// go from zigzag to natural order, by shuffles, and are widened.
//
// Blocks wait in a queue for their inverse DCT until there are enough of them to fill its vectors, whichever line they are
// from. They are unpacked right into the order in which it loads them.

struct PackedBlock {
    const uint8_t* payload;
    int16_t* out;  // 64 coefficients in zigzag order, aligned to 64 bytes; DC becomes 0
    uint8_t shape;
};

// Unpacks blocks whose payloads end before `end`; nothing is read from there on.
using UnpackBlocks = void (*)(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end);

// Blocks that wait for their inverse DCT.
struct BlockQueue {
    static constexpr int kMost = 68;  // a run of blocks, and those that waited

    int count = 0;
    const uint8_t* payload[kMost];
    uint8_t* out[kMost];  // the top left sample
    int16_t dc[kMost];
    uint8_t shape[kMost];

    // Adds these blocks of a line. `line_out` is the top left sample of block 0.
    void add(std::span<const uint8_t> blocks, const uint8_t* const* payloads, uint8_t* line_out, const int16_t* line_dc,
             const uint8_t* shapes) {
        int n = count;
        for (const uint8_t i : blocks) {
            payload[n] = payloads[i];
            out[n] = line_out + 8 * i;
            dc[n] = line_dc[i];
            shape[n++] = shapes[i];
        }
        count = n;
    }

    // Forgets the blocks before `first`.
    void keep_from(int first) {
        count -= first;
        for (int i = 0; i < count; ++i) {
            payload[i] = payload[first + i];
            out[i] = out[first + i];
            dc[i] = dc[first + i];
            shape[i] = shape[first + i];
        }
    }
};

// The coefficients of a queue's blocks, some blocks side by side: [block / at_once, row, block % at_once, column].
struct alignas(64) QueueRows {
    int16_t coefficients[64 * BlockQueue::kMost];
};

struct UnpackKernels {
    UnpackBlocks unpack;
    // The DC coefficients of the first `count` blocks of a line. `out` is written up to a multiple of 8. Memory is read up to
    // `end`.
    void (*read_dc)(const PackedLine& line, int count, const uint8_t* end, int16_t* out);
    int at_once;  // blocks that are transformed together
    // Unpacks the first `count` blocks of a queue, DC coefficients too. An incomplete set of blocks is filled up with copies
    // of the last one.
    void (*unpack_queue)(const ShapeTable& table, const BlockQueue& queue, int count, const uint8_t* end,
                         QueueRows& rows);
    // Transforms blocks `first` to `count`, with `quant` in natural order, aligned to 16 bytes. Returns the first one of some
    // whose first row is not safe, see Note [inverse DCT], or `count`. nullptr where at_once is 1.
    int (*transform_queue)(const BlockQueue& queue, const QueueRows& rows, int first, int count, const int16_t* quant,
                           ptrdiff_t stride_bytes);
    // Unpacks and transforms blocks with nothing outside the first group. Returns the first one of some that it can't do, for
    // the same reason or because they are too close to `end`. May be nullptr.
    int (*corner)(const ShapeTable& table, const BlockQueue& queue, int first, int count, const uint8_t* end,
                  const int16_t* quant, ptrdiff_t stride_bytes);
};

// The place of a coefficient of a queue's block in its rows.
inline int place_in_rows(int block, int natural_index, int at_once) {
    return 64 * (block - block % at_once) + 8 * at_once * (natural_index / 8) + 8 * (block % at_once) + natural_index % 8;
}

void unpack_portable(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end);

const UnpackKernels& portable_unpack_kernels();
#if defined(__x86_64__)
const UnpackKernels& avx2_unpack_kernels();
const UnpackKernels& avx512_unpack_kernels();
#endif

// The kernels for simd_level().
inline const UnpackKernels& unpack_kernels() {
#if defined(__x86_64__)
    switch (simd_level()) {
        case SimdLevel::avx512: return avx512_unpack_kernels();
        case SimdLevel::avx2: return has_fast_pdep() ? avx2_unpack_kernels() : portable_unpack_kernels();
        case SimdLevel::portable: break;
    }
#endif
    return portable_unpack_kernels();
}

}  // namespace feeder
