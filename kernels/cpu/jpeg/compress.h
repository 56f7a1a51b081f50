// Encodes pixels as JPEG by libjpeg-turbo, as Pillow's save() and torchvision's encode_jpeg do it with their defaults.
#pragma once

#include <cstdint>

#include "cpu/bytes.h"

namespace feeder {

// Fills `file` with a baseline JPEG of dense interleaved RGB: 4:2:0, the accurate DCT, libjpeg's Huffman tables.
// `quality` is 1-100. False: out of memory, or a side of more than 65,500.
bool compress_jpeg(const uint8_t* rgb, int height, int width, int quality, Bytes& file);

}  // namespace feeder
