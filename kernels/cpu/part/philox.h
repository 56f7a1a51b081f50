// Philox4x32-10, the random numbers of feeder/order/random.py, bit for bit.
// Source: Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011.
#pragma once

#include <cstdint>

namespace feeder {

// Four words of a key (64 bits: the sample), an epoch, a stream and a block of these.
inline void philox(uint64_t seed, uint32_t epoch, uint64_t key, uint32_t stream, uint32_t block, uint32_t words[4]) {
    uint32_t c0 = static_cast<uint32_t>(key), c1 = static_cast<uint32_t>(key >> 32), c2 = epoch;
    uint32_t c3 = stream << 16 | block;
    uint32_t k0 = static_cast<uint32_t>(seed), k1 = static_cast<uint32_t>(seed >> 32);
    for (int round = 0; round < 10; ++round) {
        const uint64_t a = uint64_t{0xD2511F53} * c0, b = uint64_t{0xCD9E8D57} * c2;
        c0 = static_cast<uint32_t>(b >> 32) ^ c1 ^ k0;
        c2 = static_cast<uint32_t>(a >> 32) ^ c3 ^ k1;
        c1 = static_cast<uint32_t>(b);
        c3 = static_cast<uint32_t>(a);
        k0 += 0x9E3779B9;
        k1 += 0xBB67AE85;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

// Uniform numbers in [0, 1) with 53 random bits each, of one op for one sample. Number k never depends on how many are
// drawn.
class Uniforms {
  public:
    Uniforms(uint64_t seed, uint32_t epoch, uint64_t key, uint32_t stream)
        : seed_(seed), key_(key), epoch_(epoch), stream_(stream) {}

    double operator()(uint32_t k) {
        if (k / 2 != block_) draw(k / 2);
        const uint64_t bits = static_cast<uint64_t>(words_[k % 2 * 2]) << 32 | words_[k % 2 * 2 + 1];
        return static_cast<double>(bits >> 11) * 0x1p-53;
    }

  private:
    void draw(uint32_t block) {
        philox(seed_, epoch_, key_, stream_, block, words_);
        block_ = block;
    }

    uint64_t seed_, key_;
    uint32_t epoch_, stream_;
    uint32_t block_ = UINT32_MAX;
    uint32_t words_[4] = {};
};

}  // namespace feeder
