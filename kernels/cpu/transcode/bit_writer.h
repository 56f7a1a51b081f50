// The bits of a JPEG's entropy-coded data.
#pragma once

#include <cstdint>
#include <cstring>

#include "cpu/bytes.h"

namespace feeder {

// Writes bits, most significant first, with a zero stuffed after every 0xFF. The caller has reserved the memory.
class BitWriter {
  public:
    explicit BitWriter(uint8_t* out) : out_(out) {}

    void put(uint32_t bits, int count) {
        buffer_ = buffer_ << count | bits;
        count_ += count;
        if (count_ >= 32) flush_word();
    }

    // To a byte boundary, with ones, as the standard has it, or with zeros.
    void align(bool ones = true) {
        while (count_ >= 8) flush_byte();
        if (count_ > 0) {
            const int missing = 8 - count_;
            buffer_ = buffer_ << missing | (ones ? (1u << missing) - 1 : 0);
            count_ = 8;
            flush_byte();
        }
    }

    void marker(uint8_t code) {
        *out_++ = 0xFF;
        *out_++ = code;
    }

    uint8_t* end() const { return out_; }
    // Goes on there: the bytes written so far were moved.
    void move_to(uint8_t* out) { out_ = out; }

  private:
    void flush_word() {
        const uint32_t word = static_cast<uint32_t>(buffer_ >> (count_ - 32));
        // Has any byte all its bits set? Then its complement has a zero byte.
        if (((~word - 0x01010101u) & word & 0x80808080u) == 0) {
            const uint32_t swapped = __builtin_bswap32(word);
            std::memcpy(out_, &swapped, sizeof(swapped));
            out_ += 4;
            count_ -= 32;
        } else {
            for (int i = 0; i < 4; ++i) flush_byte();
        }
    }

    void flush_byte() {
        const uint8_t byte = static_cast<uint8_t>(buffer_ >> (count_ - 8));
        *out_++ = byte;
        if (byte == 0xFF) *out_++ = 0;
        count_ -= 8;
    }

    uint8_t* out_;
    uint64_t buffer_ = 0;
    int count_ = 0;
};

// The same without a branch on the bits: it writes bytes without stuffing, from which stuff() makes a JPEG's. A copy of it in
// a function's own variables stays in registers.
class PlainBitWriter {
  public:
    static constexpr int kMostBits = 56;      // of one put()
    static constexpr size_t kWriteAhead = 8;  // bytes behind the last one that it overwrites

    explicit PlainBitWriter(uint8_t* out) : out_(out) {}

    FEEDER_INLINE void put(uint64_t bits, int count) {
        buffer_ = buffer_ << count | bits;
        count_ += count;
        const uint64_t word = __builtin_bswap64(buffer_ << 1 << (63 - count_));
        std::memcpy(out_, &word, sizeof(word));
        out_ += count_ >> 3;
        count_ &= 7;
    }

    // To a byte boundary, with ones, as the standard has it, or with zeros.
    void align(bool ones) {
        const int missing = -count_ & 7;
        put(ones ? (1u << missing) - 1 : 0, missing);
    }

    uint8_t* end() const { return out_; }  // of the whole bytes
    // Goes on there; bits that fill no byte yet come first.
    void move_to(uint8_t* out) { out_ = out; }

  private:
    uint8_t* out_;
    uint64_t buffer_ = 0;
    int count_ = 0;
};

// Copies bytes with a zero behind every 0xFF; returns the end of what was written.
inline uint8_t* stuff(const uint8_t* from, const uint8_t* end, uint8_t* to) {
    while (from < end) {
        const size_t left = static_cast<size_t>(end - from);
        const void* const hit = std::memchr(from, 0xFF, left);
        const size_t count = hit == nullptr ? left : static_cast<size_t>(static_cast<const uint8_t*>(hit) - from) + 1;
        std::memcpy(to, from, count);
        from += count;
        to += count;
        if (hit != nullptr) *to++ = 0;
    }
    return to;
}

}  // namespace feeder
