#include "cpu/part/base_draws.h"

#include <algorithm>
#include <cmath>

#include "cpu/part/philox.h"

namespace feeder {
namespace {

constexpr uint32_t kAttempts = 10;
constexpr double kDoubt = 0x1p-44;  // hundreds of times the relative error of any exp()
constexpr double kMostSide = 0x1p31;

struct Crop {
    int64_t top, left, height, width;
};

enum class Fit { yes, no, undecided };

Fit rounded(double side, int64_t& pixels) {
    if (!(side < kMostSide)) return Fit::undecided;
    if (std::abs(side - std::floor(side) - 0.5) <= side * kDoubt) return Fit::undecided;
    pixels = static_cast<int64_t>(std::nearbyint(side));
    return Fit::yes;
}

Fit attempt(const DrawOp& op, int64_t height, int64_t width, double first, double second, Crop& crop) {
    const double area = static_cast<double>(height * width) * (op.scale[0] + first * (op.scale[1] - op.scale[0]));
    const double aspect = std::exp(op.log_ratio[0] + second * (op.log_ratio[1] - op.log_ratio[0]));
    if (rounded(std::sqrt(area * aspect), crop.width) == Fit::undecided ||
        rounded(std::sqrt(area / aspect), crop.height) == Fit::undecided)
        return Fit::undecided;
    return crop.width > 0 && crop.width <= width && crop.height > 0 && crop.height <= height ? Fit::yes : Fit::no;
}

int64_t placed(double uniform, int64_t slack) {
    return static_cast<int64_t>(std::floor(uniform * static_cast<double>(slack + 1)));
}

// As torchvision's RandomResizedCrop.make_params: ten attempts, then a central crop. Numbers 0 and 1 place the crop.
bool random_resized_crop(const DrawOp& op, Uniforms& uniforms, int64_t height, int64_t width, Crop& crop) {
    for (uint32_t k = 0; k < kAttempts; ++k) {
        const Fit fit = attempt(op, height, width, uniforms(2 + 2 * k), uniforms(3 + 2 * k), crop);
        if (fit == Fit::undecided) return false;
        if (fit == Fit::no) continue;
        crop.top = placed(uniforms(0), height - crop.height);
        crop.left = placed(uniforms(1), width - crop.width);
        return true;
    }
    const double h = static_cast<double>(height), w = static_cast<double>(width), ratio = w / h;
    const double narrow = std::nearbyint(w / op.ratio[0]), wide = std::nearbyint(h * op.ratio[1]);
    if ((ratio < op.ratio[0] && !(narrow < kMostSide)) || (ratio > op.ratio[1] && !(wide < kMostSide))) return false;
    crop.height = std::max<int64_t>(ratio < op.ratio[0] ? static_cast<int64_t>(narrow) : height, 1);
    crop.width = std::max<int64_t>(ratio > op.ratio[1] ? static_cast<int64_t>(wide) : width, 1);
    crop.top = (height - crop.height) >> 1;
    crop.left = (width - crop.width) >> 1;
    return true;
}

// Division as numpy's `/` of integers, cut off.
int64_t scaled(int64_t side, int64_t other, int64_t by) {
    return static_cast<int64_t>(static_cast<double>(side * other) / static_cast<double>(by));
}

void resized(const DrawOp& op, int64_t& height, int64_t& width) {
    const int64_t h = height, w = width;
    if (op.side == DrawOp::Side::both) {
        height = op.height, width = op.width;
        return;
    }
    if (op.side == DrawOp::Side::cover) {
        const bool from_height = op.height * w >= op.width * h;
        height = from_height ? op.height : op.width * h / w;
        width = from_height ? op.height * w / h : op.width;
        return;
    }
    const int64_t shorter = std::min(h, w), longer = std::max(h, w);
    int64_t new_shorter, new_longer;
    if (op.side == DrawOp::Side::longer) {
        new_longer = op.most;
        new_shorter = scaled(new_longer, shorter, longer);
    } else {
        new_shorter = op.height;
        new_longer = scaled(new_shorter, longer, shorter);
        if (op.most != 0 && new_longer > op.most) {
            new_shorter = scaled(op.most, new_shorter, new_longer);
            new_longer = op.most;
        }
    }
    height = std::max<int64_t>(w <= h ? new_longer : new_shorter, 1);
    width = std::max<int64_t>(w <= h ? new_shorter : new_longer, 1);
}

// A part of an axis.
struct Range {
    int64_t start, size;

    // Crops to a window, or to the pixel next to it where they do not overlap; returns what is cropped off its start.
    int64_t crop(int64_t from, int64_t length, bool& is_hidden) {
        is_hidden |= from >= start + size || from + length <= start;
        const int64_t begin = std::clamp(from, start, start + size - 1);
        const int64_t end = std::clamp(from + length, begin + 1, start + size);
        const int64_t off = begin - start;
        *this = {begin - from, end - begin};
        return off;
    }
};

// What feeder/transforms/recipe.py keeps of a sample while its ops are applied.
struct Base {
    BaseDraw& drawn;
    Range x, y;  // the image's in the output
    bool is_resized = false;
    bool is_hidden = false;  // outside the output

