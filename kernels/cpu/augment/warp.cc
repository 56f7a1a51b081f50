#include "cpu/augment/warp.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

namespace feeder {
namespace {

// The pixel at a coordinate; -1 outside.
int place_of(double at, int length) { return at >= 0.0 && at < length ? static_cast<int>(at) : -1; }

uint8_t fill_of(uint32_t fill, int channel) { return static_cast<uint8_t>(fill >> 8 * channel); }

}  // namespace

bool fixed_places(const double map[6], int height, int width, int32_t place[6]) {
    for (int corner = 0; corner < 4; ++corner) {
        const double x = corner & 1 ? width : 0, y = corner & 2 ? height : 0;
        if (std::fabs(x * map[0] + y * map[1] + map[2]) >= 32768.0) return false;
        if (std::fabs(x * map[3] + y * map[4] + map[5]) >= 32768.0) return false;
    }
    const double moved[6] = {map[0], map[1], map[2] + map[0] * 0.5 + map[1] * 0.5,
                             map[3], map[4], map[5] + map[3] * 0.5 + map[4] * 0.5};
    for (int i = 0; i < 6; ++i) place[i] = static_cast<int32_t>(static_cast<int64_t>(std::floor(moved[i] * 65536.0 + 0.5)));
    return true;
}

void warp_straight(const WarpSource& source, const double map[6], uint32_t fill, uint8_t* const rgb[3]) {
    const int height = source.height, width = source.width;
    std::vector<int> columns(static_cast<size_t>(width));
    double at = map[2] + map[0] * 0.5;
    int begin = width, end = 0;
    bool is_run = true;
    for (int x = 0; x < width; ++x, at += map[0]) {
        const int column = columns[static_cast<size_t>(x)] = place_of(at, width);
        if (column < 0) continue;
        begin = std::min(begin, x);
        is_run = is_run && (x == begin || column == columns[static_cast<size_t>(x) - 1] + 1);
        end = x + 1;
    }
    at = map[5] + map[4] * 0.5;
    for (int y = 0; y < height; ++y, at += map[4]) {
        const int row = place_of(at, height);
        for (int c = 0; c < 3; ++c) {
            uint8_t* const to = rgb[c] + ptrdiff_t{y} * width;
            const uint8_t* const from = source.rgb[c] + ptrdiff_t{row} * width;
            if (row < 0 || begin > 0 || end < width) std::memset(to, fill_of(fill, c), static_cast<size_t>(width));
            if (row < 0 || begin >= end) continue;
            if (is_run) {
                std::memcpy(to + begin, from + columns[static_cast<size_t>(begin)], static_cast<size_t>(end - begin));
                continue;
            }
            for (int x = begin; x < end; ++x) to[x] = from[columns[static_cast<size_t>(x)]];
        }
    }
}

void warp_stepwise(const WarpSource& source, const double map[6], uint32_t fill, uint8_t* const rgb[3]) {
    double row_x = map[2] + map[1] * 0.5 + map[0] * 0.5, row_y = map[5] + map[4] * 0.5 + map[3] * 0.5;
    size_t to = 0;
    for (int y = 0; y < source.height; ++y, row_x += map[1], row_y += map[4]) {
        double from_x = row_x, from_y = row_y;
        for (int x = 0; x < source.width; ++x, ++to, from_x += map[0], from_y += map[3]) {
            const int column = place_of(from_x, source.width), row = place_of(from_y, source.height);
            for (int c = 0; c < 3; ++c)
                rgb[c][to] = column < 0 || row < 0 ? fill_of(fill, c) : source.rgb[c][ptrdiff_t{row} * source.width + column];
        }
    }
}

void warp_perspective(const WarpSource& source, const double map[8], uint32_t fill, uint8_t* const rgb[3]) {
    size_t to = 0;
    for (int y = 0; y < source.height; ++y) {
        for (int x = 0; x < source.width; ++x, ++to) {
            const double x_in = x + 0.5, y_in = y + 0.5, distance = map[6] * x_in + map[7] * y_in + 1;
            const int column = place_of((map[0] * x_in + map[1] * y_in + map[2]) / distance, source.width);
            const int row = place_of((map[3] * x_in + map[4] * y_in + map[5]) / distance, source.height);
            for (int c = 0; c < 3; ++c)
                rgb[c][to] = column < 0 || row < 0 ? fill_of(fill, c) : source.rgb[c][ptrdiff_t{row} * source.width + column];
        }
    }
}

}  // namespace feeder
