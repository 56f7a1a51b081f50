// libjpeg-turbo's own accurate integer inverse DCT, block by block.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/jpeg/idct.h"

namespace feeder {

// In the SIMD code that libjpeg chose for this machine. It is reached through a decompressor that is started and stays
// so, which is the only interface to it that all versions share. One per thread.
class LibjpegIdct {
  public:
    LibjpegIdct();
    ~LibjpegIdct();
    LibjpegIdct(const LibjpegIdct&) = delete;
    LibjpegIdct& operator=(const LibjpegIdct&) = delete;

    // False if libjpeg did not start.
    bool ready() const;
    // False where libjpeg takes its plain C function: built without an assembler, or JSIMD_FORCENONE=1.
    bool simd() const;
    // `quant` in natural order, aligned to 16 bytes as the block's coefficients are.
    void run(const IdctBlock& block, const int16_t* quant, ptrdiff_t stride_bytes);

  private:
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace feeder
