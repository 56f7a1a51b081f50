// Packed JPEGs as JPEGs: the original file, to the byte, and a part of it for libjpeg.
#pragma once

#include "cpu/bytes.h"
#include "cpu/jpeg/cut.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/packed/codebook.h"
#include "cpu/packed/packed_file.h"
#include "cpu/packed/row_blocks.h"
#include "cpu/status.h"

namespace feeder {

// Writes the JPEG that was packed. `file` is whole.
Outcome unpack_jpeg(const PackedFile& file, const Codebook& codebook, Bytes& out);

// Writes its header and its scan, without the marker after it.
Outcome unpack_scan(const PackedFile& file, const Codebook& codebook, Bytes& out);

// Writes a JPEG of the MCUs that hold `box` and the samples around it that upsampling reads, with the same samples, as
// cut_jpeg() does it.
Outcome cut_packed(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& out, CutPlace& place);

// The same for libjpeg without Huffman codes: it takes the coefficients as they are.
class PackedCut : public McuSource {
  public:
    // Writes the header of such a JPEG to `out`. File and codebook must stay.
    Outcome open(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& out, CutPlace& place);
    void next(int16_t (*const* blocks)[64]) noexcept override;
    // True if a row was, so that some blocks are missing.
    bool damaged() const { return damaged_; }

  private:
    const PackedFile* file_ = nullptr;
    const Codebook* codebook_ = nullptr;
    RowBlocks row_blocks_;
    int first_column_ = 0, column_ = 0, row_ = 0, last_row_ = 0;
    bool damaged_ = false;
};

}  // namespace feeder
