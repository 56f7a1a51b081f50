// The draws of a recipe's base path: what feeder/transforms draws for crops, a resize and flips, to the bit.
//
// Note [undecided draws]
// exp() differs from library to library in its last bits, and numpy has its own. A crop's sides are rounded to pixels, so
// these bits matter only where a side lies within them of a half. Such a draw is undecided, and left to Python: about one
// in 10^10.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace feeder {

// An op of the base path. `stream` is its number in the recipe.
struct DrawOp {
    enum class Kind : uint8_t { random_resized_crop, random_crop, center_crop, resize, horizontal_flip, pad, letterbox };
    // Resize: to (height, width); to a shorter side of `height`, with the longer one at most `most` unless that is 0; to a
    // longer side of `most`; or to the least size that covers (height, width).
    enum class Side : uint8_t { both, shorter, longer, cover };

    Kind kind = Kind::horizontal_flip;
    uint32_t stream = 0;
    int64_t height = 0;  // of the output, pixels
    int64_t width = 0;
    double scale[2] = {};      // of a random resized crop, as are the next two
    double ratio[2] = {};
    double log_ratio[2] = {};
    Side side = Side::both;
    int64_t most = 0;
    double p = 0;  // of a flip
    int64_t padding[4] = {};  // left, top, right, bottom: of a pad, or before a random crop
    bool pads_if_needed = false;  // before a random crop
};

// What was drawn for a sample; see feeder.transforms.Draws.
struct BaseDraw {
    double source_box[4] = {};  // left, top, right, bottom in upright pixels
    int32_t support_box[4] = {};
    int64_t height = 0;  // after the base path
    int64_t width = 0;
    bool flip = false;
    int64_t frame[4] = {};  // left, top, width and height of the image in it, which may be smaller, or none
};

// Draws for an image of this upright size, 1 or more a side. False: undecided.
bool draw_base(std::span<const DrawOp> ops, uint64_t seed, uint32_t epoch, uint64_t key, int64_t height, int64_t width,
               BaseDraw& drawn);

}  // namespace feeder
