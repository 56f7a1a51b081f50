// JPEGs to packed JPEGs, where that is lossless to the byte.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/packed/codebook.h"
#include "cpu/packed/packed_file.h"
#include "cpu/status.h"

namespace feeder {

class BaselineDecoder;

// The coefficients of a JPEG.
class JpegBlocks {
  public:
    JpegBlocks();
    ~JpegBlocks();
    // Returns the number of blocks; -1: damaged, or of a kind that BaselineDecoder does not read.
    int64_t read(ByteSpan file, const JpegHeader& header);
    // 64 for each block in natural order; blocks in the order of the file.
    const int16_t (*data() const)[64] { return reinterpret_cast<const int16_t(*)[64]>(storage_.data()); }

  private:
    std::unique_ptr<BaselineDecoder> decoder_;
    Bytes storage_;
};

// Reads the header of a JPEG of a kind that is packed. `unsupported`: the reason why it is not. max_pixels 0: no limit.
Outcome packable(ByteSpan file, int64_t max_pixels, JpegHeader& header);

// Packs a JPEG, and unpacks it again to see that the same bytes come out. `unsupported`: the reason why it should be kept as
// it is. The digest in the head is left zero.
Outcome pack_jpeg(ByteSpan file, const CodebookId& id, const Codebook& codebook, int64_t max_pixels,
                  std::vector<uint8_t>& out);

}  // namespace feeder
