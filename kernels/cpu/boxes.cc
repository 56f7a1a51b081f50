#include "cpu/boxes.h"

#include <algorithm>
#include <cmath>

namespace feeder {
namespace {

// Narrows one axis of the support to what the filter really reads: an output pixel's center is at most `radius` from the
// outermost pixel with a weight. After Resize and CenterCrop that is far less than the whole image.
void narrow_axis(double reach, double source_begin, double source_end, int out_size, int& begin, int& end) {
    const double scale = (source_end - source_begin) / out_size;
    const double radius = reach * std::max(scale, 1.0);
    const double first = std::floor(source_begin + 0.5 * scale - radius) - 1;
    const double last = std::ceil(source_end - 0.5 * scale + radius) + 1;
    if (!(first < last)) return;  // an invalid source box: resample() refuses it
    const int narrow_begin = static_cast<int>(std::clamp(first, static_cast<double>(begin), static_cast<double>(end)));
    const int narrow_end = static_cast<int>(std::clamp(last, static_cast<double>(begin), static_cast<double>(end)));
    if (narrow_begin >= narrow_end) return;
    begin = narrow_begin;
    end = narrow_end;
}

}  // namespace

void narrow_support(ResizeFilter filter, const double source[4], int out_height, int out_width, int support[4]) {
    const double reach = reach_of(filter);
    narrow_axis(reach, source[0], source[2], out_width, support[0], support[2]);
    narrow_axis(reach, source[1], source[3], out_height, support[1], support[3]);
}

PixelBox stored_box(const int box[4], int orientation, int width, int height) {
    const int left = box[0], top = box[1], right = box[2], bottom = box[3];
    switch (orientation) {
        case 2:
            return {width - right, top, width - left, bottom};
        case 3:
            return {width - right, height - bottom, width - left, height - top};
        case 4:
            return {left, height - bottom, right, height - top};
        case 5:
            return {top, left, bottom, right};
        case 6:
            return {top, height - right, bottom, height - left};
        case 7:
            return {width - bottom, height - right, width - top, height - left};
        case 8:
            return {width - bottom, left, width - top, right};
        default:
            return {left, top, right, bottom};
    }
}

}  // namespace feeder
