// The codebook of packed JPEGs: the shapes that their blocks may have. See docs/packed-format.md.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "cpu/bytes.h"

namespace feeder {

inline constexpr int kGroups = 8;                                 // of a block's coefficients, in zigzag order
inline constexpr int kWidths[8] = {0, 2, 3, 4, 5, 6, 7, 8};       // bits a coefficient, by code; so many bytes a group
inline constexpr int kMostShapes = 256;
inline constexpr size_t kCodebookIdBytes = 8;

using CodebookId = std::array<uint8_t, kCodebookIdBytes>;
using Shape = std::array<uint8_t, kGroups>;  // the code of each group's width

// The shapes of luma, or of chroma, as the decoder needs them.
struct ShapeTable {
    enum Kind : uint8_t {
        flat,    // DC only
        corner,  // nothing outside the first group, and so outside the upper left 4 x 4 coefficients
        full,
    };
    static constexpr uint8_t kFull = 0x80;

    int count = 0;
    Shape codes[kMostShapes] = {};
    alignas(32) uint8_t by_group[kGroups][kMostShapes] = {};  // the same codes; the last shape's behind it
    // Of groups 2p and 2p + 1: the first one's code | the second one's << 3.
    alignas(64) uint8_t by_pair[kGroups / 2][kMostShapes] = {};
    uint8_t bytes[kMostShapes] = {};  // of a block's payload
    alignas(64) uint8_t kind_and_bytes[kMostShapes] = {};  // the same | kFull; only flat blocks have no payload
    alignas(64) uint64_t byte_mask[kMostShapes] = {};  // the bytes of a block of 8-byte groups that are in the payload
    // Of each group: its place in the payload, and the fields' mask and bias, a byte for each of 8 fields.
    uint8_t offset[kMostShapes][kGroups] = {};
    alignas(64) uint64_t mask[kMostShapes][kGroups] = {};
    alignas(64) uint64_t bias[kMostShapes][kGroups] = {};

    void fill(const std::vector<Shape>& shapes);
};

struct Codebook {
    ShapeTable tables[2];  // luma (a JPEG's first component), chroma (all others)

    // False: not a codebook.
    bool parse(ByteSpan bytes);

    const ShapeTable& of_component(int component) const { return tables[component == 0 ? 0 : 1]; }
};

// A codebook's bytes. Each list has 1 to kMostShapes shapes.
std::vector<uint8_t> write_codebook(const std::vector<Shape>& luma, const std::vector<Shape>& chroma);

// Makes a codebook known to all decoders of this process, for as long as it lives: its id tells its contents. False: not a
// codebook, or no memory.
bool add_codebook(const CodebookId& id, ByteSpan bytes);

// The message for an image whose codebook is not known.
std::string unknown_codebook(const CodebookId& id);

// A known codebook, or nullptr. Takes no lock, so that it also works in a forked child.
const Codebook* find_codebook(const CodebookId& id);

}  // namespace feeder
