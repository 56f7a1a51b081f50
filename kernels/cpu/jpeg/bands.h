// The places of a seekable or packed JPEG's rows in its file, in bands of a few rows, and the bytes that a crop needs.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"

namespace feeder {

// About ten kilobytes of a photo; leaving out fewer bytes is not worthwhile.
inline constexpr int kBandPixels = 32;
// Before every band but the first; see BandExtent.
inline constexpr int kBandMarkerBytes = 2;

// Bands of whole MCU rows: the height of one in pixels, the offset of each, and the offset of the end of the last one's
// marker. False, and nothing in `places`, if the file is not seekable, has damage among its markers, or has 4 GiB or
// more.
bool find_bands(ByteSpan file, const JpegHeader& header, std::vector<uint32_t>& places);

// The MCU row that starts with this row of pixels; -1 if none does.
int mcu_row_at(const JpegHeader& header, int row_px);

// The first `header` bytes of a file, and those from `begin` to `end`. The latter start with the marker before the band
// of `first_row`, in pixels, or of a packed JPEG with the two bytes there; for row 0 they start with the file, and `header` is 0.
struct BandExtent {
    static constexpr int64_t kWhole = -1;

    int64_t first_row = kWhole;  // kWhole: all of the file
    int64_t header = 0;
    int64_t begin = 0;
    int64_t end = 0;
};

// The bytes needed for the rows from `top` to `bottom`, in pixels as stored, of a file of `length` bytes. `places` comes
// from find_bands() or find_packed_bands(), but may be damaged: if it is invalid, or saves too little, the result is the whole file. Gaps of
// fewer than `worth` bytes are read too, as leaving them out would take as long.
BandExtent band_extent(std::span<const uint32_t> places, int64_t length, int64_t top, int64_t bottom,
                       int64_t worth = 8192);

}  // namespace feeder
