#include "cpu/png_rows.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace feeder {
namespace {

enum Filter : uint8_t { none, sub, up, average, paeth };

uint8_t predicted(int left, int above, int corner) {
    // Most pixels of a mask equal their neighbors.
    if (above == corner) return static_cast<uint8_t>(left);
    if (left == corner) return static_cast<uint8_t>(above);
    const int to_left = std::abs(above - corner);
    const int to_above = std::abs(left - corner);
    const int to_corner = std::abs(left + above - 2 * corner);
    if (to_left <= to_above && to_left <= to_corner) return static_cast<uint8_t>(left);
    return static_cast<uint8_t>(to_above <= to_corner ? above : corner);
}

}  // namespace

size_t unfilter_png(ByteSpan rows, size_t height, size_t row_bytes, size_t pixel_bytes, uint8_t* out) {
    const std::vector<uint8_t> zeros(row_bytes, 0);
    const uint8_t* above = zeros.data();
    for (size_t y = 0; y < height; ++y) {
        const uint8_t* row = rows.data() + y * (1 + row_bytes) + 1;
        uint8_t* to = out + y * row_bytes;
        const size_t first = std::min(pixel_bytes, row_bytes);  // pixels to the left of it count as zero
        switch (row[-1]) {
            case none: std::memcpy(to, row, row_bytes); break;
            case sub:
                std::memcpy(to, row, first);
                for (size_t x = first; x < row_bytes; ++x) to[x] = static_cast<uint8_t>(row[x] + to[x - pixel_bytes]);
                break;
            case up:
                for (size_t x = 0; x < row_bytes; ++x) to[x] = static_cast<uint8_t>(row[x] + above[x]);
                break;
            case average:
                for (size_t x = 0; x < first; ++x) to[x] = static_cast<uint8_t>(row[x] + above[x] / 2);
                for (size_t x = first; x < row_bytes; ++x)
                    to[x] = static_cast<uint8_t>(row[x] + (to[x - pixel_bytes] + above[x]) / 2);
                break;
            case paeth:
                for (size_t x = 0; x < first; ++x) to[x] = static_cast<uint8_t>(row[x] + above[x]);
                for (size_t x = first; x < row_bytes; ++x)
                    to[x] = static_cast<uint8_t>(row[x] +
                                                 predicted(to[x - pixel_bytes], above[x], above[x - pixel_bytes]));
                break;
            default: return y;
        }
        above = to;
    }
    return height;
}

}  // namespace feeder
