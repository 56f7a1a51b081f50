// Decoding tables for JPEG's Huffman codes, and their bit reader.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "cpu/bytes.h"

namespace feeder {

// The codes themselves, from a DHT payload: 16 counts, then the symbols in order of code length.
struct HuffmanCodes {
    uint32_t first_code_after[18];  // of each length, left-aligned to 16 bits: the first code that is longer; a sentinel
    int32_t value_offset[17];
    uint8_t values[256];
    int value_count = 0;

    // The payload it was built from, so that equal tables (those of most encoders, or of a whole shard) are built once.
    uint8_t source[16 + 256];
    size_t source_length = 0;

    bool built_from(ByteSpan payload) const {
        return source_length != 0 && source_length == payload.size() &&
               std::memcmp(source, payload.data(), source_length) == 0;
    }
    // False: not a prefix code of at most 16 bits, without the code of all ones.
    bool build(ByteSpan payload);
    // True if all symbols are possible sizes of DC differences; libjpeg demands it even of symbols that do not occur.
    bool are_sizes() const;

    // The symbol of the code at the start of the next 16 bits, and its length; -1: no such code.
    FEEDER_INLINE int find(uint32_t next16, int& length) const {
        length = 1;
        while (next16 >= first_code_after[length]) ++length;
        if (length > 16) return -1;
        return values[(static_cast<int32_t>(next16 >> (16 - length)) + value_offset[length]) & 0xFF];
    }
};

// Differences of DC coefficients. An entry: bits taken by code and extra bits, number of extra bits << 8, length of the
// code << 16; 0 where the code is longer than kLookupBits.
struct DcTable {
    static constexpr int kLookupBits = 9;

    uint32_t lookup[1 << kLookupBits];
    HuffmanCodes codes;

    // False: not a code, or an invalid symbol.
    bool build(ByteSpan payload);
};

// Note [Huffman lookup]
// One load gives, for the next kLookupBits bits, the number of bits of the symbol and its extra bits, the move of the place
// in the block, and the coefficient. This covers nearly all symbols in photos; the others (a longer code, or extra bits that
// do not fit) are decoded step by step. 12 bits make 16 KiB a table: two of them stay in the
// first-level cache together with the blocks at work.
//
// An entry: bits taken | move << 8 | value << 16. It is added as a whole to a stream's state, whose lowest byte counts
// bits and whose second one is the place k of the next coefficient. A place of 64 or more stops the loop, so there is one
// branch for everything unusual, and `move` tells the case:
//     run + 1     an ordinary coefficient. The block is full at 64; more than that is damage
//     kEnd        end of the block
//     kUnusual    nothing decoded yet; the value is symbol << 8 | code length, or 0 for a code not in the table
//
// Note [pairs of symbols]
// Where an image is one stream, each symbol waits for the one before it. Then an entry may have two of them, if both fit:
// bits taken | move << 8 | first value << 16 | second value << 24, of 8 bits and with a sign, with the moves added up. The
// first symbol is a coefficient without zeros before it, so that its value goes to k; the second one's goes to the place
// before the new k. An entry of one symbol has its value as the second one, and writes a zero to k before.
// A place from 65 on, or of kEnd + 64, is damage, or the first symbol filled the block and there is no second one: the first is
// then decoded again, alone.
// Beside other streams pairs are no faster: a second store for every entry costs what the fewer entries save.
struct AcTable {
    static constexpr int kLookupBits = 12;
    static constexpr int kMostSize = 7;          // of a coefficient in a table with pairs
    static constexpr uint32_t kEnd = 84;         // beyond any place that runs lead to: 63 + 1 + 16
    static constexpr uint32_t kUnusual = 160;    // beyond any place that kEnd leads to
    static constexpr uint32_t kPlaces = 256;

    uint32_t lookup[1 << kLookupBits];
    HuffmanCodes codes;

    // False: not a code.
    bool build(ByteSpan payload, bool with_pairs);

  private:
    void add_pairs();

    bool has_pairs_ = false;
};

// The number in `size` extra bits (JPEG's EXTEND).
inline int extend(int bits, int size) { return bits < (1 << (size - 1)) ? bits - (1 << size) + 1 : bits; }

// Reads bits, most significant first, from bytes without stuffing. At least 8 bytes must be readable at every position
// that it reaches; position() shows if that is beyond the end.
class BitReader {
  public:
    explicit BitReader(const uint8_t* begin) : begin_(begin), next_(begin) {}

    // Afterwards at least 56 bits are valid. Branch-free: one load of 8 bytes, of which the whole ones that fit count.
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
