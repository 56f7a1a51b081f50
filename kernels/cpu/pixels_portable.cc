// The reference of pixels.h: plain loops that any compiler vectorizes as far as it can.
#include <cstring>

#include "pixels.h"

namespace feeder {
namespace {

inline int first_of(int32_t pair) { return static_cast<int16_t>(pair & 0xffff); }
inline int second_of(int32_t pair) { return static_cast<int16_t>(pair >> 16); }
inline int32_t pair_of(int first, int second) {
    return static_cast<int32_t>(static_cast<uint32_t>(second) << 16 | (static_cast<uint32_t>(first) & 0xffffu));
}

// Where row `lane` of column x lies in the output of the horizontal pass.
inline size_t place(int x, int lane) {
    return static_cast<size_t>(x / 2) * 2 * kLanes + static_cast<size_t>(lane / 4 * 8 + x % 2 * 4 + lane % 4);
}

inline int16_t saturate(int value) {
    return static_cast<int16_t>(value > 32767 ? 32767 : value < -32768 ? -32768 : value);
}
inline uint8_t to_sample(int value) { return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value); }
inline int scaled(int value, int factor_q15) { return (value * factor_q15 + (1 << 14)) >> 15; }

constexpr int kChunk = 64;

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, int pairs, int width, int16_t* out) {
    for (int x0 = 0; x0 < width; x0 += kChunk) {
        const int n = width - x0 < kChunk ? width - x0 : kChunk;
        int32_t sum[kChunk];
        for (int x = 0; x < n; ++x) sum[x] = 1 << (kPlainBits - 8);
        for (int p = 0; p < pairs; ++p) {
            const uint8_t* a = rows[2 * p] + x0;
            const uint8_t* b = rows[2 * p + 1] + x0;
            const int ka = first_of(coefficients[p]), kb = second_of(coefficients[p]);
            for (int x = 0; x < n; ++x) sum[x] += a[x] * ka + b[x] * kb;
        }
        for (int x = 0; x < n; ++x) out[x0 + x] = static_cast<int16_t>(sum[x] >> (kPlainBits - 7));
    }
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, int pairs, int width,
                    uint8_t* out) {
    for (int x0 = 0; x0 < width; x0 += kChunk) {
        const int n = width - x0 < kChunk ? width - x0 : kChunk;
        int32_t sum[kChunk];
        for (int x = 0; x < n; ++x) sum[x] = 1 << (kExactBits - 1);
        for (int p = 0; p < pairs; ++p) {
            const uint8_t* a = rows[2 * p] + x0;
            const uint8_t* b = rows[2 * p + 1] + x0;
            const int ka = (first_of(high[p]) << kExactLowBits) + first_of(low[p]);
            const int kb = (second_of(high[p]) << kExactLowBits) + second_of(low[p]);
            for (int x = 0; x < n; ++x) sum[x] += a[x] * ka + b[x] * kb;
        }
        for (int x = 0; x < n; ++x) out[x0 + x] = to_sample(sum[x] >> kExactBits);
    }
}

template <typename Sample>
void pair_columns(const Sample* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
    for (int c = 0; c < columns / 2; ++c) {
        for (int lane = 0; lane < kLanes; ++lane) {
            const Sample* at = stripe + lane * stride + 2 * c;
            pairs[c * kLanes + lane] = pair_of(at[0], at[1]);
        }
    }
}

void horizontal_q7(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
    for (int x = 0; x < table.width; ++x) {
        int32_t sum[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) sum[lane] = 1 << (kPlainBits - 1);
        const int32_t* from = pairs + static_cast<ptrdiff_t>(table.first[x]) * kLanes;
        for (int p = 0; p < table.pairs; ++p, from += kLanes) {
            const int32_t k = table.plain[static_cast<ptrdiff_t>(x) * table.pairs + p];
            const int ka = first_of(k), kb = second_of(k);
            for (int lane = 0; lane < kLanes; ++lane)
                sum[lane] += first_of(from[lane]) * ka + second_of(from[lane]) * kb;
        }
        for (int lane = 0; lane < kLanes; ++lane) out[place(x, lane)] = saturate(sum[lane] >> kPlainBits);
    }
}

void horizontal_exact(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
    for (int x = 0; x < table.width; ++x) {
        int32_t sum[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) sum[lane] = 1 << (kExactBits - 1);
        const int32_t* from = pairs + static_cast<ptrdiff_t>(table.first[x]) * kLanes;
        for (int p = 0; p < table.pairs; ++p, from += kLanes) {
            const int32_t h = table.high[static_cast<ptrdiff_t>(x) * table.pairs + p];
            const int32_t l = table.low[static_cast<ptrdiff_t>(x) * table.pairs + p];
            const int ka = (first_of(h) << kExactLowBits) + first_of(l);
            const int kb = (second_of(h) << kExactLowBits) + second_of(l);
            for (int lane = 0; lane < kLanes; ++lane)
                sum[lane] += first_of(from[lane]) * ka + second_of(from[lane]) * kb;
        }
        for (int lane = 0; lane < kLanes; ++lane) out[place(x, lane)] = saturate(sum[lane] >> kExactBits);
    }
}

