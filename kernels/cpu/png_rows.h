// Rows of a PNG after inflating: one byte for the filter, then the filtered pixels.
#pragma once

#include <cstddef>

#include "cpu/bytes.h"

namespace feeder {

// PNG specification, section 9. Rows of the first two do not need the row above them.
enum class PngFilter : uint8_t { none, sub, up, average, paeth };

inline bool is_png_filter(uint8_t byte) { return byte <= static_cast<uint8_t>(PngFilter::paeth); }

// Undoes a row's filter into `to`, which may be `row` itself. `above` is the row above it, zeros for the first one;
// pixel_bytes is the size of a pixel, of which row_bytes is a multiple, or 1.
void unfilter_row(PngFilter filter, const uint8_t* row, const uint8_t* above, size_t row_bytes, size_t pixel_bytes,
                  uint8_t* to);

// Undoes the rows' filters into `out`, height * row_bytes bytes. `rows` are height rows of 1 + row_bytes bytes. Returns the
// number of rows that were done: fewer than height if the next one has an unknown filter.
size_t unfilter_png(ByteSpan rows, size_t height, size_t row_bytes, size_t pixel_bytes, uint8_t* out);

}  // namespace feeder
