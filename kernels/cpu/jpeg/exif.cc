#include "cpu/jpeg/exif.h"

#include <cstring>

namespace feeder {

void write_exif_orientation(int orientation, uint8_t payload[32]) {
    static const uint8_t kPayload[32] = {
        'E',  'x',  'i', 'f',        0, 0,                    //
        'M',  'M',  0,   42,         0, 0, 0, 8,              // TIFF header; the directory follows
        0,    1,                                              // one entry
        0x01, 0x12, 0,   3,          0, 0, 0, 1, 0, 0, 0, 0,  // orientation, one short
        0,    0,    0,   0,                                   // no further directory
    };
    std::memcpy(payload, kPayload, sizeof(kPayload));
    payload[25] = static_cast<uint8_t>(orientation);
}

}  // namespace feeder
