// The inner loop of Huffman decoding: several restart segments at once, interleaved symbol by symbol.
#pragma once

#include <cstdint>

#include "cpu/jpeg/huffman.h"
#include "cpu/jpeg/zigzag.h"
#include "cpu/simd.h"

namespace feeder {

// Note [interleaved segments]
// A code's length decides where the next code starts, so one segment is a chain of table load, shift, table load: eight
// cycles per symbol, with most of the core idle. Segments between restart markers do not depend on each other. The loop
// takes a symbol of each of several streams in turn, so that their chains overlap.
//
// A stream's state between two symbols is a word of bits, the place of the next byte to load, the number of bits taken,
// and the place in the block; the last two are in one word, to which a table entry is added. See Note [Huffman
// lookup]. The load of a refill does not wait for the bits taken last: only the shift that puts it in place does.

// The blocks of an MCU, in the order of the file.
struct McuPlan {
    static constexpr int kMaxBlocks = 10;  // by the standard

    struct Block {
        const DcTable* dc = nullptr;
        const AcTable* ac = nullptr;
        int component = 0;
    };
    Block block[kMaxBlocks];
    int blocks = 0;
    bool has_pairs = false;  // the AC tables
};

// One segment in progress. A run is as many of its MCUs as the caller has memory for.
struct EntropyStream {
    const uint8_t* begin = nullptr;  // of the unstuffed segment
    int64_t end_bit = 0;             // the segment's end; up to kReadAheadBytes beyond it are read
    int16_t (*block)[64] = nullptr;  // of the block at work, in the kernels' order; all zero before
    uint8_t* last = nullptr;         // the block's entry for the zigzag index of its last coefficient, or a later one
    int step = 1;                    // to the next block's; 0 to skip blocks that are not needed
    int mcus_left = 0;               // of the run
    bool bad = false;

    // The rest belongs to the loop.
    const uint8_t* next = nullptr;
    uint64_t bits = 0;
    uint32_t state = kEmpty;  // 63 - how many of the bits are counted | place in the block << 8 | anything << 16
    const uint32_t* lookup = nullptr;
    int block_in_mcu = 0;
    unsigned dc[4] = {};  // predictions; a damaged file may make them wrap

    static constexpr uint32_t kEmpty = 63;

    // Moves to the beginning of a segment.
    void open(const uint8_t* bytes, int64_t bit_count) {
        begin = next = bytes;
        end_bit = bit_count;
        bits = 0;
        state = kEmpty;
        block_in_mcu = 0;
        for (unsigned& prediction : dc) prediction = 0;
    }
    FEEDER_INLINE int64_t position() const { return 8 * static_cast<int64_t>(next - begin) - kEmpty + (state & 0xFF); }
};

struct EntropyKernels {
    static constexpr int kMostStreams = 3;

    // Reads the first DC coefficient of a run; block, last, step and mcus_left are set, more than none left.
    void (*begin_run)(EntropyStream& stream, const McuPlan& plan);
    // [n - 1]: decodes `n` streams until one has ended its run, well or (`bad`) not. Returns which.
    int (*run[kMostStreams])(EntropyStream* const* streams, const McuPlan& plan);
    // The same for one stream, with tables that have pairs.
    int (*run_pairs)(EntropyStream* const* streams, const McuPlan& plan);
};

const EntropyKernels& portable_entropy(CoefficientOrder order);
#if defined(__x86_64__)
const EntropyKernels& bmi2_entropy(CoefficientOrder order);
#endif

// The kernels of simd_level(), for blocks in that order.
inline const EntropyKernels& entropy_kernels(CoefficientOrder order) {
#if defined(__x86_64__)
    if (simd_level() != SimdLevel::portable) return bmi2_entropy(order);  // which come with AVX2
#endif
    return portable_entropy(order);
}

}  // namespace feeder
