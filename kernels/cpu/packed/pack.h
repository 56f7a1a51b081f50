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

// Keeps tables, and buffers of up to 64 MiB; one per thread.
class JpegPacker {
  public:
    JpegPacker();
    ~JpegPacker();
    // Packs a JPEG, and unpacks it again to see that the same bytes come out. `unsupported`: the reason why it should be kept
    // as it is. The digest in the head is left zero. max_pixels 0: no limit.
    Outcome pack(ByteSpan file, const CodebookId& id, const Codebook& codebook, int64_t max_pixels,
                 std::vector<uint8_t>& out);

  private:
    struct Buffers;
    struct Trim;
    std::unique_ptr<Buffers> buffers_;
};

}  // namespace feeder
