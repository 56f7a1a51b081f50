// Optimal Huffman codes for JPEG: at most 16 bits, none of them all ones.
#pragma once

#include <cstdint>

namespace feeder {

// A table as DHT has it, and the code of each symbol.
struct HuffmanCode {
    uint8_t counts[16] = {};    // codes of length 1-16
    uint8_t symbols[256] = {};  // in order of code length
    int symbol_count = 0;
    uint16_t code[256] = {};
    uint8_t length[256] = {};  // 0: the symbol does not occur

    // Built from the symbols' frequencies, by the method of JPEG's Annex K.2.
    void build(const uint32_t frequency[256]);
};

}  // namespace feeder
