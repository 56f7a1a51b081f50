// The decoder for every kind of JPEG: libjpeg-turbo, with as little work as the box allows.
#pragma once

#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/planes.h"
#include "cpu/status.h"

namespace feeder {

// The coefficients of a file that has no scan.
class McuSource {
  public:
    // Fills in the blocks of the next MCU, which are zero: 64 coefficients each, in natural order.
    virtual void next(int16_t (*const* blocks)[64]) noexcept = 0;

  protected:
    ~McuSource() = default;
};

// Decodes the part of `file` that `box` (stored pixels, inside the image, not empty) needs. `planes` then points into
// `pixels`. With Status::damaged the planes are filled as far as the data goes; with other failures they are undefined.
//
// fast: raw planes, entropy-decoded down to the box's last row; the inverse DCT is done inside the box only. Unlike
// jpeg_skip_scanlines and jpeg_crop_scanline this gives chroma at its own resolution.
// draft: the same as fast.
// exact: libjpeg's own upsampling and color conversion from the first row to the box's last.
//
// `source` (for exact only) has the coefficients of a file that ends behind the header of its only scan.
Outcome decode_with_libjpeg(ByteSpan file, const JpegHeader& header, const PixelBox& box, Fidelity fidelity,
                            Bytes& pixels, Planes& planes, McuSource* source = nullptr);

// Only the entropy decoding of the whole image, with its result discarded: the yardstick for our own decoder.
Outcome read_with_libjpeg(ByteSpan file, const JpegHeader& header);

}  // namespace feeder
