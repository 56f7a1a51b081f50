// Antialiased resize of decoded planes straight into a normalized output image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "cpu/image.h"
#include "cpu/resize/store.h"

namespace feeder {

// Working memory of resample(), kept between calls: one per thread.
class Scratch {
  public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

    struct Buffers;
    Buffers& buffers() { return *buffers_; }

  private:
    std::unique_ptr<Buffers> buffers_;
};

// Resizes the source box to the whole output, and stores it as RGB.
//
// The result is that of Pillow's
//     upright.convert("RGB").crop(support).resize((width, height), filter, box=source - support's corner)
// with `upright` the image after EXIF orientation, flipped horizontally afterwards where `flip` is set. Planes that
// need no chroma upsampling (gray, rgb, cmyk, ycck) give Pillow's bytes exactly. YCbCr planes are resized each from
// its own resolution, with the coefficients of "upsample as libjpeg does, then resize" composed into one filter; this
// differs from Pillow by rounding and by where out-of-gamut colors are clamped. See kernels/README.md.
//
// The arithmetic is integer up to the 8-bit pixel, so every SIMD level gives the same bytes.
//
// Args:
//     planes: The decoded window, as stored.
//     source_box: left, top, right, bottom in upright full-resolution pixels: the area that maps onto the output.
//     support_box: left, top, right, bottom in the same coordinates: the pixels that the filter may read. Must hold
//         the source box and lie inside the window.
//     orientation: EXIF orientation, 1-8, that makes the stored image upright.
//     flip: Mirror the output horizontally.
//     filter: Pillow's. What a bicubic one has below 0 and above 255 after a pass is cut off.
//
// Throws std::invalid_argument, with what was expected and what was found, before it touches the output;
// std::bad_alloc.
void resample(const Planes& planes, const double source_box[4], const int support_box[4], int orientation, bool flip,
              ResizeFilter filter, const Output& out, Scratch& scratch);

}  // namespace feeder
