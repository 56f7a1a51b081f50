// The one EXIF field that changes pixels.
#pragma once

#include "bytes.h"

namespace feeder {

// The orientation (1-8) in an APP1 payload that starts with "Exif\0\0"; 1 where there is none or it makes no sense.
int exif_orientation(ByteSpan payload);

// The shortest APP1 payload that says this orientation: 32 bytes.
void write_exif_orientation(int orientation, uint8_t payload[32]);

}  // namespace feeder
