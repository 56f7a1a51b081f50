// The reference of pixels.h: plain loops that any compiler vectorizes as far as it can.
#include <cstring>

#include "cpu/resize/pixels.h"

namespace feeder {
namespace {

inline int16_t first_of(int32_t pair) { return static_cast<int16_t>(pair & 0xffff); }
inline int16_t second_of(int32_t pair) { return static_cast<int16_t>(pair >> 16); }

inline int16_t saturate(int value) {
    return static_cast<int16_t>(value > 32767 ? 32767 : value < -32768 ? -32768 : value);
}
inline int16_t to_q7(int value) { return static_cast<int16_t>(value < 0 ? 0 : value > 32767 ? 32767 : value); }
inline uint8_t to_sample(int value) { return static_cast<uint8_t>(value < 0 ? 0 : value > 255 ? 255 : value); }
// Compilers use vector instructions for sums of int16 * int16 in int32 if both factors visibly are int16.
inline int32_t product(int16_t a, int16_t b) { return static_cast<int32_t>(a) * b; }
inline int32_t scaled(int16_t value, int16_t factor_q15) { return (product(value, factor_q15) + (1 << 14)) >> 15; }

// GCC unrolls loops over the lanes before it would vectorize them.
#define FEEDER_LANES                \
    _Pragma("GCC unroll 1") for (int lane = 0; lane < kLanes; ++lane)

constexpr int kChunk = 64;

// sum[x] += the two rows, weighted by a pair of coefficients. Of kChunk sums only those of the n samples count.
void add_rows(const uint8_t* const* rows, int at, int n, int32_t pair, int32_t* sum) {
    const uint8_t* a = rows[0] + at;
    const uint8_t* b = rows[1] + at;
    const int16_t ka = first_of(pair), kb = second_of(pair);
    for (int x = 0; x < n; ++x) sum[x] += product(a[x], ka) + product(b[x], kb);
}

void vertical_q7(const uint8_t* const* rows, const int32_t* coefficients, ptrdiff_t step, int pairs, int width,
                 int16_t* out) {
    for (int x0 = 0; x0 < width; x0 += kChunk) {
        const int n = width - x0 < kChunk ? width - x0 : kChunk;
        int32_t sum[kChunk];
        for (int x = 0; x < kChunk; ++x) sum[x] = 1 << (kPlainBits - 8);
        for (int p = 0; p < pairs; ++p) add_rows(rows + 2 * p, x0, n, coefficients[p * step], sum);
        for (int x = 0; x < n; ++x) out[x0 + x] = to_q7(sum[x] >> (kPlainBits - 7));
    }
}

void vertical_exact(const uint8_t* const* rows, const int32_t* high, const int32_t* low, ptrdiff_t step,
                    int pairs, int width, uint8_t* out) {
    for (int x0 = 0; x0 < width; x0 += kChunk) {
        const int n = width - x0 < kChunk ? width - x0 : kChunk;
        int32_t upper[kChunk], lower[kChunk];
        for (int x = 0; x < kChunk; ++x) {
            upper[x] = 0;
            lower[x] = 1 << (kExactBits - 1);
        }
        for (int p = 0; p < pairs; ++p) {
            add_rows(rows + 2 * p, x0, n, high[p * step], upper);
            add_rows(rows + 2 * p, x0, n, low[p * step], lower);
        }
        for (int x = 0; x < n; ++x)
            out[x0 + x] = to_sample(((upper[x] << kExactLowBits) + lower[x]) >> kExactBits);
    }
}

// Here a pair of columns is 2 x kLanes int16, one column after the other: int32 of two neighbours suit only
// instructions that multiply and add them at once.
template <typename Sample>
void pair_columns(const Sample* stripe, ptrdiff_t stride, int columns, int32_t* pairs) {
    int16_t column[kLanes];
    for (int x = 0; x < columns; ++x) {
        for (int lane = 0; lane < kLanes; ++lane) column[lane] = stripe[lane * stride + x];
        std::memcpy(reinterpret_cast<char*>(pairs) + static_cast<size_t>(x) * sizeof column, column, sizeof column);
    }
}

// sum[lane] += a pair of columns, weighted by a pair of coefficients.
inline void add_columns(const int32_t* pairs, int32_t pair, int32_t* sum) {
    int16_t columns[2][kLanes];
    std::memcpy(columns, pairs, sizeof columns);
    const int16_t ka = first_of(pair), kb = second_of(pair);
    FEEDER_LANES sum[lane] += product(columns[0][lane], ka) + product(columns[1][lane], kb);
}

// The output is [width, kLanes] here.
void horizontal_q7(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
    const int32_t* k = table.plain;
    const ptrdiff_t step = table.width;
    for (int x = 0; x < table.width; ++x, ++k, out += kLanes) {
        int32_t sum[kLanes];
        FEEDER_LANES sum[lane] = 1 << (kPlainBits - 1);
        const int32_t* from = pairs + static_cast<ptrdiff_t>(table.first[x]) * kLanes;
        for (int p = 0; p < table.pairs; ++p, from += kLanes) add_columns(from, k[p * step], sum);
        FEEDER_LANES out[lane] = to_q7(sum[lane] >> kPlainBits);
    }
}

void horizontal_exact(const int32_t* pairs, const ColumnTable& table, int16_t* out) {
    const int32_t *high = table.high, *low = table.low;
    const ptrdiff_t step = table.width;
    for (int x = 0; x < table.width; ++x, ++high, ++low, out += kLanes) {
        int32_t upper[kLanes], lower[kLanes];
        FEEDER_LANES {
            upper[lane] = 0;
            lower[lane] = 1 << (kExactBits - 1);
        }
        const int32_t* from = pairs + static_cast<ptrdiff_t>(table.first[x]) * kLanes;
        for (int p = 0; p < table.pairs; ++p, from += kLanes) {
            add_columns(from, high[p * step], upper);
            add_columns(from, low[p * step], lower);
        }
        FEEDER_LANES
            out[lane] = static_cast<int16_t>(((upper[lane] << kExactLowBits) + lower[lane]) >> kExactBits);
    }
}

using Tile = uint8_t[kColumnBlock][kLanes];

void store_tile(const Tile& tile, uint8_t* out, ptrdiff_t stride) {
    for (int lane = 0; lane < kLanes; ++lane)
        for (int x = 0; x < kColumnBlock; ++x) out[lane * stride + x] = tile[x][lane];
}

void finish_ycbcr(const int16_t* y, const int16_t* cb, const int16_t* cr, int width, uint8_t* const rgb[3],
                  ptrdiff_t stride) {
    constexpr int zero = 128 << 7;
    for (int x0 = 0; x0 < width; x0 += kColumnBlock) {
        Tile red, green, blue;
        for (int x = 0; x < kColumnBlock; ++x, y += kLanes, cb += kLanes, cr += kLanes) {
            FEEDER_LANES {
                const int16_t u = static_cast<int16_t>(cb[lane] - zero), v = static_cast<int16_t>(cr[lane] - zero);
                const int r = saturate(y[lane] + v + scaled(v, kRedCr));
                const int g = saturate(y[lane] + scaled(u, kGreenCb) + scaled(v, kGreenCr));
                const int b = saturate(y[lane] + u + scaled(u, kBlueCb));
                red[x][lane] = to_sample((r + 64) >> 7);
                green[x][lane] = to_sample((g + 64) >> 7);
                blue[x][lane] = to_sample((b + 64) >> 7);
            }
        }
        store_tile(red, rgb[0] + x0, stride);
        store_tile(green, rgb[1] + x0, stride);
        store_tile(blue, rgb[2] + x0, stride);
    }
}

void finish_exact(const int16_t* plane, int width, uint8_t* out, ptrdiff_t stride) {
    for (int x0 = 0; x0 < width; x0 += kColumnBlock) {
        Tile tile;
        for (int x = 0; x < kColumnBlock; ++x, plane += kLanes)
            FEEDER_LANES tile[x][lane] = to_sample(plane[lane]);
        store_tile(tile, out + x0, stride);
    }
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

void affine_float32(const uint8_t* samples, int n, const float* scale, const float* bias, float* out) {
    affine(samples, n, scale, bias, out, [](float value) { return value; });
}
void affine_float16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    affine(samples, n, scale, bias, out, to_float16);
}
void affine_bfloat16(const uint8_t* samples, int n, const float* scale, const float* bias, uint16_t* out) {
    affine(samples, n, scale, bias, out, to_bfloat16);
}

void copy(const uint8_t* samples, int n, uint8_t* out) { std::memcpy(out, samples, static_cast<size_t>(n)); }

}  // namespace

const PixelKernels& portable_kernels() {
    static constexpr PixelKernels kernels = {
        vertical_q7,    vertical_exact, pair_columns<int16_t>, pair_columns<uint8_t>, horizontal_q7,
        horizontal_exact, finish_ycbcr, finish_exact,          deinterleave,          interleave,
        affine_float32, affine_float16, affine_bfloat16,       copy,                  false,
    };
    return kernels;
}

}  // namespace feeder
