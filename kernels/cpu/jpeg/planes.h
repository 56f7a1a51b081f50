// Encoded JPEG to planes: the seam between decoders and the resize.
#pragma once

#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/segments.h"
#include "cpu/status.h"

namespace feeder {

enum class Fidelity : uint8_t {
    fast,   // YCbCr planes, chroma at its own resolution
    exact,  // RGB (or gray, CMYK) as libjpeg makes it, chroma upsampled at full resolution
    draft,  // the planes at half or quarter size where the output is smaller still, see Note [reduced inverse DCT]
};

// Decided by JFIF and Adobe markers, then by component ids, as in libjpeg. Two components have no model: Status::unsupported.
Outcome color_model(const JpegHeader& header, ColorModel& model);

// True if resample() takes each component at its own resolution: gray, YCbCr with evenly subsampled chroma, RGB without
// subsampling. Others are upsampled by libjpeg, as in Fidelity::exact.
bool has_resizable_planes(const JpegHeader& header);

// Rows and columns of whole MCUs that hold `box` and one chroma sample around it.
PixelBox mcu_window(const JpegHeader& header, const PixelBox& box);

// Describes the planes of `window` (aligned to MCUs, or ending at the image's edge) inside an image of header's size, without
// samples. `shrink`: a block is (8 / shrink) x (8 / shrink) samples.
Planes planes_of(const JpegHeader& header, const PixelBox& window, ColorModel color, int shrink = 1);

// The same, and gives each plane its place in `pixels`, with rows of whole blocks. False: no memory.
bool lay_out_planes(const JpegHeader& header, const PixelBox& window, ColorModel color, int shrink, Bytes& pixels,
                    Planes& planes);

// The samples of plane i that overlap `box`, counted from the plane's first one.
PixelBox samples_of(const Planes& planes, int i, const PixelBox& box);

}  // namespace feeder
