// Turns a plane by its diagonal, for photos that were taken upright.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

// to[x, y] = from[y, x] for `height` rows of `width` samples that lie `step` bytes apart. Rows of `to` have `height`
// samples.
void transpose(const uint8_t* from, ptrdiff_t stride, ptrdiff_t step, int width, int height, uint8_t* to,
               ptrdiff_t to_stride);

}  // namespace feeder
