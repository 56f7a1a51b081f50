// A keyed permutation of 0..n-1 in O(1) memory: a Feistel network over the next power of two, with cycle walking.
// Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
#pragma once

#include <cstdint>

namespace feeder {

class Permutation {
  public:
    static constexpr int rounds = 12;

    // Of size numbers, 1 to 2**62, by random words, which it does not own.
    Permutation(uint64_t size, const uint64_t* keys) : size_(size), keys_(keys) {
        const int bits = size > 4 ? 64 - __builtin_clzll(size - 1) : 2;
        low_bits_ = bits / 2;
        low_mask_ = (uint64_t{1} << low_bits_) - 1;
        high_mask_ = (uint64_t{1} << (bits - low_bits_)) - 1;
    }

    // Where a number below the size goes. Another one might never end.
    uint64_t operator()(uint64_t value) const {
        do {
            uint64_t low = value & low_mask_, high = value >> low_bits_;
            for (int i = 0; i < rounds; i += 2) {
                low ^= mix(high ^ keys_[i]) & low_mask_;
                high ^= mix(low ^ keys_[i + 1]) & high_mask_;
            }
            value = high << low_bits_ | low;
        } while (value >= size_);
        return value;
    }

    // Where it came from.
    uint64_t inverse(uint64_t value) const {
        do {
            uint64_t low = value & low_mask_, high = value >> low_bits_;
            for (int i = rounds; i > 0; i -= 2) {
                high ^= mix(low ^ keys_[i - 1]) & high_mask_;
                low ^= mix(high ^ keys_[i - 2]) & low_mask_;
            }
            value = high << low_bits_ | low;
        } while (value >= size_);
        return value;
    }

  private:
    // The finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).
    static uint64_t mix(uint64_t x) {
        x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
        x = (x ^ x >> 27) * 0x94D049BB133111EB;
        return x ^ x >> 31;
    }

    uint64_t size_;
    const uint64_t* keys_;
    int low_bits_;
    uint64_t low_mask_, high_mask_;
};

}  // namespace feeder
