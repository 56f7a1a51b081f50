// The coefficients of a JPEG that is packed.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"
#include "cpu/packed/shape_choice.h"
#include "cpu/status.h"

namespace feeder {

class BaselineDecoder;

// Reads the header of a JPEG of a kind that is packed. `unsupported`: the reason why it is not. max_pixels 0: no limit.
Outcome packable(ByteSpan file, int64_t max_pixels, JpegHeader& header);

// Keeps tables and buffers; one per thread.
class JpegBlocks {
  public:
    JpegBlocks();
    ~JpegBlocks();
    // Returns the number of blocks; -1: damaged, or of a kind that BaselineDecoder does not read.
    int64_t read(ByteSpan file, const JpegHeader& header);
    // In the order of the file, with their DC coefficients.
    OrderedBlock* data() { return blocks_; }
    // The memory that is kept for the next JPEG.
    size_t kept_bytes() const { return storage_.capacity(); }

  private:
    std::unique_ptr<BaselineDecoder> decoder_;
    Bytes storage_;
    OrderedBlock* blocks_ = nullptr;
};

}  // namespace feeder
