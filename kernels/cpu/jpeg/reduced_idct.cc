#include "cpu/jpeg/reduced_idct.h"

#include <algorithm>
#include <cstring>

namespace feeder {
namespace {

using Row = int32_t __attribute__((vector_size(16)));

// Of the upper left 4 x 4 coefficients, row by row.
constexpr uint8_t kNatural[16] = {0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27};
constexpr uint8_t kZigzag[16] = {0, 1, 5, 6, 2, 4, 7, 13, 3, 8, 12, 17, 9, 11, 18, 24};

constexpr int kBits = 13;  // of the fractions below
constexpr int32_t kHalf = 1 << (kBits - 1);
constexpr int32_t kLong = 5352;   // cos(pi / 8) / sqrt(2)
constexpr int32_t kShort = 2217;  // cos(3 pi / 8) / sqrt(2)
constexpr int kKeptBits = 3;      // fractional bits between the passes

// Any image's coefficients are below this; the sums of larger ones could overflow.
constexpr int kMostLevel = 8192;

int32_t dequantized(int16_t coefficient, int16_t quant) {
    return std::clamp(coefficient * static_cast<uint16_t>(quant), -kMostLevel, kMostLevel - 1);
}

// The inverse DCT of 4 columns side by side.
void transform_columns(Row (&rows)[4], int shift) {
    const Row even0 = (rows[0] + rows[2]) * kHalf, even1 = (rows[0] - rows[2]) * kHalf;
    const Row odd0 = rows[1] * kLong + rows[3] * kShort, odd1 = rows[1] * kShort - rows[3] * kLong;
    const int32_t rounding = 1 << (shift - 1);
    rows[0] = (even0 + odd0 + rounding) >> shift;
    rows[1] = (even1 + odd1 + rounding) >> shift;
    rows[2] = (even1 - odd1 + rounding) >> shift;
    rows[3] = (even0 - odd0 + rounding) >> shift;
}

void transpose(Row (&rows)[4]) {
    const Row a = __builtin_shufflevector(rows[0], rows[1], 0, 4, 1, 5);
    const Row b = __builtin_shufflevector(rows[0], rows[1], 2, 6, 3, 7);
    const Row c = __builtin_shufflevector(rows[2], rows[3], 0, 4, 1, 5);
    const Row d = __builtin_shufflevector(rows[2], rows[3], 2, 6, 3, 7);
    rows[0] = __builtin_shufflevector(a, c, 0, 1, 4, 5);
    rows[1] = __builtin_shufflevector(a, c, 2, 3, 6, 7);
    rows[2] = __builtin_shufflevector(b, d, 0, 1, 4, 5);
    rows[3] = __builtin_shufflevector(b, d, 2, 3, 6, 7);
}

void half_size(const int32_t (&levels)[16], uint8_t* out, ptrdiff_t stride_bytes) {
    Row rows[4];
    std::memcpy(rows, levels, sizeof(rows));
    transform_columns(rows, kBits - kKeptBits);
    transpose(rows);
    transform_columns(rows, kBits + kKeptBits + 1);
    transpose(rows);
    for (int y = 0; y < 4; ++y)
        for (int x = 0; x < 4; ++x) out[y * stride_bytes + x] = static_cast<uint8_t>(std::clamp(rows[y][x] + 128, 0, 255));
}

void quarter_size(const int32_t (&levels)[4], uint8_t* out, ptrdiff_t stride_bytes) {
    const int32_t top = levels[0] + levels[1], top_difference = levels[0] - levels[1];
    const int32_t low = levels[2] + levels[3], low_difference = levels[2] - levels[3];
    // An eighth of the sums are halfway between two levels. Were all of them rounded up, the mean would rise by 1/16.
    const auto sample = [](int32_t sum, int32_t rounding) {
        return static_cast<uint8_t>(std::clamp(((sum + rounding) >> 3) + 128, 0, 255));
    };
    out[0] = sample(top + low, 4);
    out[1] = sample(top_difference + low_difference, 3);
    out[stride_bytes] = sample(top - low, 3);
    out[stride_bytes + 1] = sample(top_difference - low_difference, 4);
}

}  // namespace

void reduced_idct(const int16_t* coefficients, CoefficientOrder order, const int16_t* quant, int shrink, uint8_t* out,
                  ptrdiff_t stride_bytes) {
    const uint8_t* const places = order == CoefficientOrder::natural ? kNatural : kZigzag;
    if (shrink == 2) {
        int32_t levels[16];
        for (int i = 0; i < 16; ++i) levels[i] = dequantized(coefficients[places[i]], quant[kNatural[i]]);
        half_size(levels, out, stride_bytes);
    } else {
        int32_t levels[4];
        for (int i = 0; i < 4; ++i) {
            const int k = 4 * (i / 2) + i % 2;
            levels[i] = dequantized(coefficients[places[k]], quant[kNatural[k]]);
        }
        quarter_size(levels, out, stride_bytes);
    }
}

}  // namespace feeder
