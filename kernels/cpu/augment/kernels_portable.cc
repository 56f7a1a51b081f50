// The reference of kernels.h: plain loops, as Pillow has them.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "cpu/augment/kernels.h"
#include "cpu/augment/normal.h"

namespace feeder {
namespace {

inline uint8_t gray_of(int r, int g, int b) { return static_cast<uint8_t>((19595 * r + 38470 * g + 7471 * b + 0x8000) >> 16); }

inline uint8_t to_sample(float value) {
    return value <= 0.0f ? uint8_t{0} : value >= 255.0f ? uint8_t{255} : static_cast<uint8_t>(value);
}

inline uint8_t blend(int base, int sample, float factor) {
    const float change = factor * static_cast<float>(sample - base);
    return to_sample(static_cast<float>(base) + change);
}

void look_up(const uint8_t* samples, size_t n, const uint8_t* table, uint8_t* out) {
    for (size_t i = 0; i < n; ++i) out[i] = table[samples[i]];
}

struct Values {
    const uint8_t* table;
    uint8_t operator()(uint8_t x) const { return table ? table[x] : x; }
};

uint64_t gray_sum(const uint8_t* const rgb[3], size_t n, const uint8_t* table) {
    const Values values{table};
    uint64_t sum = 0;
    for (size_t i = 0; i < n; ++i) sum += gray_of(values(rgb[0][i]), values(rgb[1][i]), values(rgb[2][i]));
    return sum;
}

void grayscale(uint8_t* const rgb[3], size_t n) {
    for (size_t i = 0; i < n; ++i) rgb[0][i] = gray_of(rgb[0][i], rgb[1][i], rgb[2][i]);
    std::memcpy(rgb[1], rgb[0], n);
    std::memcpy(rgb[2], rgb[0], n);
}

void saturate(uint8_t* const rgb[3], size_t n, const uint8_t* table, float factor) {
    const Values values{table};
    for (size_t i = 0; i < n; ++i) {
        const uint8_t r = values(rgb[0][i]), g = values(rgb[1][i]), b = values(rgb[2][i]);
        const uint8_t gray = gray_of(r, g, b);
        rgb[0][i] = blend(gray, r, factor);
        rgb[1][i] = blend(gray, g, factor);
        rgb[2][i] = blend(gray, b, factor);
    }
}

// Pillow's rgb2hsv and hsv2rgb, with its floats and doubles.
void shift_hue_of(uint8_t& r, uint8_t& g, uint8_t& b, int shift) {
    const int most = r > g ? (r > b ? r : b) : (g > b ? g : b);
    const int least = r < g ? (r < b ? r : b) : (g < b ? g : b);
    if (most == least) return;
    const float range = static_cast<float>(most - least);
    const float s = range / static_cast<float>(most);
    const float rc = static_cast<float>(most - r) / range;
    const float gc = static_cast<float>(most - g) / range;
    const float bc = static_cast<float>(most - b) / range;
    float h = 0;
    if (r == most) h = bc - gc;
    else if (g == most) h = static_cast<float>(2.0 + static_cast<double>(rc) - static_cast<double>(bc));
    else h = static_cast<float>(4.0 + static_cast<double>(gc) - static_cast<double>(rc));
    double turn = static_cast<double>(h) / 6.0 + 1.0;
    if (turn >= 1.0) turn -= 1.0;
    h = static_cast<float>(turn);
    const int hue = (static_cast<int>(static_cast<double>(h) * 255.0) + shift) & 255;
    const int saturation = static_cast<int>(static_cast<double>(s) * 255.0);
    if (saturation == 0) {
        r = g = b = static_cast<uint8_t>(most);
        return;
    }
    const int sector = hue * 6 / 255;
    const float f = static_cast<float>(static_cast<double>(hue * 6) / 255.0 - static_cast<double>(sector));
    const float fs = static_cast<float>(saturation / 255.0);
    const auto rounded = [&](double part) { return static_cast<uint8_t>(most * (1.0 - part) + 0.5); };
    const uint8_t v = static_cast<uint8_t>(most);
    const uint8_t p = rounded(static_cast<double>(fs));
    const uint8_t q = rounded(static_cast<double>(fs * f));
    const uint8_t t = rounded(static_cast<double>(fs) * (1.0 - static_cast<double>(f)));
    switch (sector % 6) {
        case 0: r = v, g = t, b = p; break;
        case 1: r = q, g = v, b = p; break;
        case 2: r = p, g = v, b = t; break;
        case 3: r = p, g = q, b = v; break;
        case 4: r = t, g = p, b = v; break;
        default: r = v, g = p, b = q; break;
    }
}

void shift_hue(uint8_t* const rgb[3], size_t n, int shift) {
    for (size_t i = 0; i < n; ++i) shift_hue_of(rgb[0][i], rgb[1][i], rgb[2][i], shift);
}

// The blurred sample is Pillow's SMOOTH, (8 neighbours + 5 x) / 13: never a tie, so integers round as its floats do.
void sharpen(const uint8_t* samples, int height, int width, float factor, uint8_t* out) {
    std::memcpy(out, samples, static_cast<size_t>(height) * static_cast<size_t>(width));
    for (int y = 1; y + 1 < height; ++y) {
        const uint8_t* at = samples + ptrdiff_t{y} * width;
        for (int x = 1; x + 1 < width; ++x) {
            int sum = 4 * at[x] + 6;
            for (int row = -1; row <= 1; ++row)
                for (int column = -1; column <= 1; ++column) sum += at[ptrdiff_t{row} * width + x + column];
            out[ptrdiff_t{y} * width + x] = blend(sum / 13, at[x], factor);
        }
    }
}

void warp(const int32_t place[6], const uint8_t* pixels, int height, int width, uint32_t fill, uint8_t* const rgb[3]) {
    // In uint32_t, whose sums wrap: past the last pixel of a row they may.
    uint32_t row_x = static_cast<uint32_t>(place[2]), row_y = static_cast<uint32_t>(place[5]);
    size_t at = 0;
    for (int y = 0; y < height; ++y) {
        uint32_t from_x = row_x, from_y = row_y;
        for (int x = 0; x < width; ++x, ++at) {
            const int column = static_cast<int32_t>(from_x) >> 16, row = static_cast<int32_t>(from_y) >> 16;
            const bool inside = column >= 0 && column < width && row >= 0 && row < height;
            const uint8_t* const pixel = pixels + 3 * (inside ? ptrdiff_t{row} * width + column : 0);
            for (int c = 0; c < 3; ++c) rgb[c][at] = inside ? pixel[c] : static_cast<uint8_t>(fill >> 8 * c);
            from_x += static_cast<uint32_t>(place[0]);
            from_y += static_cast<uint32_t>(place[3]);
        }
        row_x += static_cast<uint32_t>(place[1]);
        row_y += static_cast<uint32_t>(place[4]);
    }
}

inline double between(const double (&p)[2], double part) { return p[0] + (p[1] - p[0]) * part; }

inline double between(const double (&p)[4], double part) {  // cubic
    const double first = -p[0] + p[2], second = 2 * (p[0] - p[1]) + p[2] - p[3], third = -p[0] + p[1] - p[2] + p[3];
    return p[1] + part * (first + part * (second + part * third));
}

// Neighbours along an axis from the one at `first` on, those past the edge replaced by the edge's.
template <int kTaps>
inline void neighbours(double first, int length, int (&out)[kTaps]) {
    for (int i = 0; i < kTaps; ++i) out[i] = std::clamp(static_cast<int>(first) + i, 0, length - 1);
}

template <int kTaps>
void warp_filtered(const double* map, bool is_affine, const uint8_t* pixels, int height, int width, uint32_t fill,
                   uint8_t* const rgb[3]) {
    size_t to = 0;
    for (int row = 0; row < height; ++row) {
        for (int column = 0; column < width; ++column, ++to) {
            const double x_in = column + 0.5, y_in = row + 0.5;
            double x = map[0] * x_in + map[1] * y_in + map[2], y = map[3] * x_in + map[4] * y_in + map[5];
            if (!is_affine) {
                const double distance = map[6] * x_in + map[7] * y_in + 1;
                x /= distance, y /= distance;
            }
            if (!(x >= 0.0 && x < width && y >= 0.0 && y < height)) {
                for (int c = 0; c < 3; ++c) rgb[c][to] = static_cast<uint8_t>(fill >> 8 * c);
                continue;
            }
            x -= 0.5, y -= 0.5;
            const double left = std::floor(x), top = std::floor(y);
            int columns[kTaps], rows[kTaps];
            neighbours(left + 1 - kTaps / 2, width, columns);
            neighbours(top + 1 - kTaps / 2, height, rows);
            for (int c = 0; c < 3; ++c) {
                double lines[kTaps], taps[kTaps];
                for (int k = 0; k < kTaps; ++k) {
                    for (int i = 0; i < kTaps; ++i) taps[i] = pixels[3 * (ptrdiff_t{rows[k]} * width + columns[i]) + c];
                    lines[k] = between(taps, x - left);
                }
                const double value = between(lines, y - top);
                rgb[c][to] = value <= 0.0 ? uint8_t{0} : value >= 255.0 ? uint8_t{255} : static_cast<uint8_t>(value);
            }
        }
    }
}

constexpr int kChunk = 64;

// sum[x] += weight * (a[x] + b[x]), in products of 16 bits, for which every CPU has vectors.
template <typename T>
void add_taps(const T* a, const T* b, int16_t weight, int n, int32_t* sum) {
    for (int x = 0; x < n; ++x) sum[x] += int32_t{weight} * static_cast<int16_t>(a[x] + b[x]);
}

void blur(const BlurTaps& columns, const BlurTaps& rows, const uint8_t* samples, int height, int width, int16_t* row,
          uint8_t* out) {
    int16_t* const line = row + kRowMargin;
    const int32_t down = (1 << (rows.bits - 8)) - (128 << rows.bits);
    const int32_t along = (1 << (columns.bits + 6)) + (128 << (columns.bits + 7));
    int32_t sum[kChunk];
    for (int y = 0; y < height; ++y) {
        for (int x0 = 0; x0 < width; x0 += kChunk) {
            const int n = width - x0 < kChunk ? width - x0 : kChunk;
            const uint8_t* const middle = samples + ptrdiff_t{y} * width + x0;
            for (int x = 0; x < n; ++x) sum[x] = down + rows.weight[0] * middle[x];
            for (int i = 1; i <= rows.radius; ++i)
                add_taps(samples + ptrdiff_t{reflected(y - i, height)} * width + x0,
                         samples + ptrdiff_t{reflected(y + i, height)} * width + x0, rows.weight[i], n, sum);
            for (int x = 0; x < n; ++x) line[x0 + x] = static_cast<int16_t>(sum[x] >> (rows.bits - 7));
        }
        for (int i = 1; i <= columns.radius; ++i) line[-i] = line[reflected(-i, width)];
        for (int i = 1; i <= columns.radius; ++i) line[width - 1 + i] = line[reflected(width - 1 + i, width)];
        for (int x0 = 0; x0 < width; x0 += kChunk) {
            const int n = width - x0 < kChunk ? width - x0 : kChunk;
            const int16_t* const middle = line + x0;
            for (int x = 0; x < n; ++x) sum[x] = along + columns.weight[0] * middle[x];
            for (int i = 1; i <= columns.radius; ++i) add_taps(middle - i, middle + i, columns.weight[i], n, sum);
            for (int x = 0; x < n; ++x) {
                const int32_t value = sum[x] >> (columns.bits + 7);
                out[ptrdiff_t{y} * width + x0 + x] = static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value);
            }
        }
    }
}

struct OneNumber {
    using Doubles = double;
    using Words = uint64_t;
    using D = Doubles;
    using V = Words;
    static constexpr size_t kLanes = 1;
    static V set(uint64_t x) { return x; }
    static V lanes() { return 0; }
    static V plus(V a, V b) { return a + b; }
    static V product(V a, V b) { return (a & UINT32_MAX) * (b & UINT32_MAX); }
    static V both(V a, V b) { return a & b; }
    static V either(V a, V b) { return a | b; }
    static V different(V a, V b) { return a ^ b; }
    template <int kBits>
    static V left(V x) { return x << kBits; }
    template <int kBits>
    static V right(V x) { return x >> kBits; }
    static D as_double(V x) { D found; return std::memcpy(&found, &x, sizeof x), found; }
    static V as_bits(D x) { V found; return std::memcpy(&found, &x, sizeof x), found; }
    static D real(double x) { return x; }
    static D plus(D a, D b) { return a + b; }
    static D minus(D a, D b) { return a - b; }
    static D times(D a, D b) { return a * b; }
    static D over(D a, D b) { return a / b; }
    static D root(D x) { return std::sqrt(x); }
    static D choose(V k, D odd, D even) { return k & 1 ? odd : even; }
    static void store(float* at, D x) { *at = static_cast<float>(x); }
};

void normal(uint64_t key, uint64_t first, size_t n, float* out) { NormalNumbers<OneNumber>{key}(first, n, out); }

}  // namespace

const AugmentKernels& portable_augment_kernels() {
    static constexpr AugmentKernels kernels = {look_up, gray_sum,         grayscale,        saturate, shift_hue, sharpen,
                                               warp,    warp_filtered<2>, warp_filtered<4>, blur,     normal};
    return kernels;
}

}  // namespace feeder
