// Decoding tables for JPEG's Huffman codes, and the bit reader that goes with them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "bytes.h"

namespace feeder {

// Note [Huffman lookup]
// One load tells, for the next kLookupBits bits, how many of them the symbol and its extra bits take, how many zero
// coefficients come before the value, and the value itself. With the codes of photos that covers about 95 % of symbols.
// Entries whose extra bits do not fit say so (kExtra) and give code length, run and size; longer codes (kLong) are found by
// comparing with the greatest code of each length. 11 bits make 8 KiB a table: two tables for AC and two for DC stay in
// the first-level cache together with the block at work, and building them takes a few microseconds an image.
struct HuffmanTable {
    static constexpr int kLookupBits = 11;
    static constexpr uint32_t kEnd = 0x40;     // end of block
    static constexpr uint32_t kLong = 0x80;    // the code is longer than kLookupBits
    static constexpr uint32_t kExtra = 0x100;  // the extra bits are still to be read; the value's place has their number
    static constexpr uint32_t kSpecial = kEnd | kLong | kExtra;
    static constexpr int kRunShift = 9;

    // value (16 bits) | run (7) | flags (3) | bits taken (6). The length comes last and has six bits because a shift
    // then takes the entry as it is: it is on the critical path.
    static int length(uint32_t entry) { return static_cast<int>(entry & 63); }
    static unsigned run(uint32_t entry) { return entry >> kRunShift & 15; }
    static int value(uint32_t entry) { return static_cast<int16_t>(entry >> 16); }

    uint32_t lookup[1 << kLookupBits];
    uint32_t first_code_after
        [18];  // of each length, left-aligned to 16 bits: the first code that is longer; 17 holds a sentinel
    int32_t value_offset[17];
    uint8_t values[256];
    int value_count;

    // The payload it was built from, so that equal tables (those of most encoders, or of a whole shard) are built once.
    uint8_t source[16 + 256];
    size_t source_length = 0;
    bool source_is_dc = false;

    // From a DHT payload: 16 counts, then the symbols in order of code length. False: not a prefix code of at most 16
    // bits, or a symbol that makes no sense.
    bool build(ByteSpan payload, bool dc);

    // Decodes a code longer than kLookupBits from the next 16 bits. Returns the symbol and its length, or -1: no such code.
    int long_code(uint32_t next16, int& length) const {
        length = kLookupBits + 1;
        while (next16 >= first_code_after[length]) ++length;
        if (length > 16) return -1;
        return values[(static_cast<int32_t>(next16 >> (16 - length)) + value_offset[length]) & 0xFF];
    }
};

// The number that `size` extra bits stand for (JPEG's EXTEND).
inline int extend(int bits, int size) { return bits < (1 << (size - 1)) ? bits - (1 << size) + 1 : bits; }

// Reads bits, most significant first, from bytes without stuffing. At least 8 bytes must be readable wherever it comes;
// position() tells whether it went beyond the end.
class BitReader {
  public:
    explicit BitReader(const uint8_t* begin) : begin_(begin), next_(begin) {}

    // Afterwards at least 56 bits are there. Branch-free: one load of 8 bytes, of which the whole ones that fit count.
    void refill() {
        uint64_t word;
        std::memcpy(&word, next_, sizeof(word));
        buffer_ |= __builtin_bswap64(word) >> count_;
        next_ += (63 - count_) >> 3;
        count_ |= 56;
    }

    uint32_t peek(int bits) const { return static_cast<uint32_t>(buffer_ >> (64 - bits)); }

    void drop(int bits) {
        buffer_ <<= bits;
        count_ -= bits;
    }

    // Bits consumed since the beginning.
    int64_t position() const { return 8 * static_cast<int64_t>(next_ - begin_) - count_; }

  private:
    const uint8_t* begin_;
    const uint8_t* next_;
    uint64_t buffer_ = 0;
    int count_ = 0;
};

}  // namespace feeder
