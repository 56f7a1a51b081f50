// Decoded pixels, between a decoder and the resize: up to four 8-bit planes and their meaning.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

enum class ColorModel : uint8_t {
    gray,   // 1 plane
    ycbcr,  // 3 planes, JFIF full range; chroma may be subsampled
    rgb,    // 3 planes of full resolution
    cmyk,   // 4 planes of full resolution
    ycck,   // 4 planes of full resolution: YCbCr of the inverted CMY, then K
};

// Pillow's antialiased filters, as wide as the scale where the image shrinks.
enum class ResizeFilter : uint8_t { bilinear, bicubic };

// Pixels that a filter reads on each side of its center where the image does not shrink.
constexpr double reach_of(ResizeFilter filter) { return filter == ResizeFilter::bicubic ? 2.0 : 1.0; }

// 8-bit samples. Only width x height samples are valid: nothing beside or below them is read.
struct Plane {
    const uint8_t* data = nullptr;  // the sample of the window's top left corner
    ptrdiff_t stride_bytes = 0;     // from a row to the next one
    int width = 0;
    int height = 0;
    int step_bytes = 1;  // from a sample to its right neighbour: 3 for interleaved RGB, 4 for interleaved CMYK
};

// A rectangular window of an image, as stored (before EXIF orientation). "Full-resolution pixels" are the pixels
// that boxes count.
//
// One sample of plane i covers h_max / h_factor[i] full-resolution columns and v_max / v_factor[i] rows; both must
// divide evenly. For a JPEG, h_max is the greatest h_factor. After DCT scaling by 1/s it is s times that: no plane
// has full resolution then, and one luma sample covers s x s pixels. Only without that is chroma upsampled smoothly.
//
// The window starts at a multiple of every plane's sample size, so plane i has
// ceil(window_width * h_factor[i] / h_max) columns, or more. It must hold every pixel of the support box and, within
// the image, one subsampled chroma sample more on each side: libjpeg's smooth chroma upsampling, which the resize
// reproduces, reads that far.
struct Planes {
    Plane plane[4];
    int count = 0;
    int h_factor[4] = {1, 1, 1, 1};
    int v_factor[4] = {1, 1, 1, 1};
    int h_max = 1;
    int v_max = 1;
    int origin_x = 0;  // the window's place in the stored image, in full-resolution pixels
    int origin_y = 0;
    int window_width = 0;
    int window_height = 0;
    int image_width = 0;  // the whole stored image, in full-resolution pixels
    int image_height = 0;
    ColorModel color = ColorModel::rgb;
    bool inverted = false;  // cmyk and ycck: 255 means no ink, as Adobe stores it (and as Pillow takes every JPEG)
};

}  // namespace feeder
