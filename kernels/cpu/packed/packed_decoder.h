// Packed JPEGs to planes: only the rows and blocks that a box needs.
#pragma once

#include <vector>

#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/jpeg/block_transform.h"
#include "cpu/jpeg/planes.h"
#include "cpu/packed/packed_file.h"
#include "cpu/packed/unpack.h"
#include "cpu/stage_times.h"

namespace feeder {

// Keeps buffers; one per thread.
class PackedDecoder {
  public:
    // Decodes the whole MCUs that `box` and one chroma sample around it need. The samples are those of the JPEG. The
    // image must have resizable planes, see has_resizable_planes(). False: damaged, or no memory.
    bool decode(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& pixels, Planes& planes,
                StageTimes* times = nullptr);

  private:
    static constexpr int kRunBlocks = 32;

    void decode_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                     uint8_t* out, const int16_t* quant, ptrdiff_t stride_bytes);

    BlockTransform transform_;
    std::vector<PackedLine> lines_;
    std::vector<int16_t> dc_;
    alignas(16) int16_t quant_[4][64];  // in natural order
    alignas(64) int16_t blocks_[kRunBlocks][64];
};

// Unpacks the blocks from `first` to `end` of a line: 64 coefficients each, in natural order, to `out`, aligned to 64 bytes.
// `dc` is scratch memory.
void unpack_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                 std::vector<int16_t>& dc, int16_t (*out)[64]);

}  // namespace feeder
