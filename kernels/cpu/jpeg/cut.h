// The crop in the compressed domain: a seekable JPEG and a box in, a small JPEG out. See Note [seekable JPEG].
#pragma once

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/segments.h"

namespace feeder {

// Note [seekable JPEG]
// Restart markers make every restart interval independent: byte-aligned, with its DC prediction starting at zero. If the
// interval divides the MCU columns, intervals form a grid of segments, and any rectangle of that grid can be made a JPEG:
// the same tables, another height and width in the frame header, the chosen segments, their RSTn renumbered. Only
// segments at the image's right and bottom edge may hold partial MCUs, and in the new JPEG they are at the edge too.

// The place of the cut in the stored image.
struct CutPlace {
    int origin_x = 0;
    int origin_y = 0;
    int width = 0;
    int height = 0;
};

enum class CutResult { cut, not_seekable, damaged, no_memory };

// Writes the smallest JPEG of whole segments that holds `box` (inside the image, not empty) and one chroma sample
// around it. EXIF and other metadata are left out, except what decides the color space. `not_seekable` and
// `damaged` (markers missing or out of order) leave `out` undefined: decode the whole file instead. `file_row` is the
// MCU row at which the file's entropy-coded data begin, see ImageJob.
CutResult cut_jpeg(ByteSpan file, const JpegHeader& header, const PixelBox& box, int file_row,
                   std::vector<Segment>& scratch, Bytes& out, CutPlace& place);

}  // namespace feeder
