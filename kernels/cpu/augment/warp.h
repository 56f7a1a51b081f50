// Pillow's transform() of planar images, nearest; the fixed-point one and the filters are in kernels.h.
#pragma once

#include <cstdint>

#include "cpu/augment/program.h"

namespace feeder {

struct WarpSource {
    const uint8_t* rgb[3];  // dense
    int height;
    int width;
};

// The places of an affine map in 65536ths, of the middle of the upper left pixel; false if they do not fit everywhere.
bool fixed_places(const double map[6], int height, int width, int32_t place[6]);

// An affine map without turning and shearing, nearest.
void warp_straight(const WarpSource& source, const double map[6], uint32_t fill, uint8_t* const rgb[3]);

// Any affine map, nearest, in doubles that add up.
void warp_stepwise(const WarpSource& source, const double map[6], uint32_t fill, uint8_t* const rgb[3]);

// A perspective of eight numbers, nearest.
void warp_perspective(const WarpSource& source, const double map[8], uint32_t fill, uint8_t* const rgb[3]);

}  // namespace feeder
