#include "exif.h"

#include <cstring>

namespace feeder {
namespace {

constexpr uint16_t kOrientationTag = 0x0112;
constexpr uint16_t kTypeShort = 3;

struct TiffReader {
    ByteSpan bytes;
    bool big_endian;

    // 0 beyond the end: no field that we look for has that value.
    uint32_t read(size_t offset, size_t size) const {
        if (offset > bytes.size() || bytes.size() - offset < size) return 0;
        uint32_t value = 0;
        for (size_t i = 0; i < size; ++i)
            value |= static_cast<uint32_t>(bytes[offset + (big_endian ? size - 1 - i : i)]) << (8 * i);
        return value;
    }
};

}  // namespace

int exif_orientation(ByteSpan payload) {
    if (payload.size() < 14 || std::memcmp(payload.data(), "Exif\0\0", 6) != 0) return 1;
    const ByteSpan tiff = payload.subspan(6);
    const bool big_endian = tiff[0] == 'M';
    if (tiff[0] != tiff[1] || (tiff[0] != 'M' && tiff[0] != 'I')) return 1;
    const TiffReader reader{tiff, big_endian};
    if (reader.read(2, 2) != 42) return 1;
    const size_t directory = reader.read(4, 4);
    const uint32_t entries = reader.read(directory, 2);
    for (uint32_t i = 0; i < entries; ++i) {
        const size_t entry = directory + 2 + 12 * static_cast<size_t>(i);
        if (entry >= tiff.size()) return 1;
        if (reader.read(entry, 2) != kOrientationTag) continue;
        const uint32_t value = reader.read(entry + 2, 2) == kTypeShort ? reader.read(entry + 8, 2) : 0;
        return value >= 1 && value <= 8 ? static_cast<int>(value) : 1;
    }
    return 1;
}

void write_exif_orientation(int orientation, uint8_t payload[32]) {
    static const uint8_t kPayload[32] = {
        'E',  'x',  'i', 'f',        0, 0,                    //
        'M',  'M',  0,   42,         0, 0, 0, 8,              // TIFF header; the directory follows
        0,    1,                                              // one entry
        0x01, 0x12, 0,   kTypeShort, 0, 0, 0, 1, 0, 0, 0, 0,  // orientation, one short
        0,    0,    0,   0,                                   // no further directory
    };
    std::memcpy(payload, kPayload, sizeof(kPayload));
    payload[25] = static_cast<uint8_t>(orientation);
}

}  // namespace feeder
