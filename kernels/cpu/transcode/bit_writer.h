// The bits of a JPEG's entropy-coded data.
#pragma once

#include <cstdint>
#include <cstring>

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

}  // namespace feeder