void finish_ycbcr(const int16_t* y, const int16_t* cb, const int16_t* cr, int width, uint8_t* const rgb[3],
                  ptrdiff_t stride) {
    constexpr int zero = 128 << 7;
    for (int x = 0; x < width; ++x) {
        for (int lane = 0; lane < kLanes; ++lane) {
            const size_t i = place(x, lane);
            const int u = cb[i] - zero, v = cr[i] - zero;
            const int red = saturate(y[i] + v + scaled(v, kRedCr));
            const int green = saturate(y[i] + scaled(u, kGreenCb) + scaled(v, kGreenCr));
            const int blue = saturate(y[i] + u + scaled(u, kBlueCb));
            const ptrdiff_t o = lane * stride + x;
            rgb[0][o] = to_sample(scaled(red, 1 << 8));
            rgb[1][o] = to_sample(scaled(green, 1 << 8));
            rgb[2][o] = to_sample(scaled(blue, 1 << 8));
        }
    }
}

void finish_exact(const int16_t* plane, int width, uint8_t* out, ptrdiff_t stride) {
    for (int x = 0; x < width; ++x)
        for (int lane = 0; lane < kLanes; ++lane) out[lane * stride + x] = to_sample(plane[place(x, lane)]);
}

void deinterleave(const uint8_t* pixels, int n, uint8_t* const rows[3]) {
    uint8_t *r = rows[0], *g = rows[1], *b = rows[2];
    for (int x = 0; x < n; ++x) {
        r[x] = pixels[3 * x];
        g[x] = pixels[3 * x + 1];
        b[x] = pixels[3 * x + 2];
    }
}

void interleave(const uint8_t* const rows[3], int n, uint8_t* pixels) {
    const uint8_t *r = rows[0], *g = rows[1], *b = rows[2];
    for (int x = 0; x < n; ++x) {
        pixels[3 * x] = r[x];
        pixels[3 * x + 1] = g[x];
        pixels[3 * x + 2] = b[x];
    }
}

inline uint32_t bits_of(float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Rounds to nearest, ties to even; too large becomes infinite.
inline uint16_t to_float16(float value) {
    const uint32_t bits = bits_of(value);
    const uint32_t sign = bits >> 16 & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
    if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
    if (magnitude < 0x33000001u) return static_cast<uint16_t>(sign);
    const int exponent = static_cast<int>(magnitude >> 23);
    const bool subnormal = exponent < 113;
    const uint32_t mantissa = subnormal ? (magnitude & 0x7fffffu) | 0x800000u : magnitude - (112u << 23);
    const int drop = subnormal ? 126 - exponent : 13;
    const uint32_t half = 1u << (drop - 1);
    const uint32_t odd = mantissa >> drop & 1u;
    return static_cast<uint16_t>(sign | (mantissa + half - 1u + odd) >> drop);
}

inline uint16_t to_bfloat16(float value) {
    const uint32_t bits = bits_of(value);
    return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

template <typename Value, typename Convert>
void affine(const uint8_t* samples, int n, const float* scale, const float* bias, Value* out, Convert convert) {
    for (int x0 = 0; x0 < n; x0 += kPattern) {
        const int count = n - x0 < kPattern ? n - x0 : kPattern;
        for (int x = 0; x < count; ++x) {
            const float product = static_cast<float>(samples[x0 + x]) * scale[x];
            out[x0 + x] = convert(product + bias[x]);
        }
    }
}

void affine_float32(const uint8_t* samples, int n, const float* scale, const float* bias, float* out, bool) {
    affine(samples, n, scale, bias, out, [](float value) { return value; });
}
void affine_float16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    affine(samples, n, scale, bias, out, to_float16);
}
void affine_bfloat16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    affine(samples, n, scale, bias, out, to_bfloat16);
}
void end_stream() {}

}  // namespace

const PixelKernels& portable_kernels() {
    static constexpr PixelKernels kernels = {
        vertical_q7,    vertical_exact, pair_columns<int16_t>, pair_columns<uint8_t>, horizontal_q7,
        horizontal_exact, finish_ycbcr, finish_exact,          deinterleave,          interleave,
        affine_float32, affine_float16, affine_bfloat16,       end_stream,
    };
    return kernels;
}

}  // namespace feeder