    void crop(const Crop& crop) {
        const Range whole_x = x, whole_y = y;
        int64_t left = x.crop(crop.left, crop.width, is_hidden);
        const int64_t top = y.crop(crop.top, crop.height, is_hidden);
        // A window chosen after a flip is counted from the other side.
        if (drawn.flip) left = whole_x.size - left - x.size;
        double* const box = drawn.source_box;
        const double scale_x = (box[2] - box[0]) / static_cast<double>(whole_x.size);
        const double scale_y = (box[3] - box[1]) / static_cast<double>(whole_y.size);
        const double origin_x = box[0], origin_y = box[1];
        box[0] = origin_x + static_cast<double>(left) * scale_x;
        box[1] = origin_y + static_cast<double>(top) * scale_y;
        box[2] = origin_x + static_cast<double>(left + x.size) * scale_x;
        box[3] = origin_y + static_cast<double>(top + y.size) * scale_y;
        drawn.height = crop.height;
        drawn.width = crop.width;
        if (is_resized) return;
        for (int side = 0; side < 4; ++side) drawn.support_box[side] = static_cast<int32_t>(std::nearbyint(box[side]));
    }

    void pad(const int64_t padding[4]) {
        x.start += padding[0];
        y.start += padding[1];
        drawn.width += padding[0] + padding[2];
        drawn.height += padding[1] + padding[3];
    }

    void resize(int64_t height, int64_t width) {
        drawn.height = height, drawn.width = width;
        x = {0, width}, y = {0, height};
        is_resized = true;
    }

    void letterbox(const DrawOp& op) {
        const double scale = std::min(static_cast<double>(op.height) / static_cast<double>(drawn.height),
                                      static_cast<double>(op.width) / static_cast<double>(drawn.width));
        const auto scaled = [scale](int64_t side) {
            return std::max<int64_t>(static_cast<int64_t>(std::nearbyint(static_cast<double>(side) * scale)), 1);
        };
        resize(scaled(drawn.height), scaled(drawn.width));
        x.start = (op.width - x.size) >> 1, y.start = (op.height - y.size) >> 1;
        drawn.height = op.height, drawn.width = op.width;
    }
};

}  // namespace

bool draw_base(std::span<const DrawOp> ops, uint64_t seed, uint32_t epoch, uint64_t key, int64_t height, int64_t width,
               BaseDraw& drawn) {
    drawn = {};
    drawn.height = height;
    drawn.width = width;
    drawn.source_box[2] = static_cast<double>(width);
    drawn.source_box[3] = static_cast<double>(height);
    drawn.support_box[2] = static_cast<int32_t>(width);
    drawn.support_box[3] = static_cast<int32_t>(height);
    Base base{drawn, {0, width}, {0, height}};
    for (const DrawOp& op : ops) {
        Uniforms uniforms(seed, epoch, key, op.stream);
        switch (op.kind) {
            case DrawOp::Kind::random_resized_crop: {
                Crop crop{};
                if (!random_resized_crop(op, uniforms, drawn.height, drawn.width, crop)) return false;
                base.crop(crop);
                base.resize(op.height, op.width);
                break;
            }
            case DrawOp::Kind::random_crop:
                base.pad(op.padding);
                if (op.pads_if_needed) {
                    const int64_t rows = std::max<int64_t>(op.height - drawn.height, 0);
                    const int64_t columns = std::max<int64_t>(op.width - drawn.width, 0);
                    const int64_t missing[4] = {columns, rows, columns, rows};
                    base.pad(missing);
                }
                if (op.height > drawn.height || op.width > drawn.width) return false;
                base.crop({placed(uniforms(0), drawn.height - op.height), placed(uniforms(1), drawn.width - op.width),
                           op.height, op.width});
                break;
            case DrawOp::Kind::center_crop: {
                const auto start = [](int64_t size, int64_t crop) {  // rounds half to even, or pads by the lower half
                    if (crop > size) return -((crop - size) >> 1);
                    return static_cast<int64_t>(std::nearbyint(static_cast<double>(size - crop) / 2.0));
                };
                base.crop({start(drawn.height, op.height), start(drawn.width, op.width), op.height, op.width});
                break;
            }
            case DrawOp::Kind::resize:
                resized(op, drawn.height, drawn.width);
                base.resize(drawn.height, drawn.width);
                break;
            case DrawOp::Kind::horizontal_flip:
                if (!(uniforms(0) < op.p)) break;
                drawn.flip = !drawn.flip;
                base.x.start = drawn.width - base.x.start - base.x.size;
                break;
            case DrawOp::Kind::pad: base.pad(op.padding); break;
            case DrawOp::Kind::letterbox: base.letterbox(op); break;
        }
    }
    const int64_t frame[4] = {base.x.start, base.y.start, base.x.size, base.y.size};
    if (!base.is_hidden) std::copy_n(frame, 4, drawn.frame);
    return true;
}

}  // namespace feeder
