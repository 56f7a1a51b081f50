#include <algorithm>
#include <cstring>

#include "cpu/jpeg/zigzag.h"
#include "cpu/packed/unpack.h"

namespace feeder {

void unpack_portable(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end) {
    for (int n = 0; n < count; ++n) {
        const PackedBlock& block = blocks[n];
        const uint8_t* at = block.payload;
        std::memset(block.out, 0, 64 * sizeof(int16_t));
        for (int g = 0; g < kGroups; ++g) {
            const int width = kWidths[table.codes[block.shape][static_cast<size_t>(g)]];
            if (width == 0) continue;
            uint64_t word = 0;
            std::memcpy(&word, at, static_cast<size_t>(std::min<std::ptrdiff_t>(8, end - at)));
            const int bias = 1 << (width - 1), mask = (1 << width) - 1;
            for (int i = 0; i < 8; ++i, word >>= width)
                block.out[kNaturalOrder[8 * g + i]] = static_cast<int16_t>((static_cast<int>(word) & mask) - bias);
            at += width;
        }
        block.out[0] = 0;
    }
}

}  // namespace feeder
