// Views of one image that are decoded together.
#pragma once

#include <span>
#include <vector>

#include "cpu/jpeg/header.h"
#include "cpu/jpeg/planes.h"
#include "cpu/jpeg/segments.h"

namespace feeder {

// Boxes of at most so many pixels are decoded as for Fidelity::exact. The fast path rounds color at another place than
// Pillow. Over a photo that averages out; over a few pixels it does not, and there the exact path costs next to nothing.
inline constexpr int64_t kFewPixels = 32 * 32;

// The part of the stored image that a view needs, and how much smaller its output is: 1, 2 or 4, see draft_shrink().
struct ViewNeed {
    PixelBox box;
    int shrink = 1;
};

// Views whose pixels come from one decode of `box`, in stored pixels.
struct ViewGroup {
    PixelBox box;
    Fidelity fidelity = Fidelity::fast;  // fast or exact
    int shrink = 1;                      // of the planes, see planes_of()
    std::vector<size_t> views;  // at least one
};

// By how much the planes of Fidelity::draft may be smaller than the image for an output of a source box: the largest of 1, 2
// and 4 that leaves at least a sample for each pixel.
int draft_shrink(const double source_box[4], int out_height, int out_width);

// Divides views into groups that cost little to decode. Views share a group if the
// box around all of them costs no more than their own boxes, in MCUs to be entropy-decoded and transformed. A view's
// fidelity and shrink do not depend on the others, and its pixels do not depend on the group's box.
void group_views(const JpegHeader& header, std::span<const ViewNeed> needs, Fidelity wanted,
                 std::vector<ViewGroup>& groups);

}  // namespace feeder
