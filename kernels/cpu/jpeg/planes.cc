#include "cpu/jpeg/planes.h"

#include <algorithm>

namespace feeder {
namespace {

int ceil_div(int a, int b) { return (a + b - 1) / b; }
int round_up(int value, int step) { return ceil_div(value, step) * step; }

}  // namespace

Outcome color_model(const JpegHeader& header, ColorModel& model) {
    const JpegComponent* c = header.component;
    switch (header.components) {
        case 1:
            model = ColorModel::gray;
            return {};
        case 3:
            model = ColorModel::ycbcr;
            if (header.jfif) return {};
            if (header.adobe_transform >= 0) {
                if (header.adobe_transform == 0) model = ColorModel::rgb;
            } else if (c[0].id == 'R' && c[1].id == 'G' && c[2].id == 'B') {
                model = ColorModel::rgb;
            }
            return {};
        case 4:
            model = header.adobe_transform <= 0 ? ColorModel::cmyk : ColorModel::ycck;
            return {};
        default:
            return {Status::unsupported, "JPEG: two components"};
    }
}

bool has_resizable_planes(const JpegHeader& header) {
    ColorModel color;
    if (!color_model(header, color).ok()) return false;
    if (color == ColorModel::cmyk || color == ColorModel::ycck) return false;
    for (int i = 0; i < header.components; ++i) {
        const int h = header.component[i].h, v = header.component[i].v;
        const bool divides = header.h_max % h == 0 && header.v_max % v == 0 && header.component[0].h % h == 0 &&
                             header.component[0].v % v == 0;
        const bool full = h == header.h_max && v == header.v_max;
        if (!(color == ColorModel::ycbcr ? divides : full)) return false;
    }
    return true;
}

PixelBox mcu_window(const JpegHeader& header, const PixelBox& box) {
    const int width_px = 8 * header.h_max;
    const int height_px = 8 * header.v_max;
    const int margin_x = header.components == 1 ? 0 : header.h_max;
    const int margin_y = header.components == 1 ? 0 : header.v_max;
    PixelBox window;
    window.left = std::max(0, box.left - margin_x) / width_px * width_px;
    window.top = std::max(0, box.top - margin_y) / height_px * height_px;
    window.right = std::min(header.width, round_up(std::min(header.width, box.right + margin_x), width_px));
    window.bottom = std::min(header.height, round_up(std::min(header.height, box.bottom + margin_y), height_px));
    return window;
}

Planes planes_of(const JpegHeader& header, const PixelBox& window, ColorModel color, int shrink) {
    Planes planes;
    planes.count = header.components;
    planes.h_max = shrink * header.h_max;
    planes.v_max = shrink * header.v_max;
    planes.origin_x = window.left;
    planes.origin_y = window.top;
    planes.window_width = window.right - window.left;
    planes.window_height = window.bottom - window.top;
    planes.image_width = header.width;
    planes.image_height = header.height;
    planes.color = color;
    planes.inverted = color == ColorModel::cmyk || color == ColorModel::ycck;
    for (int i = 0; i < header.components; ++i) {
        planes.h_factor[i] = header.component[i].h;
        planes.v_factor[i] = header.component[i].v;
        planes.plane[i].width = ceil_div(planes.window_width * planes.h_factor[i], planes.h_max);
        planes.plane[i].height = ceil_div(planes.window_height * planes.v_factor[i], planes.v_max);
    }
    return planes;
}

bool lay_out_planes(const JpegHeader& header, const PixelBox& window, ColorModel color, int shrink, Bytes& pixels,
                    Planes& planes) {
    planes = planes_of(header, window, color, shrink);
    const int block_px = 8 / shrink;
    const int mcu_columns = ceil_div(planes.window_width, 8 * header.h_max);
    const int mcu_rows = ceil_div(planes.window_height, 8 * header.v_max);
    size_t offset[4] = {};
    size_t total = 0;
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        Plane& plane = planes.plane[i];
        plane.stride_bytes = round_up(mcu_columns * component.h * block_px, 64);
        offset[i] = total;
        total += static_cast<size_t>(plane.stride_bytes) * static_cast<size_t>(mcu_rows * component.v * block_px);
    }
    if (!pixels.reserve(total + 64)) return false;
    pixels.set_size(total);
    for (int i = 0; i < header.components; ++i) planes.plane[i].data = pixels.data() + offset[i];
    return true;
}

PixelBox samples_of(const Planes& planes, int i, const PixelBox& box) {
    const int h = planes.h_factor[i], v = planes.v_factor[i];
    const int left = planes.origin_x * h / planes.h_max, top = planes.origin_y * v / planes.v_max;
    return {box.left * h / planes.h_max - left, box.top * v / planes.v_max - top,
            ceil_div(box.right * h, planes.h_max) - left, ceil_div(box.bottom * v, planes.v_max) - top};
}

}  // namespace feeder
