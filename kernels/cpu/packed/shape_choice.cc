#include "cpu/packed/shape_choice.h"

#include <algorithm>
#include <cstring>

#include "cpu/jpeg/zigzag.h"
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

void BlockCosts::set(const int16_t* coefficients) {
    for (int g = 0; g < kGroups; ++g) {
        uint64_t sum = make_width_bytes();
        for (int i = g == 0 ? 1 : 0; i < 8; ++i) {
            const int number = coefficients[kNaturalOrder[8 * g + i]];
            const unsigned place = static_cast<unsigned>(number + kTabled);
            sum += place < 2 * kTabled ? kCosts.of[place] : costs_of(number);  // no byte overflows: 8 * kBeyond + 8
        }
        std::memcpy(of_code[g], &sum, sizeof(sum));
    }
}

Shape BlockCosts::best() const {
    Shape shape;
    for (size_t g = 0; g < kGroups; ++g)
        shape[g] = static_cast<uint8_t>(std::min_element(of_code[g], of_code[g] + 8) - of_code[g]);
    return shape;
}

int choose_shape_portable(const ShapeTable& table, const BlockCosts& costs) {
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
    return best;
}

int choose_shape(const ShapeTable& table, const BlockCosts& costs) {
#if defined(__x86_64__)
    if (simd_level() != SimdLevel::portable) return choose_shape_avx2(table, costs);
#endif
    return choose_shape_portable(table, costs);
}

}  // namespace feeder
