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
    // image must have resizable planes, see has_resizable_planes(). `shrink`: see planes_of(). False: damaged, or no
    // memory.
    bool decode(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& pixels, Planes& planes,
                StageTimes* times = nullptr, int shrink = 1);

  private:
    // A component of the image at work, with its blocks that wait: those with nothing outside the first group, and all others
    // but for flat ones.
    struct Component {
        alignas(16) int16_t quant[64];  // in natural order
        ptrdiff_t stride_bytes;
        BlockQueue corner, full;
        std::vector<BlockPatch> patches;  // of `full`
    };

    void decode_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                     uint8_t* out, Component& component);
    void decode_reduced_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                             int shrink, uint8_t* out, const Component& component);
    // Transform a queue's blocks: all of them, or as many as are transformed together.
    void transform_corner(const ShapeTable& table, const uint8_t* stop, bool all, Component& component);
    void transform_full(const ShapeTable& table, const uint8_t* stop, bool all, Component& component);
    // Transforms the first blocks of a queue, unpacked to rows_ one after the other.
    void transform_blocks(const BlockQueue& queue, int count, const Component& component, bool is_corner);

    BlockTransform transform_;
    std::vector<PackedLine> lines_;
    std::vector<int16_t> dc_;
    Component components_[3];
    QueueRows rows_;
};

// Unpacks the blocks from `first` to `end` of a line: 64 coefficients each, in zigzag order, to `out`, aligned to 64 bytes.
// `dc` is scratch memory.
void unpack_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                 std::vector<int16_t>& dc, int16_t (*out)[64]);

}  // namespace feeder
