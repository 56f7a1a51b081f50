// CMYK and YCCK planes to RGB.
#pragma once

#include <cstdint>

#include "cpu/image.h"
#include "cpu/resize/frame.h"

namespace feeder {

// Pillow's CMYK to RGB (Convert.c, cmyk2rgb), after libjpeg's YCCK to CMYK, of a region of the stored planes: rgb[c] gets
// its rows, dense.
void convert_cmyk(const Planes& planes, const Region& region, uint8_t* const rgb[3]);

}  // namespace feeder
