#include "cpu/augment/program.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <new>
#include <stdexcept>
#include <utility>

#include "cpu/augment/kernels.h"
#include "cpu/augment/warp.h"
#include "cpu/jpeg/compress.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"

namespace feeder {
namespace {

constexpr double kLeastTap = 1e-5;  // of the whole kernel: smaller ones change next to nothing

void identity(uint8_t table[256]) {
    for (int i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(i);
}

float factor_of(double value) { return std::min(static_cast<float>(value), kMostFactor); }

// Pillow's blend of a constant and the image.
void blend_table(int base, float factor, uint8_t table[256]) {
    for (int i = 0; i < 256; ++i) {
        const float change = factor * static_cast<float>(i - base);
        const float value = static_cast<float>(base) + change;
        table[i] = value <= 0.0f ? uint8_t{0} : value >= 255.0f ? uint8_t{255} : static_cast<uint8_t>(value);
    }
    if (factor == 1.0f) identity(table);
}

// Several counts in turn, so that equal neighbours do not wait for each other.
void histogram(const uint8_t* samples, size_t n, uint32_t counts[256]) {
    constexpr size_t kTables = 4;
    uint32_t table[kTables][256] = {};
    size_t i = 0;
    for (; i + 8 <= n; i += 8) {
        uint64_t eight;
        std::memcpy(&eight, samples + i, sizeof eight);
        for (size_t k = 0; k < 8; ++k) ++table[k % kTables][eight >> 8 * k & 255];
    }
    for (; i < n; ++i) ++table[0][samples[i]];
    for (int v = 0; v < 256; ++v) counts[v] = table[0][v] + table[1][v] + table[2][v] + table[3][v];
}

void equalize_table(const uint32_t counts[256], size_t n, uint8_t table[256]) {
    int used = 0;
    uint32_t last = 0;
    for (int i = 0; i < 256; ++i)
        if (counts[i] > 0) ++used, last = counts[i];
    const size_t step = (n - last) / 255;
    if (used <= 1 || step == 0) return identity(table);
    size_t below = step / 2;
    for (int i = 0; i < 256; ++i) {
        table[i] = static_cast<uint8_t>(std::min<size_t>(255, below / step));
        below += counts[i];
    }
}

BlurTaps taps_of(int size, double sigma) {
    const int half = size / 2;
    double weight[kMostTaps / 2 + 1] = {}, sum = 0;
    const double limit = (size - 1) / (2.0 * std::sqrt(2.0));
    for (int i = 0; i <= half; ++i) {
        const double x = half > 0 ? limit * i / half / sigma : 0.0;
        weight[i] = std::exp(-x * x);
        sum += i > 0 ? 2 * weight[i] : weight[i];
    }
    BlurTaps taps{};
    taps.radius = half;
    while (taps.radius > 0 && weight[taps.radius] / sum < kLeastTap) --taps.radius;
    taps.bits = weight[0] / sum < 0.99 ? 15 : 14;  // int16 holds it
    int rest = 1 << taps.bits;
    for (int i = 1; i <= taps.radius; ++i) {
        taps.weight[i] = static_cast<int16_t>(std::lrint(weight[i] / sum * (1 << taps.bits)));
        rest -= 2 * taps.weight[i];
    }
    taps.weight[0] = static_cast<int16_t>(rest);
    return taps;
}

bool is_whole(double value, double least, double most) {
    return value >= least && value <= most && value == std::floor(value);
}

bool is_key(const double* value) { return is_whole(value[0], 0, UINT32_MAX) && is_whole(value[1], 0, UINT32_MAX); }

uint64_t key_of(const double* value) { return static_cast<uint64_t>(value[0]) << 32 | static_cast<uint64_t>(value[1]); }

bool has_fill_and_filter(const double* value) {
    return is_whole(value[0], 0, 0xffffff) && is_whole(value[1], 0, static_cast<int>(WarpFilter::count) - 1);
}

// Finite values, too, which the caller has checked.
const char* step_fault(const AugmentStep& step, int height, int width) {
    const double* const v = step.value;
    switch (step.kind()) {
        case AugmentOp::brightness:
        case AugmentOp::contrast:
        case AugmentOp::saturation:
        case AugmentOp::sharpness: return v[0] >= 0 ? nullptr : "a factor is negative";
        case AugmentOp::hue: return is_whole(v[0], 0, 255) ? nullptr : "a hue's shift is not 0-255";
        case AugmentOp::jpeg: return is_whole(v[0], 1, 100) ? nullptr : "a JPEG's quality is not 1-100";
        case AugmentOp::posterize: return is_whole(v[0], 0, 8) ? nullptr : "bits kept are not 0-8";
        case AugmentOp::mix_start:
        case AugmentOp::mix_add: return v[0] >= 0 && v[0] <= 1 ? nullptr : "a weight is not 0-1";
        case AugmentOp::solarize_add: return is_whole(v[0], 0, 255) ? nullptr : "levels to add are not 0-255";
        case AugmentOp::affine: return has_fill_and_filter(v + 6) ? nullptr : "a warp's fill or filter is unknown";
        case AugmentOp::perspective: return has_fill_and_filter(v + 8) ? nullptr : "a warp's fill or filter is unknown";
        case AugmentOp::blur:
            return is_whole(v[0], 1, kMostTaps) && is_whole(v[1], 1, kMostTaps) && static_cast<int>(v[0]) % 2 == 1 &&
                           static_cast<int>(v[1]) % 2 == 1 && v[2] > 0
                       ? nullptr
                       : "a blur has a kernel of other than 1, 3, ... 63 pixels, or no sigma above 0";
        case AugmentOp::permute:
            return std::all_of(v, v + 3, [](double channel) { return is_whole(channel, 0, 2); }) && v[0] != v[1] &&
                           v[0] != v[2] && v[1] != v[2]
                       ? nullptr
                       : "channels are not 0, 1 and 2 in some order";
        case AugmentOp::add_noise:
            return is_key(v) && std::fabs(v[2]) <= kMostNoise && v[3] >= 0 && v[3] <= kMostNoise && is_whole(v[4], 0, 1)
                       ? nullptr
                       : "noise has a wrong key, or a mean or deviation outside its range";
        case AugmentOp::erase:
            if (std::any_of(v + 4, v + 7, [](double color) { return !is_whole(color, 0, 255); }))
                return "an erased rectangle's color is not 0-255";
            [[fallthrough]];
        case AugmentOp::erase_noise:
            if (step.kind() == AugmentOp::erase_noise && !(is_key(v + 4) && is_whole(v[6], 0, 1)))
                return "a key's half is not of 32 bits, or a mirror neither 0 nor 1";
            [[fallthrough]];
        case AugmentOp::erase_output:
            return is_whole(v[0], 0, height) && is_whole(v[1], 0, width) && is_whole(v[2], 0, height - v[0]) &&
                           is_whole(v[3], 0, width - v[1])
                       ? nullptr
                       : "an erased rectangle is not in the image";
        default: return nullptr;
    }
}

// The number of elements from a row to the next, and from a channel.
struct Strides {
    size_t row, channel;
    explicit Strides(const Output& out)
        : row(out.row_elements ? out.row_elements : static_cast<size_t>(out.width)),
          channel(out.row_elements ? out.channel_elements : row * static_cast<size_t>(out.height)) {}
};

template <typename T>
void fill_rectangle(const Output& out, const double* value, const T rgb[3]) {
    const size_t top = static_cast<size_t>(value[0]), left = static_cast<size_t>(value[1]);
    const size_t height = static_cast<size_t>(value[2]), width = static_cast<size_t>(value[3]);
    const size_t all = static_cast<size_t>(out.width);
    const Strides strides(out);
    T* const data = static_cast<T*>(out.data);
    for (size_t y = top; y < top + height; ++y) {
        if (out.layout == Layout::nhwc) {
            for (size_t x = left; x < left + width; ++x) std::copy_n(rgb, 3, data + 3 * (y * all + x));
            continue;
        }
        for (size_t c = 0; c < static_cast<size_t>(out.channels); ++c) std::fill_n(data + c * strides.channel + y * strides.row + left, width, rgb[c]);
    }
}

// Floats in the output's dtype, by the kernels' own rounding.
void round_floats(const float* values, size_t n, Dtype dtype, void* out) {
    if (dtype == Dtype::float32) {
        std::memcpy(out, values, n * sizeof(float));
        return;
    }
    if (dtype == Dtype::uint8) {
        for (size_t i = 0; i < n; ++i)  // 0 for no number
            static_cast<uint8_t*>(out)[i] = static_cast<uint8_t>(values[i] > 0.0f ? std::min(values[i], 255.0f) : 0.0f);
        return;
    }
    const auto& affine = dtype == Dtype::float16 ? pixel_kernels().affine_float16 : pixel_kernels().affine_bfloat16;
    const uint8_t samples[kRowPadding] = {};
    const float scale[kPatternMemory] = {};
    float bias[kPatternMemory] = {};
    for (size_t i = 0; i < n; i += kPattern) {
        const size_t count = std::min<size_t>(kPattern, n - i);
        std::copy_n(values + i, count, bias);
        affine(samples, static_cast<int>(count), scale, bias, static_cast<uint16_t*>(out) + i);
    }
}

// Writes numbers of the key, which count the rectangle's elements from channel to channel and from row to row.
void fill_noise(const Output& out, const double* value) {
    const size_t top = static_cast<size_t>(value[0]), left = static_cast<size_t>(value[1]);
    const size_t height = static_cast<size_t>(value[2]), width = static_cast<size_t>(value[3]);
    if (width == 0) return;
    const Strides strides(out);
    const size_t bytes = dtype_bytes(out.dtype), all = static_cast<size_t>(out.width);
    std::vector<float> numbers(width + kNumberPadding);
    std::vector<uint8_t> row(width * bytes);
    for (size_t i = 0; i < static_cast<size_t>(out.channels) * height; ++i) {
        augment_kernels().normal(key_of(value + 4), i * width, width, numbers.data());
        if (value[6] != 0) std::reverse(numbers.begin(), numbers.begin() + static_cast<ptrdiff_t>(width));
        round_floats(numbers.data(), width, out.dtype, row.data());
        const size_t c = i / height, y = top + i % height;
        uint8_t* const data = static_cast<uint8_t*>(out.data);
        if (out.layout == Layout::nchw) {
            std::memcpy(data + (c * strides.channel + y * strides.row + left) * bytes, row.data(), row.size());
            continue;
        }
        for (size_t x = 0; x < width; ++x)
            std::memcpy(data + (3 * (y * all + left + x) + c) * bytes, row.data() + x * bytes, bytes);
    }
}

}  // namespace

const char* program_fault(Program program, int height, int width) {
    bool is_mixing = false;
    for (const AugmentStep& step : program) {
        if (!is_whole(step.op, 0, static_cast<int>(AugmentOp::count) - 1)) return "an op has an unknown number";
        // Floats may be erased with any value.
        const int checked = step.kind() == AugmentOp::erase_output ? 4 : 11;
        const bool finite = std::all_of(step.value, step.value + checked, [](double v) { return std::isfinite(v); });
        if (!finite) return "an op's value is not finite";
        if (const char* fault = step_fault(step, height, width)) return fault;
        is_mixing = is_mixing || step.kind() == AugmentOp::mix_start;
        if (!is_mixing && (step.kind() == AugmentOp::mix_add || step.kind() == AugmentOp::mix_finish))
            return "a part is mixed before the first";
    }
    return nullptr;
}

bool changes_pixels(Program program) {
    return std::any_of(program.begin(), program.end(), [](const AugmentStep& step) {
        return step.kind() != AugmentOp::nothing && step.kind() < AugmentOp::erase_output;
    });
}

void erase_output(Program program, const Output& out) {
    for (const AugmentStep& step : program) {
        if (step.kind() == AugmentOp::erase_noise) fill_noise(out, step.value);
        if (step.kind() != AugmentOp::erase_output) continue;
        uint16_t halves[3] = {};
        uint8_t bytes[3] = {};
        float floats[3] = {};
        for (int c = 0; c < 3; ++c) {
            const double given = step.value[4 + c];
            floats[c] = std::isnan(given) ? std::nanf("") : static_cast<float>(given);  // of one kind at all levels
        }
        if (out.dtype == Dtype::uint8) round_floats(floats, 3, out.dtype, bytes);
        else if (out.dtype != Dtype::float32) round_floats(floats, 3, out.dtype, halves);
        switch (out.dtype) {
            case Dtype::uint8: fill_rectangle(out, step.value, bytes); break;
            case Dtype::float32: fill_rectangle(out, step.value, floats); break;
            default: fill_rectangle(out, step.value, halves); break;
        }
    }
}

Output Augmenter::image(int height, int width) {
    height_ = height;
    width_ = width;
    has_table_ = false;
    const size_t plane = (area() + 63) / 64 * 64 + kPlanePadding;
    for (int i = 0; i < 2; ++i) {
        const size_t before = memory_[i].capacity();
        if (!memory_[i].reserve(kPlanePadding + 3 * plane)) throw std::bad_alloc();
        // The kernels read padding, though they do not use it.
        std::memset(memory_[i].data() + before, 0, memory_[i].capacity() - before);
        for (size_t c = 0; c < 3; ++c) (i == 0 ? rgb_ : other_)[c] = memory_[i].data() + kPlanePadding + c * plane;
    }
    Output output;
    output.data = rgb_[0];
    output.height = height;
    output.width = width;
    output.row_elements = static_cast<size_t>(width);
    output.channel_elements = plane;
    return output;
}

void Augmenter::run(Program program) {
    for (const AugmentStep& each : program) step(each);
    finish_table();
}

void Augmenter::store(const Output& out) const {
    RowStore rows(out, pixel_kernels());
    for (int y = 0; y < height_; y += kLanes) {
        const size_t at = static_cast<size_t>(y) * static_cast<size_t>(width_);
        const uint8_t* const from[3] = {rgb_[0] + at, rgb_[1] + at, rgb_[2] + at};
        rows.rows(y, std::min(kLanes, height_ - y), from, width_);
    }
}

void Augmenter::step(const AugmentStep& step) {
    const double* const v = step.value;
    uint8_t table[256];
    const auto look_up_each = [&](const auto& value_of) {
        for (int i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(value_of(i));
        add_table(table);
    };
    switch (step.kind()) {
        case AugmentOp::mirror:
            for (uint8_t* plane : rgb_)
                for (int y = 0; y < height_; ++y) std::reverse(plane + ptrdiff_t{y} * width_, plane + ptrdiff_t{y + 1} * width_);
            break;
        case AugmentOp::flip:
            for (uint8_t* plane : rgb_)
                for (int y = 0; y < height_ / 2; ++y)
                    std::swap_ranges(plane + ptrdiff_t{y} * width_, plane + ptrdiff_t{y + 1} * width_,
                                     plane + ptrdiff_t{height_ - 1 - y} * width_);
            break;
        case AugmentOp::grayscale:
            finish_table();
            augment_kernels().grayscale(rgb_, area());
            break;
        case AugmentOp::brightness:
            blend_table(0, factor_of(v[0]), table);
            add_table(table);
            break;
        case AugmentOp::contrast: contrast(factor_of(v[0])); break;
        case AugmentOp::saturation:
            augment_kernels().saturate(rgb_, area(), has_table_ ? table_ : nullptr, factor_of(v[0]));
            has_table_ = false;
            break;
        case AugmentOp::hue:
            finish_table();
            augment_kernels().shift_hue(rgb_, area(), static_cast<int>(v[0]));
            break;
        case AugmentOp::sharpness: sharpen(factor_of(v[0])); break;
        case AugmentOp::jpeg: compress(static_cast<int>(v[0])); break;
        case AugmentOp::posterize: look_up_each([&](int i) { return i & (0xff00 >> static_cast<int>(v[0])); }); break;
        case AugmentOp::solarize: look_up_each([&](int i) { return i < v[0] ? i : 255 - i; }); break;
        case AugmentOp::solarize_add: look_up_each([&](int i) { return i < 128 ? std::min(255, i + static_cast<int>(v[0])) : i; }); break;
        case AugmentOp::autocontrast: autocontrast(); break;
        case AugmentOp::equalize: equalize(); break;
        case AugmentOp::invert: look_up_each([](int i) { return 255 - i; }); break;
        case AugmentOp::affine:
        case AugmentOp::perspective: warp(step); break;
        case AugmentOp::blur: blur(static_cast<int>(v[0]), static_cast<int>(v[1]), v[2]); break;
        case AugmentOp::permute: {
            uint8_t* const from[3] = {rgb_[0], rgb_[1], rgb_[2]};
            for (int c = 0; c < 3; ++c) rgb_[c] = from[static_cast<int>(v[c])];
            break;
        }
        case AugmentOp::add_noise: add_noise(v); break;
        case AugmentOp::mix_start: mix(static_cast<float>(v[0]), true); break;
        case AugmentOp::mix_add: mix(static_cast<float>(v[0]), false); break;
        case AugmentOp::mix_finish: finish_mix(); break;
        case AugmentOp::erase:
            finish_table();
            for (int c = 0; c < 3; ++c)
                for (int y = 0; y < static_cast<int>(v[2]); ++y)
                    std::memset(rgb_[c] + ptrdiff_t{static_cast<int>(v[0]) + y} * width_ + static_cast<int>(v[1]),
                                static_cast<uint8_t>(v[4 + c]), static_cast<size_t>(v[3]));
            break;
        case AugmentOp::nothing:
        case AugmentOp::erase_output:
        case AugmentOp::erase_noise:
        case AugmentOp::count: break;
    }
}

void Augmenter::contrast(float factor) {
    const uint64_t sum = augment_kernels().gray_sum(rgb_, area(), has_table_ ? table_ : nullptr);
    const int mean = static_cast<int>(static_cast<double>(sum) / static_cast<double>(area()) + 0.5);
    uint8_t table[256];
    blend_table(mean, factor, table);
    add_table(table);
}

void Augmenter::equalize() {
    finish_table();
    for (uint8_t* plane : rgb_) {
        uint32_t counts[256];
        uint8_t table[256];
        histogram(plane, area(), counts);
        equalize_table(counts, area(), table);
        augment_kernels().look_up(plane, area(), table, plane);
    }
}

void Augmenter::autocontrast() {
    finish_table();
    for (uint8_t* plane : rgb_) {
        uint8_t low = 255, high = 0;
        for (size_t i = 0; i < area(); ++i) low = std::min(low, plane[i]), high = std::max(high, plane[i]);
        if (high <= low) continue;
        const double scale = 255.0 / (high - low), offset = -low * scale;
        uint8_t table[256];
        for (int i = 0; i < 256; ++i) table[i] = static_cast<uint8_t>(std::clamp(static_cast<int>(i * scale + offset), 0, 255));
        augment_kernels().look_up(plane, area(), table, plane);
    }
}

void Augmenter::sharpen(float factor) {
    finish_table();
    if (height_ < 3 || width_ < 3 || factor == 1.0f) return;  // all of it is border, which stays
    for (int c = 0; c < 3; ++c) augment_kernels().sharpen(rgb_[c], height_, width_, factor, other_[c]);
    exchange();
}

void Augmenter::warp(const AugmentStep& step) {
    finish_table();  // which the fill does not go through
    const bool is_affine = step.kind() == AugmentOp::affine;
    const double* const rest = step.value + (is_affine ? 6 : 8);
    const auto fill = static_cast<uint32_t>(rest[0]);
    const auto filter = static_cast<WarpFilter>(static_cast<int>(rest[1]));
    const WarpSource source = {{rgb_[0], rgb_[1], rgb_[2]}, height_, width_};
    int32_t place[6];
    if (filter != WarpFilter::nearest) {
        const auto& kernels = augment_kernels();
        const auto filtered = filter == WarpFilter::bilinear ? kernels.warp_bilinear : kernels.warp_bicubic;
        filtered(step.value, is_affine, interleaved(), height_, width_, fill, other_);
    } else if (!is_affine) {
        warp_perspective(source, step.value, fill, other_);
    } else if (step.value[1] == 0 && step.value[3] == 0) {
        warp_straight(source, step.value, fill, other_);
    } else if (!fixed_places(step.value, height_, width_, place) || area() >= size_t{1} << 29) {
        warp_stepwise(source, step.value, fill, other_);
    } else {
        augment_kernels().warp(place, interleaved(), height_, width_, fill, other_);
    }
    exchange();
}

void Augmenter::mix(float weight, bool is_first) {
    finish_table();
    if (is_first) {
        sum_.assign(3 * area(), 0.0f);
        mixed_.resize(3 * area());
    }
    const size_t n = area();
    for (size_t c = 0; c < 3; ++c) {
        float* const sum = sum_.data() + c * n;
        uint8_t *const samples = rgb_[c], *const whole = mixed_.data() + c * n;
        for (size_t i = 0; i < n; ++i) {
            const float part = weight * static_cast<float>(samples[i]);
            sum[i] += part;
        }
        std::memcpy(is_first ? whole : samples, is_first ? samples : whole, n);
    }
}

void Augmenter::finish_mix() {
    has_table_ = false;
    const size_t n = area();
    for (size_t c = 0; c < 3; ++c) {
        const float* const sum = sum_.data() + c * n;
        uint8_t* const samples = rgb_[c];
        for (size_t i = 0; i < n; ++i) samples[i] = static_cast<uint8_t>(static_cast<int>(std::min(sum[i], 255.0f)));
    }
}

const uint8_t* Augmenter::interleaved() {
    if (!interleaved_.reserve(3 * area() + kPlanePadding)) throw std::bad_alloc();
    for (int y = 0; y < height_; ++y) {
        const size_t at = static_cast<size_t>(y) * static_cast<size_t>(width_);
        const uint8_t* const rows[3] = {rgb_[0] + at, rgb_[1] + at, rgb_[2] + at};
        pixel_kernels().interleave(rows, width_, interleaved_.data() + 3 * at);
    }
    return interleaved_.data();
}

// As torchvision's GaussianNoise of uint8: whole numbers, cut towards 0, are added.
void Augmenter::add_noise(const double* value) {
    constexpr size_t kChunk = 1024;
    finish_table();
    numbers_.resize(kChunk + kNumberPadding);
    const float mean = static_cast<float>(value[2]), deviation = static_cast<float>(value[3]);
    const bool is_clipped = value[4] != 0;
    for (size_t c = 0; c < 3; ++c) {
        for (size_t i = 0; i < area(); i += kChunk) {
            const size_t n = std::min(kChunk, area() - i);
            augment_kernels().normal(key_of(value), c * area() + i, n, numbers_.data());
            const float* const numbers = numbers_.data();
            uint8_t* const samples = rgb_[c] + i;
            for (size_t k = 0; k < n; ++k) {
                const float scaled = numbers[k] * deviation;
                const int sum = samples[k] + static_cast<int>(mean + scaled);
                samples[k] = static_cast<uint8_t>(is_clipped ? std::clamp(sum, 0, 255) : sum);
            }
        }
    }
}

void Augmenter::compress(int quality) {
    if (std::max(height_, width_) > 65500) throw std::invalid_argument("JPEG: a side of more than 65,500 pixels");
    finish_table();
    JpegHeader header;
    Planes planes;
    if (!compress_jpeg(interleaved(), height_, width_, quality, file_) || !parse_jpeg_header(file_.span(), header).ok() ||
        !decode_with_libjpeg(file_.span(), header, {0, 0, width_, height_}, Fidelity::exact, pixels_, planes).ok())
        throw std::bad_alloc();
    for (int y = 0; y < height_; ++y) {
        const ptrdiff_t at = ptrdiff_t{y} * width_;
        uint8_t* const to[3] = {rgb_[0] + at, rgb_[1] + at, rgb_[2] + at};
        pixel_kernels().deinterleave(planes.plane[0].data + y * planes.plane[0].stride_bytes, width_, to);
    }
}

void Augmenter::blur(int columns, int rows, double sigma) {
    finish_table();
    const BlurTaps along = taps_of(columns, sigma), down = taps_of(rows, sigma);
    if (along.radius == 0 && down.radius == 0) return;
    row_.resize(static_cast<size_t>(width_) + 4 * kRowMargin);
    for (int c = 0; c < 3; ++c)
        augment_kernels().blur(along, down, rgb_[c], height_, width_, row_.data(), other_[c]);
    exchange();
}

void Augmenter::add_table(const uint8_t table[256]) {
    for (int i = 0; i < 256; ++i) table_[i] = table[has_table_ ? table_[i] : i];
    has_table_ = true;
}

void Augmenter::finish_table() {
    if (!has_table_) return;
    for (uint8_t* plane : rgb_) augment_kernels().look_up(plane, area(), table_, plane);
    has_table_ = false;
}

void Augmenter::exchange() { std::swap(rgb_, other_); }

}  // namespace feeder
