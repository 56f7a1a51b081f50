// The time of a decode by stage.
#pragma once

#include <chrono>
#include <cstdint>

namespace feeder {

// Nanoseconds that each stage took, summed over images.
struct StageTimes {
    int64_t header = 0;   // parsing the header, checking the boxes
    int64_t tables = 0;   // building the Huffman and quantization tables
    int64_t markers = 0;  // finding the restart markers
    int64_t unstuff = 0;  // copying the entropy-coded bytes without stuffed zeros
    int64_t entropy = 0;  // Huffman decoding
    int64_t idct = 0;     // dequantization and inverse DCT
    int64_t libjpeg = 0;  // cut and decode of images that our own decoder leaves to libjpeg
    int64_t resize = 0;   // resize, color, flip, normalize, store
};

inline int64_t now_ns() {
    const auto now = std::chrono::steady_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(now).count();
}

// Adds the time since the last lap to one stage. Does nothing without times: reading the clock costs.
class Lap {
  public:
    explicit Lap(StageTimes* times) : times_(times), last_(times != nullptr ? now_ns() : 0) {}

    void add_to(int64_t StageTimes::*stage) {
        if (times_ == nullptr) return;
        const int64_t now = now_ns();
        times_->*stage += now - last_;
        last_ = now;
    }

  private:
    StageTimes* times_;
    int64_t last_;
};

}  // namespace feeder
