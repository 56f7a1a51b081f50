#include "cpu/packed/line_writer.h"

#include <algorithm>
#include <cstring>

#include "cpu/packed/packed_file.h"

namespace feeder {
namespace {

constexpr const char* kOutOfRange = "coefficients out of range";

template <typename T>
void append_bytes(std::vector<uint8_t>& out, const T* first, const T* end) {
    out.insert(out.end(), reinterpret_cast<const uint8_t*>(first), reinterpret_cast<const uint8_t*>(end));
}

// The cheapest one of the shapes that hold a block; -1: none does.
int cheapest_legal_shape(const ShapeTable& table, const BlockCosts& costs) {
    int best = -1, least = 0;
    for (int i = 0; i < table.count; ++i) {
        if (!costs.is_legal(table.codes[i])) continue;
        int total = 0;
        for (size_t g = 0; g < kGroups; ++g) total += costs.of_code[g][table.codes[i][g]];
        if (best < 0 || total < least) {
            best = i;
            least = total;
        }
    }
    return best;
}

// The lowest code whose width holds a number without a patch; more than any code where none does.
int dc_code_of(int number) {
    const unsigned folded = static_cast<unsigned>(number ^ number >> 31);
    const int bits = 31 - __builtin_clz(folded << 1 | 1);
    return bits + (bits == 0 && number != 0);
}

struct DcChoice {
    int code;
    bool has_patches;
};

// The cheapest code for the width of 8 DC differences.
DcChoice choose_dc_code(const int* numbers) {
    static_assert(kDcWidths[0] == 0 && kDcWidths[1] == 2 && kDcWidths[kDcCodes - 1] == kDcCodes);
    uint64_t of_code = 0;  // 4 bits for each code: how many of the numbers need it
    int least_number = 0, most_number = 0;
    for (int i = 0; i < 8; ++i) {
        of_code += uint64_t{1} << (4 * dc_code_of(numbers[i]));
        least_number = std::min(least_number, numbers[i]);
        most_number = std::max(most_number, numbers[i]);
    }
    DcChoice best = {kDcCodes - 1, true};
    int least = INT32_MAX, patches = 8;
    for (int code = 0; code < kDcCodes; ++code, of_code >>= 4) {
        const int width = kDcWidths[code];
        patches -= static_cast<int>(of_code & 15);
        const int cost = width + kPatchBytes * patches;
        if (cost < least && holds(width, least_number) && holds(width, most_number)) {
            best = {code, patches > 0};
            least = cost;
        }
        if (patches == 0) break;  // wider ones take more
    }
    return best;
}

// Writes the low parts of 8 numbers; the payload has memory for 8 bytes more.
uint8_t* write_group(const int* numbers, int width, uint8_t* to) {
    uint64_t word = 0;
    int filled = 0;
    for (int i = 0; i < 8 && width > 0; ++i) {
        const uint64_t field = static_cast<uint64_t>(numbers[i] + (1 << (width - 1))) & ((1u << width) - 1);
        word |= field << filled;
        filled += width;
        if (width > 8 && filled >= 32) {
            std::memcpy(to, &word, 4);
            to += 4;
            word >>= 32;
            filled -= 32;
        }
    }
    std::memcpy(to, &word, sizeof(word));
    return to + filled / 8;
}

}  // namespace

const char* LineWriter::append(const ShapeTable& table, OrderedBlock* first, int block_count, int h, int per_mcu,
                               std::vector<uint8_t>& out) {
    const size_t count = static_cast<size_t>(block_count), groups = (count + 7) / 8;
    blocks_.resize(count);
    choices_.resize(count);
    shapes_.resize(count);
    differences_.assign(8 * groups, 0);
    dc_codes_.assign((groups + 1) / 2, 0);
    dc_patched_.resize(groups);
    patches_.clear();
    payload_.resize(8 * (kGroups * count + 2 * groups + 1));
    int prediction = 0;
    for (size_t x = 0; x < count; first += per_mcu) {
        for (int n = 0; n < h; ++n, ++x) {
            blocks_[x] = first + n;
            int16_t& dc = first[n].coefficients[0];
            // Modulo 2^16, as the sum is.
            differences_[x] = static_cast<int16_t>(dc - prediction);
            prediction = dc;
            dc = 0;
        }
    }
    choose_shapes(table, blocks_.data(), block_count, choices_.data());
    uint8_t* to = payload_.data();
    for (size_t g = 0; g < groups; ++g) {
        const DcChoice choice = choose_dc_code(differences_.data() + 8 * g);
        dc_codes_[g / 2] = static_cast<uint8_t>(dc_codes_[g / 2] | choice.code << 4 * (g % 2));
        dc_patched_[g] = choice.has_patches;
        to = write_group(differences_.data() + 8 * g, kDcWidths[choice.code], to);
    }
    for (int x = 0; x < block_count; ++x) {
        const size_t place = static_cast<size_t>(x);
        const OrderedBlock& block = *blocks_[place];
        int shape = choices_[place].shape;
        const bool has_patches = choices_[place].bytes != table.bytes[shape];
        BlockCosts costs;
        if (has_patches) {
            costs.set(block);
            if (!costs.is_legal(table.codes[shape])) shape = cheapest_legal_shape(table, costs);
            if (shape < 0) return kOutOfRange;
        }
        shapes_[place] = static_cast<uint8_t>(shape);
        to = write_payload(table, shape, block, to);
        if (dc_patched_[place / 8]) {
            const int width = kDcWidths[dc_codes_[place / 16] >> 4 * (place / 8 % 2) & 15];
            if (!patch(x, 0, differences_[place], width)) return kOutOfRange;
        }
        if (!has_patches) continue;
        for (size_t g = 0; g < kGroups; ++g) {
            const uint8_t code = table.codes[shape][g];
            if (costs.patch_bytes(g, code) == 0) continue;
            const int end = static_cast<int>(8 * g + 8);
            for (int k = end - 8; k < end; ++k) patch(x, k, block.coefficients[k], kWidths[code]);
        }
    }
    if (patches_.size() > size_t{kMostPatches} * kPatchBytes) return "too many large coefficients in a row";
    const uint16_t patch_count = static_cast<uint16_t>(patches_.size() / kPatchBytes);
    append_bytes(out, &patch_count, &patch_count + 1);
    append_bytes(out, shapes_.data(), shapes_.data() + count);
    append_bytes(out, dc_codes_.data(), dc_codes_.data() + dc_codes_.size());
    append_bytes(out, payload_.data(), to);
    append_bytes(out, patches_.data(), patches_.data() + patches_.size());
    return nullptr;
}

bool LineWriter::patch(int block, int index, int number, int width) {
    const int low = low_part(number, width);
    if (number == low) return true;
    const int high = (number - low) >> width;
    const uint32_t bits = static_cast<uint32_t>(block) << 11 | static_cast<uint32_t>(index) << 5 |
                          (static_cast<uint32_t>(high) & 31);
    for (int i = 0; i < kPatchBytes; ++i) patches_.push_back(static_cast<uint8_t>(bits >> (8 * i)));
    return high >= kLeastHigh && high <= kMostHigh;
}

}  // namespace feeder
