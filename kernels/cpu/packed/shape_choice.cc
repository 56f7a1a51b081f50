#include "cpu/packed/shape_choice.h"

#include <algorithm>
#include <cstring>

#include "cpu/simd.h"

namespace feeder {
namespace {

// The costs of a number by code, a byte for each, beside the width itself.
constexpr int kTabled = 1024;
struct Costs {
    uint64_t of[2 * kTabled];  // of numbers from -kTabled on
};

constexpr uint64_t costs_of(int number) {
    uint64_t word = 0;
    for (int code = 0; code < 8; ++code) {
        const int width = kWidths[code];
        const int half = width == 0 ? 0 : 1 << (width - 1);
        const int low = width == 0 ? 0 : ((number + half) & ((1 << width) - 1)) - half;
        const int high = (number - low) >> width;
        const int cost = high == 0 ? 0 : high >= kLeastHigh && high <= kMostHigh ? kPatchBytes : BlockCosts::kBeyond;
        word |= static_cast<uint64_t>(cost) << (8 * code);
    }
    return word;
}

constexpr Costs make_costs() {
    Costs costs{};
    for (int number = -kTabled; number < kTabled; ++number) costs.of[number + kTabled] = costs_of(number);
    return costs;
}
constexpr Costs kCosts = make_costs();

constexpr uint64_t make_width_bytes() {
    uint64_t word = 0;
    for (int code = 0; code < 8; ++code) word |= static_cast<uint64_t>(kWidths[code]) << (8 * code);
    return word;
}

}  // namespace

void BlockCosts::set_group(const OrderedBlock& block, size_t group) {
    uint64_t sum = make_width_bytes();
    for (size_t i = 0; i < 8; ++i) {
        const int number = block.coefficients[8 * group + i];
        const unsigned place = static_cast<unsigned>(number + kTabled);
        sum += place < 2 * kTabled ? kCosts.of[place] : costs_of(number);  // no byte overflows: 8 * kBeyond + 8
    }
    std::memcpy(of_code[group], &sum, sizeof(sum));
}

void BlockCosts::set(const OrderedBlock& block) {
#if defined(__x86_64__)
    if (simd_level() == SimdLevel::avx512) return set_costs_avx512(block, *this);
    if (simd_level() == SimdLevel::avx2) return set_costs_avx2(block, *this);
#endif
    for (size_t g = 0; g < kGroups; ++g) set_group(block, g);
}

Shape BlockCosts::best() const {
    Shape shape;
    for (size_t g = 0; g < kGroups; ++g)
        shape[g] = static_cast<uint8_t>(std::min_element(of_code[g], of_code[g] + 8) - of_code[g]);
    return shape;
}

ShapeChoice choose_shape_portable(const ShapeTable& table, const BlockCosts& costs) {
    int best = 0;
    unsigned least = ~0u;
    for (int i = 0; i < table.count; ++i) {
        unsigned total = 0;
        for (size_t g = 0; g < kGroups; ++g) total += costs.of_code[g][table.codes[i][g]];
        total = std::min(total, 255u);
        if (total < least) {
            least = total;
            best = i;
        }
    }
    return {best, static_cast<int>(least)};
}

uint8_t* write_payload(const ShapeTable& table, int shape, const OrderedBlock& block, uint8_t* to) {
#if defined(__x86_64__)
    if (simd_level() != SimdLevel::portable && has_fast_pdep()) return write_payload_bmi2(table, shape, block, to);
#endif
    for (size_t g = 0; g < kGroups; ++g) {
        const int width = kWidths[table.codes[shape][g]];
        if (width == 0) continue;
        const unsigned bias = 1u << (width - 1), mask = (1u << width) - 1;
        uint64_t word = 0;
        for (size_t i = 0; i < 8; ++i) {
            const unsigned number = static_cast<unsigned>(block.coefficients[8 * g + i]);
            word |= uint64_t{(number + bias) & mask} << (static_cast<size_t>(width) * i);
        }
        std::memcpy(to, &word, sizeof(word));
        to += width;
    }
    return to;
}

ShapeChoice choose_shape(const ShapeTable& table, const BlockCosts& costs) {
#if defined(__x86_64__)
    if (simd_level() == SimdLevel::avx512) return choose_shape_avx512(table, costs);
    if (simd_level() == SimdLevel::avx2) return choose_shape_avx2(table, costs);
#endif
    return choose_shape_portable(table, costs);
}

void choose_shapes(const ShapeTable& table, const OrderedBlock* const* blocks, int count, ShapeChoice* out) {
#if defined(__x86_64__)
    if (simd_level() == SimdLevel::avx512) return choose_shapes_avx512(table, blocks, count, out);
    if (simd_level() == SimdLevel::avx2) return choose_shapes_avx2(table, blocks, count, out);
#endif
    for (int i = 0; i < count; ++i) {
        BlockCosts costs;
        costs.set(*blocks[i]);
        out[i] = choose_shape_portable(table, costs);
    }
}

}  // namespace feeder
