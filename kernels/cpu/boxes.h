// Boxes of a view: the part of the image that it needs.
#pragma once

#include "cpu/image.h"
#include "cpu/jpeg/segments.h"

namespace feeder {

// Narrows the support box (left, top, right, bottom) to what the filter really reads for an output of this size.
void narrow_support(ResizeFilter filter, const double source_box[4], int out_height, int out_width, int support_box[4]);

// The part of the stored image that `upright_box` covers. Width and height are those of the stored image.
PixelBox stored_box(const int upright_box[4], int orientation, int width, int height);

}  // namespace feeder
