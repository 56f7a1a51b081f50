// Rows of a PNG after inflating: one byte for the filter, then the filtered pixels.
#pragma once

#include <cstddef>

#include "cpu/bytes.h"

namespace feeder {

// Undoes the rows' filters (PNG specification, section 9) into `out`, height * row_bytes bytes. `rows` are height rows of
// 1 + row_bytes bytes; pixel_bytes is the size of a pixel. Returns the number of rows that were done: fewer than height
// if the next one has an unknown filter.
size_t unfilter_png(ByteSpan rows, size_t height, size_t row_bytes, size_t pixel_bytes, uint8_t* out);

}  // namespace feeder
