// The decoding tables of entropy_wide.h.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/jpeg/huffman.h"

namespace feeder {

// The codes of one table, for Note [wide decoding]. An entry: length of the code | number of extra bits << 8 | move of the
// place << 16 | bits in all << 24. Codes that are longer than kLookupBits, or take more than kMostBits in all, are kUnknown.
struct CodeTable {
    static constexpr int kLookupBits = 11;
    static constexpr int kMostBits = 18;
    static constexpr uint32_t kBlockEnd = 128;  // beyond any place that runs lead to
    static constexpr uint32_t kUnknown = 1u << 31;

    uint32_t lookup[1 << kLookupBits];

    void build(const HuffmanCodes& codes, bool is_dc);

    static FEEDER_INLINE uint32_t entry(bool is_dc, int symbol, int length) {
        const int size = symbol & 15, run = is_dc ? 0 : symbol >> 4;
        const uint32_t move = is_dc || size != 0 || run == 15 ? static_cast<uint32_t>(run) + 1 : kBlockEnd;
        return static_cast<uint32_t>(length | size << 8) | move << 16 | static_cast<uint32_t>(length + size) << 24;
    }

  private:
    bool is_dc_ = false;
    uint8_t source_[16 + 256];
    size_t source_length_ = 0;
};

}  // namespace feeder
