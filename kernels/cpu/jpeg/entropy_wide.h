// Huffman decoding of 16 segments at once, one in each 32-bit lane of a vector.
#pragma once

#include <cstdint>

#include "cpu/jpeg/code_table.h"
#include "cpu/jpeg/entropy.h"
#include "cpu/jpeg/huffman.h"
#include "cpu/simd.h"

namespace feeder {

// Note [wide decoding]
// The loop of entropy.h spends most of its time on branches that no CPU predicts: where a block ends, and where a symbol
// is not in the table. Here each lane takes a symbol, and masks do what the end of a block asks for: no branch depends on
// the data, but for codes too long for the table, of which a photo has a few hundred.
//
// A lane's place is 0 before the DC coefficient, which is read as any other symbol, by another table. The tables hold codes
// alone, see CodeTable; the extra bits are cut out by shifts. The DC coefficients are differences until the run is over.
//
// A step gives a word for each lane, position | value << 16. Scalar code stores the value at that position of the lane's
// memory, while the next step waits for its tables. A block's end stores the index of its last coefficient.

struct WideStreams {
    static constexpr int kLanes = 16;
    static constexpr int kRunBlocks = 96;           // of a lane
    static constexpr int kLasts = kRunBlocks * 64;  // where a lane's memory has the indices of last coefficients
    static constexpr int kLaneWords = kLasts + kRunBlocks;

    // Of lanes 0, 2 and so on, and of the others.
    alignas(64) uint64_t bits[2][kLanes / 2];
    alignas(64) int64_t next[2][kLanes / 2];  // byte to load next; those to the limit are the segment's, or read ahead
    alignas(64) int64_t limit[2][kLanes / 2];
    alignas(64) int32_t used[kLanes];  // 63 - how many of the bits are counted
    alignas(64) int32_t place[kLanes];
    alignas(64) int32_t block[kLanes];   // position of the block at work
    alignas(64) int32_t end[kLanes];     // position of the end of the run
    alignas(64) int32_t in_mcu[kLanes];  // the block's number in the MCU
    uint32_t active = 0;                 // lanes with a run
    bool bad = false;
    alignas(64) int16_t memory[kLanes][kLaneWords];  // blocks, all zero before a run, and last indices, all 63

    // Makes a lane harmless, as one that is not active has to be.
    void clear(int lane) {
        open(lane, 0, 0);
        start(lane, 0);
        place[lane] = 1;
    }
    // Moves a lane to the beginning of a segment.
    void open(int lane, size_t begin, size_t end) {
        bits[lane % 2][lane / 2] = 0;
        next[lane % 2][lane / 2] = static_cast<int64_t>(begin);
        limit[lane % 2][lane / 2] = static_cast<int64_t>(end) + 8;
        used[lane] = 63;
    }
    // Starts a run of so many blocks.
    void start(int lane, int blocks) {
        place[lane] = block[lane] = in_mcu[lane] = 0;
        end[lane] = 64 * blocks;
    }
    // Bits taken since byte 0.
    int64_t position(int lane) const { return 8 * next[lane % 2][lane / 2] - 63 + used[lane]; }
};

// The tables of an MCU's blocks.
struct WidePlan {
    alignas(64) int32_t dc[16] = {};  // index of their tables in `tables`, by block
    alignas(64) int32_t ac[16] = {};
    const HuffmanCodes* dc_codes[McuPlan::kMaxBlocks] = {};
    const HuffmanCodes* ac_codes[McuPlan::kMaxBlocks] = {};
    int blocks = 0;
    const uint32_t* tables = nullptr;
    const uint8_t* bytes = nullptr;  // unstuffed
};

// Decodes until lanes have come to the end of their runs, which it returns, or one is damaged (`bad`).
using WideDecode = uint32_t (*)(WideStreams& streams, const WidePlan& plan);

#if defined(__x86_64__)
WideDecode avx512_wide_decode();
#endif

// nullptr where it does not pay, or there is none.
inline WideDecode wide_decode() {
#if defined(__x86_64__)
    if (simd_level() == SimdLevel::avx512 && has_cheap_512_bits()) return avx512_wide_decode();
#endif
    return nullptr;
}

}  // namespace feeder
