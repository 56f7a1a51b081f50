#include "cpu/png_rows.h"

#include <bit>
#include <cstdlib>
#include <cstring>
#include <vector>

namespace feeder {
namespace {

// A pixel of up to 4 bytes, each in a lane of 16 bits. Vectors of the compiler's: a pixel waits for the one before it, and
// wider ones would not help.
using Pixel = int16_t __attribute__((vector_size(16)));
using PixelBytes = uint8_t __attribute__((vector_size(8)));

template <size_t pixel_bytes>
FEEDER_INLINE Pixel load(const uint8_t* from) {
    uint64_t bytes = from[0];  // by shifts, as a copy of three bytes would go through memory
    for (size_t i = 1; i < pixel_bytes; ++i) bytes |= uint64_t{from[i]} << 8 * i;
    return __builtin_convertvector(std::bit_cast<PixelBytes>(bytes), Pixel);
}

template <size_t pixel_bytes>
FEEDER_INLINE void store(Pixel pixel, uint8_t* to) {
    const auto bytes = std::bit_cast<uint64_t>(__builtin_convertvector(pixel, PixelBytes));
    for (size_t i = 0; i < pixel_bytes; ++i) to[i] = static_cast<uint8_t>(bytes >> 8 * i);
}

FEEDER_INLINE Pixel magnitude(Pixel value) { return value > -value ? value : -value; }

template <size_t pixel_bytes>
void undo_sub(const uint8_t* row, size_t row_bytes, uint8_t* to) {
    Pixel left = {};
    for (size_t x = 0; x < row_bytes; x += pixel_bytes) {
        left = (load<pixel_bytes>(row + x) + left) & 0xFF;
        store<pixel_bytes>(left, to + x);
    }
}

template <size_t pixel_bytes>
void undo_average(const uint8_t* row, const uint8_t* above, size_t row_bytes, uint8_t* to) {
    Pixel left = {};
    for (size_t x = 0; x < row_bytes; x += pixel_bytes) {
        left = (load<pixel_bytes>(row + x) + ((left + load<pixel_bytes>(above + x)) >> 1)) & 0xFF;
        store<pixel_bytes>(left, to + x);
    }
}

template <size_t pixel_bytes>
void undo_paeth(const uint8_t* row, const uint8_t* above, size_t row_bytes, uint8_t* to) {
    Pixel left = {}, corner = {};
    for (size_t x = 0; x < row_bytes; x += pixel_bytes) {
        const Pixel up = load<pixel_bytes>(above + x);
        const Pixel up_step = up - corner, left_step = left - corner;
        const Pixel to_left = magnitude(up_step);
        const Pixel to_up = magnitude(left_step);
        const Pixel to_corner = magnitude(up_step + left_step);
        const Pixel otherwise = to_up <= to_corner ? up : corner;
        const Pixel least = to_up < to_corner ? to_up : to_corner;
        left = (load<pixel_bytes>(row + x) + (to_left <= least ? left : otherwise)) & 0xFF;
        corner = up;
        store<pixel_bytes>(left, to + x);
    }
}

template <size_t pixel_bytes>
void undo(PngFilter filter, const uint8_t* row, const uint8_t* above, size_t row_bytes, uint8_t* to) {
    if (filter == PngFilter::sub) return undo_sub<pixel_bytes>(row, row_bytes, to);
    if (filter == PngFilter::average) return undo_average<pixel_bytes>(row, above, row_bytes, to);
    undo_paeth<pixel_bytes>(row, above, row_bytes, to);
}

// Samples of other sizes, byte by byte.
void undo_bytes(PngFilter filter, const uint8_t* row, const uint8_t* above, size_t row_bytes, size_t pixel_bytes,
                uint8_t* to) {
    for (size_t x = 0; x < row_bytes; ++x) {
        const int up = above[x];
        const int left = x < pixel_bytes ? 0 : to[x - pixel_bytes], corner = x < pixel_bytes ? 0 : above[x - pixel_bytes];
        int predicted = left;
        if (filter == PngFilter::average) predicted = (left + up) / 2;
        if (filter == PngFilter::paeth) {
            const int to_left = std::abs(up - corner), to_up = std::abs(left - corner);
            const int to_corner = std::abs(left + up - 2 * corner);
            if (to_left > to_up || to_left > to_corner) predicted = to_up <= to_corner ? up : corner;
        }
        to[x] = static_cast<uint8_t>(row[x] + predicted);
    }
}

}  // namespace

void unfilter_row(PngFilter filter, const uint8_t* row, const uint8_t* above, size_t row_bytes, size_t pixel_bytes,
                  uint8_t* to) {
    if (filter == PngFilter::none) {
        if (to != row) std::memcpy(to, row, row_bytes);
    } else if (filter == PngFilter::up) {
        for (size_t x = 0; x < row_bytes; ++x) to[x] = static_cast<uint8_t>(row[x] + above[x]);
    } else if (row_bytes % pixel_bytes != 0) {
        undo_bytes(filter, row, above, row_bytes, pixel_bytes, to);
    } else {
        switch (pixel_bytes) {
            case 1: return undo<1>(filter, row, above, row_bytes, to);
            case 2: return undo<2>(filter, row, above, row_bytes, to);
            case 3: return undo<3>(filter, row, above, row_bytes, to);
            case 4: return undo<4>(filter, row, above, row_bytes, to);
            default: return undo_bytes(filter, row, above, row_bytes, pixel_bytes, to);
        }
    }
}

size_t unfilter_png(ByteSpan rows, size_t height, size_t row_bytes, size_t pixel_bytes, uint8_t* out) {
    const std::vector<uint8_t> zeros(row_bytes, 0);
    const uint8_t* above = zeros.data();
    for (size_t y = 0; y < height; ++y) {
        const uint8_t* row = rows.data() + y * (1 + row_bytes) + 1;
        uint8_t* to = out + y * row_bytes;
        if (!is_png_filter(row[-1])) return y;
        unfilter_row(static_cast<PngFilter>(row[-1]), row, above, row_bytes, pixel_bytes, to);
        above = to;
    }
    return height;
}

}  // namespace feeder
