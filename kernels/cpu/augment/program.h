// Augmentation of one image between its resize and its output: a program of ops with the values that were drawn for them.
//
// Note [Pillow's bytes]
// All ops but the blur give Pillow's bytes: those of ImageEnhance, ImageOps, convert("L"), convert("HSV") and transform(). So products
// and sums are rounded apart (-ffp-contract=off), in the precision that Pillow has: float32 for blends, doubles for warps
// other than fixed point. The blur is torchvision's within a level: 16-bit weights, 7 fractional bits between the passes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/resize/store.h"

namespace feeder {

// The values of each op are in brackets.
enum class AugmentOp : int {
    nothing,
    mirror,        // left to right
    flip,          // top to bottom
    grayscale,     // three equal channels
    brightness,    // [factor], as are the next two and sharpness; 0 or more
    contrast,
    saturation,
    hue,           // [shift in HSV's 8-bit hue, 0-255]
    sharpness,
    posterize,     // [bits kept, 0-8]
    solarize,      // [threshold]
    solarize_add,  // [added to levels below 128, 0-255]
    autocontrast,
    equalize,
    invert,
    affine,        // [xx, xy, x0, yx, yy, y0, fill, filter]: where a pixel comes from; fill is R + 256 G + 65536 B
    perspective,   // [a, b, c, d, e, f, g, h, fill, filter]
    blur,          // [kernel width, kernel height, sigma]; odd, at most kMostTaps
    permute,       // [channels that become R, G and B, 0-2]
    add_noise,     // [key's upper 32 bits, lower ones, mean, deviation, clipped: 0 or 1 to wrap around], at most kMostNoise
    mix_start,     // [weight]: the image, with this weight, is the first part of a sum
    mix_add,       // [weight]: adds what the ops since made of the image, and goes back to it; behind mix_start
    mix_finish,    // the sum, cut to whole levels, is the image; behind mix_start
    jpeg,          // [quality, 1-100]: what is left after an encoding as JPEG, see compress_jpeg()
    erase,         // [top, left, height, width, R, G, B], 0-255
    erase_output,  // the same, in units of the output, after all others
    erase_noise,   // [top, left, height, width, key's upper 32 bits, lower ones, mirrored: 0 or 1], also after them
    count,
};

enum class WarpFilter : int { nearest, bilinear, bicubic, count };

inline constexpr int kMostTaps = 63;
inline constexpr double kMostNoise = 2550;

// A row of a table of doubles: the op's number and its values.
struct AugmentStep {
    double op;
    double value[11];

    AugmentOp kind() const { return static_cast<AugmentOp>(static_cast<int>(op)); }
};

using Program = std::span<const AugmentStep>;

// Returns what is wrong with a program for images of this size; null if nothing is.
const char* program_fault(Program program, int height, int width);

// True if an op changes uint8 pixels.
bool changes_pixels(Program program);

// Runs the ops on the output that follow all others. Throws std::bad_alloc.
void erase_output(Program program, const Output& out);

// Runs programs on one image after the other. One per thread.
class Augmenter {
  public:
    // The image of this size that run() changes, to be filled first: planar uint8. Throws std::bad_alloc.
    Output image(int height, int width);

    // Runs a program without faults on the image. Throws std::bad_alloc.
    void run(Program program);

    // Maps the image to an output of its size.
    void store(const Output& out) const;

  private:
    void step(const AugmentStep& step);
    void contrast(float factor);
    void equalize();
    void autocontrast();
    void sharpen(float factor);
    void warp(const AugmentStep& step);
    void mix(float weight, bool is_first);
    void finish_mix();
    const uint8_t* interleaved();
    void add_noise(const double* value);
    void compress(int quality);
    void blur(int columns, int rows, double sigma);
    void add_table(const uint8_t table[256]);
    void finish_table();
    size_t area() const { return static_cast<size_t>(height_) * static_cast<size_t>(width_); }
    void exchange();

    int height_ = 0;
    int width_ = 0;
    uint8_t* rgb_[3] = {};    // the image
    uint8_t* other_[3] = {};  // one to make the next image in
    Bytes memory_[2];
    Bytes interleaved_;
    Bytes file_;    // a JPEG
    Bytes pixels_;  // of it
    std::vector<int16_t> row_;
    std::vector<float> numbers_;
    std::vector<float> sum_;       // of a mix
    std::vector<uint8_t> mixed_;   // the image that it began with
    bool has_table_ = false;  // one that is not applied yet: tables in a row become one
    uint8_t table_[256] = {};
};

}  // namespace feeder
