// The payload of a packed JPEG's blocks to coefficients and samples, without a bit reader and without a branch that depends
// on them.
#pragma once

#include <cstddef>
#include <cstdint>

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

// A change of a coefficient of some block.
struct BlockPatch {
    uint8_t block;
    uint8_t index;  // in zigzag order
    int16_t addend;

    void apply(int16_t& coefficient) const { coefficient = static_cast<int16_t>(coefficient + addend); }
};

// Blocks of a line that are next to each other.
struct BlockRun {
    static constexpr int kMost = 64;

    const uint8_t* payload;  // the first one's
    const uint8_t* shapes;
    const int16_t* dc;
    uint8_t* out;      // the first one's top left sample
    int count;
    // Of their coefficients but DC. A block with such is full, whatever its shape is.
    BlockPatch* patches;
    int patch_count;
};

// Blocks that wait for their inverse DCT.
struct BlockQueue {
    static constexpr int kMost = BlockRun::kMost + 4;  // a run, and those that waited

    int count = 0;
    const uint8_t* payload[kMost];
    uint8_t* out[kMost];  // the top left sample
    int16_t dc[kMost];
    uint8_t shape[kMost];

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
    // Adds a run's blocks to the queues of their kinds, in which no more than kMost - BlockRun::kMost wait, and numbers its
    // patches by their block's place in `full`. Returns the flat blocks, a bit each. `payload_bytes` is the sum of all.
    uint64_t (*add_run)(const ShapeTable& table, const BlockRun& run, BlockQueue& corner, BlockQueue& full,
                        int& payload_bytes);
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
