// Packed JPEGs as JPEGs: the original file, to the byte, and a part of it for libjpeg.
#pragma once

#include "cpu/bytes.h"
#include "cpu/jpeg/cut.h"
#include "cpu/packed/codebook.h"
#include "cpu/packed/packed_file.h"
#include "cpu/status.h"

namespace feeder {

// Writes the JPEG that was packed. `file` is whole.
Outcome unpack_jpeg(const PackedFile& file, const Codebook& codebook, Bytes& out);

// Writes its header and its scan, without the marker after it.
Outcome unpack_scan(const PackedFile& file, const Codebook& codebook, Bytes& out);

// Writes a JPEG of the MCUs that hold `box` and the samples around it that upsampling reads, with the same samples, as
// cut_jpeg() does it.
Outcome cut_packed(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& out, CutPlace& place);

}  // namespace feeder
