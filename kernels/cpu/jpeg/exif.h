// The one EXIF field that changes pixels.
#pragma once

#include <cstdint>

namespace feeder {

// The shortest APP1 payload with this orientation: 32 bytes.
void write_exif_orientation(int orientation, uint8_t payload[32]);

}  // namespace feeder
