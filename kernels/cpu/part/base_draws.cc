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

// What feeder/transforms/recipe.py keeps of a sample while its ops are applied.
struct Base {
    BaseDraw& drawn;
    bool is_resized = false;

    void crop(const Crop& crop) {
        // A window chosen after a flip is counted from the other side.
        const int64_t left = drawn.flip ? drawn.width - crop.left - crop.width : crop.left;
        double* const box = drawn.source_box;
        const double scale_x = (box[2] - box[0]) / static_cast<double>(drawn.width);
        const double scale_y = (box[3] - box[1]) / static_cast<double>(drawn.height);
        const double x = box[0], y = box[1];
        box[0] = x + static_cast<double>(left) * scale_x;
        box[1] = y + static_cast<double>(crop.top) * scale_y;
        box[2] = x + static_cast<double>(left + crop.width) * scale_x;
        box[3] = y + static_cast<double>(crop.top + crop.height) * scale_y;
        drawn.height = crop.height;
        drawn.width = crop.width;
        if (is_resized) return;
        for (int side = 0; side < 4; ++side) drawn.support_box[side] = static_cast<int32_t>(std::nearbyint(box[side]));
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
    Base base{drawn};
    for (const DrawOp& op : ops) {
        Uniforms uniforms(seed, epoch, key, op.stream);
        switch (op.kind) {
            case DrawOp::Kind::random_resized_crop: {
                Crop crop{};
                if (!random_resized_crop(op, uniforms, drawn.height, drawn.width, crop)) return false;
                base.crop(crop);
                drawn.height = op.height;
                drawn.width = op.width;
                base.is_resized = true;
                break;
            }
            case DrawOp::Kind::random_crop:
                if (op.height > drawn.height || op.width > drawn.width) return false;
                base.crop({placed(uniforms(0), drawn.height - op.height), placed(uniforms(1), drawn.width - op.width),
                           op.height, op.width});
                break;
            case DrawOp::Kind::center_crop: {
                if (op.height > drawn.height || op.width > drawn.width) return false;
                const auto start = [](int64_t size, int64_t crop) {  // rounds half to even
                    return static_cast<int64_t>(std::nearbyint(static_cast<double>(size - crop) / 2.0));
                };
                base.crop({start(drawn.height, op.height), start(drawn.width, op.width), op.height, op.width});
                break;
            }
            case DrawOp::Kind::resize:
                resized(op, drawn.height, drawn.width);
                base.is_resized = true;
                break;
            case DrawOp::Kind::horizontal_flip:
                drawn.flip ^= uniforms(0) < op.p;
                break;
        }
    }
    return true;
}

}  // namespace feeder
