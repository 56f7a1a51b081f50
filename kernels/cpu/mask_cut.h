// Masks cut by the numbers of their rows and columns.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

namespace feeder {

// A mask in memory; steps are in pixels, so that a transposed one needs no copy.
template <class T>
struct MaskView {
    const T* pixels;
    ptrdiff_t row_step;
    ptrdiff_t column_step;
};

// Writes out[y, x] = mask[rows[y], columns[x]], and `fill` where a number is negative. All numbers lie in the mask.
template <class T>
void cut_mask(MaskView<T> mask, std::span<const int64_t> rows, std::span<const int64_t> columns, T fill, T* out) {
    const size_t width = columns.size();
    std::vector<ptrdiff_t> places(width, 0);
    std::vector<size_t> outside;
    for (size_t x = 0; x < width; ++x) {
        if (columns[x] < 0)
            outside.push_back(x);
        else
            places[x] = columns[x] * mask.column_step;
    }
    for (size_t y = 0; y < rows.size(); ++y, out += width) {
        if (rows[y] < 0) {
            std::fill_n(out, width, fill);
        } else if (y > 0 && rows[y] == rows[y - 1]) {  // as often where a mask is enlarged
            std::copy_n(out - width, width, out);
        } else if (outside.size() == width) {  // the mask may have no column at all
            std::fill_n(out, width, fill);
        } else {
            const T* row = mask.pixels + rows[y] * mask.row_step;
            for (size_t x = 0; x < width; ++x) out[x] = row[places[x]];
            for (const size_t x : outside) out[x] = fill;
        }
    }
}

}  // namespace feeder
