#include "cpu/jpeg/bands.h"

#include <algorithm>
#include <limits>

#include "cpu/jpeg/segments.h"

namespace feeder {
namespace {

// The chroma sample beside the crop, which is needed too, covers at most this many pixels.
constexpr int64_t kMarginPixels = 4;

}  // namespace

bool find_bands(ByteSpan file, const JpegHeader& header, std::vector<uint32_t>& places) {
    places.clear();
    const SegmentGrid grid = segment_grid(header);
    if (!grid.seekable() || file.size() > UINT32_MAX) return false;
    const size_t per_row = static_cast<size_t>(grid.segments_per_row);
    std::vector<Segment> segments;
    const size_t count = static_cast<size_t>(grid.mcu.rows) * per_row;
    if (find_segments(file, header.entropy_offset, 0, count, segments) != MarkerScan::complete) return false;
    const size_t end = segments.back().end;
    if (end + 2 > file.size() || file[end + 1] != 0xD9) return false;
    const int band_rows = std::max(1, kBandPixels / grid.mcu.mcu_height_px);
    places.push_back(static_cast<uint32_t>(band_rows * grid.mcu.mcu_height_px));
    for (size_t i = 0; i < count; i += per_row * static_cast<size_t>(band_rows))
        places.push_back(static_cast<uint32_t>(segments[i].begin));
    places.push_back(static_cast<uint32_t>(end + 2));
    return true;
}

int mcu_row_at(const JpegHeader& header, int row_px) {
    const McuGrid grid = mcu_grid(header);
    return row_px >= 0 && row_px < header.height && row_px % grid.mcu_height_px == 0 ? row_px / grid.mcu_height_px : -1;
}

BandExtent band_extent(std::span<const uint32_t> places, int64_t length, int64_t top, int64_t bottom, int64_t worth) {
    const BandExtent whole = {BandExtent::kWhole, 0, 0, length};
    if (places.size() < 3 || places[0] == 0) return whole;
    const int64_t height = places[0], bands = static_cast<int64_t>(places.size()) - 2;
    int64_t first = std::clamp(std::max<int64_t>(top - kMarginPixels, 0) / height, int64_t{0}, bands - 1);
    const int64_t last = std::clamp((bottom + kMarginPixels - 1) / height, first, bands - 1);
    const int64_t header = places[1], end = places[static_cast<size_t>(last) + 2];
    const int64_t begin = int64_t{places[static_cast<size_t>(first) + 1]} - kBandMarkerBytes;
    if (begin - header < worth) first = 0;
    if (first == 0) return length - end < worth ? whole : BandExtent{0, 0, 0, end};
    if (end < begin || end > length || first * height > std::numeric_limits<int32_t>::max()) return whole;
    return {first * height, header, begin, end};
}

}  // namespace feeder
