// A stage's row of feeder/loader/observe/meter.py: count, bytes, total and longest time, and a histogram of the times.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>

namespace feeder {

class StageMeter {
  public:
    static constexpr int kSmallestBits = 10;
    static constexpr int kLargestBits = 38;
    static constexpr size_t kBuckets = 2 + 4 * (kLargestBits - kSmallestBits);
    static constexpr size_t kWords = 4 + kBuckets;

    // `words` has kWords of them.
    explicit StageMeter(int64_t* words) : words_(words) {}

    void add(int64_t time_ns, int64_t bytes = 0) {
        words_[0] += 1;
        words_[1] += bytes;
        words_[2] += time_ns;
        words_[3] = std::max(words_[3], time_ns);
        words_[4 + bucket_of(time_ns)] += 1;
    }

    void add_bytes(int64_t bytes) { words_[1] += bytes; }

    static size_t bucket_of(int64_t time_ns) {
        const int bits = std::bit_width(static_cast<uint64_t>(std::max<int64_t>(time_ns, 0)));
        if (bits <= kSmallestBits) return 0;
        if (bits > kLargestBits) return kBuckets - 1;
        return static_cast<size_t>(1 + 4 * (bits - 1 - kSmallestBits) + (time_ns >> (bits - 3) & 3));
    }

  private:
    int64_t* words_;
};

}  // namespace feeder
