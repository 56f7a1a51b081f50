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

// Views whose pixels come from one decode of `box`, in stored pixels.
struct ViewGroup {
    PixelBox box;
    Fidelity fidelity = Fidelity::fast;
    std::vector<size_t> views;  // at least one
};

// Divides views, of which each needs one of the boxes, into groups that cost little to decode. Views share a group if the
// box around all of them costs no more than their own boxes, in MCUs to be entropy-decoded and transformed. A view's
// fidelity does not depend on the others, and its pixels do not depend on the group's box.
void group_views(const JpegHeader& header, std::span<const PixelBox> boxes, Fidelity wanted,
                 std::vector<ViewGroup>& groups);

}  // namespace feeder
