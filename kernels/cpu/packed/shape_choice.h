// The cheapest shape for a block, when it is packed, and its payload.
#pragma once

#include <cstdint>

#include "cpu/packed/codebook.h"
#include "cpu/packed/packed_file.h"

namespace feeder {

// A block's coefficients in zigzag order, with 0 in the place of DC.
struct alignas(64) OrderedBlock {
    int16_t coefficients[64];
};

// What each code costs for the groups of a block, in bytes: the group's own, and those of a patch for each number that it is
// too narrow for. Numbers beyond any patch count as kBeyond, which is no real cost. DC takes no part.
struct BlockCosts {
    static constexpr int kBeyond = 30;

    uint8_t of_code[kGroups][8];

    void set(const OrderedBlock& block);
    // One group's.
    void set_group(const OrderedBlock& block, size_t group);
    // The cheapest code for each group.
    Shape best() const;
    // Bytes of patches that a group needs.
    int patch_bytes(size_t group, int code) const { return of_code[group][code] - kWidths[code]; }
    // False if a number is beyond any patch.
    bool is_legal(const Shape& shape) const {
        for (size_t g = 0; g < kGroups; ++g)
            if (patch_bytes(g, shape[g]) >= kBeyond) return false;
        return true;
    }
};
static_assert(BlockCosts::kBeyond > 8 * kPatchBytes);

// True if a number can be in a field of that width, with or without a patch.
inline bool holds(int width, int number) {
    const int high = (number - low_part(number, width)) >> width;
    return high >= kLeastHigh && high <= kMostHigh;
}

struct ShapeChoice {
    int shape, bytes;
};

// A block's cheapest shape, the first one of equals, and what it costs. Costs of more than 255 count as 255.
ShapeChoice choose_shape(const ShapeTable& table, const BlockCosts& costs);

// The choices for blocks.
void choose_shapes(const ShapeTable& table, const OrderedBlock* const* blocks, int count, ShapeChoice* out);

ShapeChoice choose_shape_portable(const ShapeTable& table, const BlockCosts& costs);

// Writes a block's payload: of each number the bits that its field holds, see low_part(). Up to 8 bytes more are overwritten.
// Returns its end.
uint8_t* write_payload(const ShapeTable& table, int shape, const OrderedBlock& block, uint8_t* to);

#if defined(__x86_64__)
void set_costs_avx512(const OrderedBlock& block, BlockCosts& costs);
ShapeChoice choose_shape_avx512(const ShapeTable& table, const BlockCosts& costs);
void set_costs_avx2(const OrderedBlock& block, BlockCosts& costs);
ShapeChoice choose_shape_avx2(const ShapeTable& table, const BlockCosts& costs);
void choose_shapes_avx2(const ShapeTable& table, const OrderedBlock* const* blocks, int count, ShapeChoice* out);
void choose_shapes_avx512(const ShapeTable& table, const OrderedBlock* const* blocks, int count, ShapeChoice* out);
uint8_t* write_payload_bmi2(const ShapeTable& table, int shape, const OrderedBlock& block, uint8_t* to);
#endif

}  // namespace feeder
