// A codebook trained on a sample of JPEGs.
#pragma once

#include <cstdint>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/packed/jpeg_blocks.h"
#include "cpu/packed/shape_choice.h"

namespace feeder {

class CodebookTrainer {
  public:
    // Takes some of an image's blocks. False: an image that can't be packed.
    bool add(ByteSpan file, int64_t max_pixels);

    // The codebook's bytes: the same ones for the same images in the same order.
    std::vector<uint8_t> train() const;

  private:
    JpegBlocks blocks_;
    std::vector<BlockCosts> seen_[2];  // of luma, of chroma
};

}  // namespace feeder
