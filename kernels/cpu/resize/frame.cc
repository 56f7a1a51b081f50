#include "cpu/resize/frame.h"

#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>
#include <utility>

namespace feeder {
namespace {

[[noreturn]] void refuse(const char* what, const std::string& found) {
    throw std::invalid_argument(std::string(what) + "; found " + found);
}

std::string listed(std::initializer_list<double> values) {
    std::string text;
    for (const double value : values) {
        char number[32];
        std::snprintf(number, sizeof number, "%.10g", value);
        text += text.empty() ? number : std::string(", ") + number;
    }
    return text;
}

int plane_count(ColorModel color) {
    switch (color) {
        case ColorModel::gray: return 1;
        case ColorModel::ycbcr:
        case ColorModel::rgb: return 3;
        case ColorModel::cmyk:
        case ColorModel::ycck: return 4;
    }
    return 0;
}

}  // namespace

Frame frame_of(const Planes& planes, int orientation) {
    Frame frame{orientation >= 5,
                orientation == 2 || orientation == 3 || orientation == 6 || orientation == 7,
                orientation == 3 || orientation == 4 || orientation == 7 || orientation == 8,
                planes.image_width, planes.image_height, planes.origin_x, planes.origin_y,
                planes.window_width, planes.window_height};
    if (frame.transposed) {
        std::swap(frame.image_width, frame.image_height);
        std::swap(frame.origin_x, frame.origin_y);
        std::swap(frame.window_width, frame.window_height);
    }
    return frame;
}

void check_planes(const Planes& planes) {
    if (planes.count != plane_count(planes.color))
        refuse("expected 1 plane for gray, 3 for ycbcr and rgb, 4 for cmyk and ycck", std::to_string(planes.count));
    if (planes.image_width < 1 || planes.image_height < 1 || planes.origin_x < 0 || planes.origin_y < 0 ||
        planes.window_width < 1 || planes.window_height < 1 || planes.window_width > planes.image_width ||
        planes.window_height > planes.image_height || planes.origin_x > planes.image_width - planes.window_width ||
        planes.origin_y > planes.image_height - planes.window_height)
        refuse("expected a window inside the image",
               listed({double(planes.origin_x), double(planes.origin_y), double(planes.window_width),
                       double(planes.window_height)}) +
                   " in " + listed({double(planes.image_width), double(planes.image_height)}));
    for (int i = 0; i < planes.count; ++i) {
        const Plane& plane = planes.plane[i];
        const int h = planes.h_factor[i], v = planes.v_factor[i];
        if (h < 1 || v < 1 || planes.h_max % h || planes.v_max % v || planes.h_max < h || planes.v_max < v ||
            planes.h_max > 256 || planes.v_max > 256 || planes.h_factor[0] % h || planes.v_factor[0] % v)
            refuse("expected sampling factors that divide the greatest and the first plane's",
                   listed({double(h), double(v), double(planes.h_max), double(planes.v_max)}));
        const int columns = planes.h_max / h, rows = planes.v_max / v;
        const bool scaled = planes.count < 4 && h == planes.h_factor[0] && v == planes.v_factor[0];
        if (planes.color != ColorModel::ycbcr && (columns != 1 || rows != 1) && !scaled)
            refuse("expected planes of one resolution for gray and rgb, of full resolution for cmyk and ycck",
                   listed({double(columns), double(rows)}));
        if (planes.origin_x % columns || planes.origin_y % rows)
            refuse("expected a window that starts at a whole sample of each plane",
                   listed({double(planes.origin_x), double(planes.origin_y)}));
        if (plane.data == nullptr || plane.step_bytes < 1 ||
            plane.width < (planes.window_width + columns - 1) / columns ||
            plane.height < (planes.window_height + rows - 1) / rows)
            refuse("expected planes that cover the window", listed({double(plane.width), double(plane.height)}));
    }
}

void check_boxes(const Frame& frame, const double source[4], const int support[4], int orientation) {
    if (orientation < 1 || orientation > 8) refuse("expected an EXIF orientation of 1-8", std::to_string(orientation));
    // The window in upright coordinates.
    const int left = frame.mirrored_x ? frame.image_width - frame.origin_x - frame.window_width : frame.origin_x;
    const int top = frame.mirrored_y ? frame.image_height - frame.origin_y - frame.window_height : frame.origin_y;
    const auto ints = [](const int box[4]) {
        return listed({double(box[0]), double(box[1]), double(box[2]), double(box[3])});
    };
    if (support[0] < left || support[1] < top || support[2] > left + frame.window_width ||
        support[3] > top + frame.window_height || support[0] >= support[2] || support[1] >= support[3])
        refuse("expected a support box inside the decoded window", ints(support));
    // Fractional boxes are computed: a box that ends on the support's edge may be beside it by a rounding error.
    constexpr double slack = 1e-3;
    const bool inside = source[0] >= support[0] - slack && source[1] >= support[1] - slack &&
                        source[2] <= support[2] + slack && source[3] <= support[3] + slack;
    if (!inside || !(source[2] - source[0] > 1e-6) || !(source[3] - source[1] > 1e-6))
        refuse("expected a source box with an area, inside the support box",
               listed({source[0], source[1], source[2], source[3]}) + " in " + ints(support));
}

void check_output(const Output& out) {
    if (out.data == nullptr || out.height < 1 || out.width < 1 || out.height > 1 << 16 || out.width > 1 << 16)
        refuse("expected an output of 1-65536 rows and columns", listed({double(out.height), double(out.width)}));
    if (out.dtype == Dtype::uint8 && (out.scale || out.bias)) refuse("expected no scale or bias for uint8", "some");
    if ((out.scale == nullptr) != (out.bias == nullptr)) refuse("expected scale and bias, or neither", "one");
    for (int i = 0; i < 3 && out.scale; ++i)
        if (!std::isfinite(out.scale[i]) || !std::isfinite(out.bias[i]))
            refuse("expected finite scale and bias", listed({out.scale[i], out.bias[i]}));
}

}  // namespace feeder
