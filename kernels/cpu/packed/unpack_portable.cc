#include <algorithm>
#include <cstring>

#include "cpu/jpeg/zigzag.h"
#include "cpu/packed/unpack.h"

namespace feeder {

namespace {

// place(i): that of the coefficient with zigzag index i in `out`.
template <typename Place>
void unpack_block(const ShapeTable& table, const PackedBlock& block, const uint8_t* end, const Place& place) {
    const uint8_t* at = block.payload;
    std::memset(block.out, 0, 64 * sizeof(int16_t));
    for (int g = 0; g < kGroups; ++g) {
        const int width = kWidths[table.codes[block.shape][static_cast<size_t>(g)]];
        if (width == 0) continue;
        uint64_t word = 0;
        std::memcpy(&word, at, static_cast<size_t>(std::min<std::ptrdiff_t>(8, end - at)));
        const int bias = 1 << (width - 1), mask = (1 << width) - 1;
        for (int i = 0; i < 8; ++i, word >>= width)
            block.out[place(8 * g + i)] = static_cast<int16_t>((static_cast<int>(word) & mask) - bias);
        at += width;
    }
    block.out[0] = 0;
}

}  // namespace

void unpack_portable(const ShapeTable& table, const PackedBlock* blocks, int count, const uint8_t* end) {
    for (int n = 0; n < count; ++n) unpack_block(table, blocks[n], end, [](int i) { return i; });
}

namespace {

void read_dc(const PackedLine& line, int count, const uint8_t* end, int16_t* out) {
    const uint8_t* at = line.dc_payload;
    for (int first = 0; first < count; first += 8) {
        const int code = line.dc_code(first / 8), width = kDcWidths[code], group = std::min(8, count - first);
        if (width <= 8 && end - at >= 8) {
            const int bias = width == 0 ? 0 : 1 << (width - 1), mask = (1 << width) - 1;
            uint64_t word;
            std::memcpy(&word, at, sizeof(word));
            for (int i = 0; i < group; ++i, word >>= width)
                out[first + i] = static_cast<int16_t>((static_cast<int>(word) & mask) - bias);
        } else {
            for (int i = 0; i < group; ++i) out[first + i] = dc_field(at, code, i, end);
        }
        at += width;
    }
    if (line.has_dc_patches) patch_dc(line, count, out);
    unsigned sum = 0;
    for (int x = 0; x < count; ++x) {
        sum += static_cast<unsigned>(out[x]);
        out[x] = static_cast<int16_t>(sum);
    }
}

uint64_t add_run(const ShapeTable& table, const BlockRun& run, BlockQueue& corner, BlockQueue& full, int& payload_bytes) {
    uint8_t patched[BlockRun::kMost] = {};
    for (int p = 0; p < run.patch_count; ++p) patched[run.patches[p].block] = ShapeTable::kFull;
    const uint8_t* payload[BlockRun::kMost];
    // Sorted by kind, without a branch on it. 16 bits of `ends` for each kind.
    uint8_t sorted[(ShapeTable::full + 1) * BlockRun::kMost];
    uint64_t ends = uint64_t{BlockRun::kMost} << 16 | uint64_t{2 * BlockRun::kMost} << 32;
    const uint8_t* at = run.payload;
    for (int i = 0; i < run.count; ++i) {
        payload[i] = at;
        const unsigned found = table.kind_and_bytes[run.shapes[i]] | patched[i];
        at += found & ~unsigned{ShapeTable::kFull};
        const int shift = 16 * static_cast<int>((found != 0) + (found >> 7));
        sorted[ends >> shift & 0xFFFF] = static_cast<uint8_t>(i);
        ends += uint64_t{1} << shift;
    }
    payload_bytes = static_cast<int>(at - run.payload);
    const auto each = [&](ShapeTable::Kind kind, auto&& function) {
        for (size_t n = kind * size_t{BlockRun::kMost}; n < (ends >> (16 * kind) & 0xFFFF); ++n) function(sorted[n]);
    };
    const auto add_to = [&](BlockQueue& queue, int i) {
        queue.payload[queue.count] = payload[i];
        queue.out[queue.count] = run.out + 8 * i;
        queue.dc[queue.count] = run.dc[i];
        queue.shape[queue.count++] = run.shapes[i];
    };
    uint64_t flat = 0;
    each(ShapeTable::flat, [&](int i) { flat |= uint64_t{1} << i; });
    each(ShapeTable::corner, [&](int i) { add_to(corner, i); });
    uint8_t place[BlockRun::kMost];
    each(ShapeTable::full, [&](int i) {
        place[i] = static_cast<uint8_t>(full.count);
        add_to(full, i);
    });
    for (int p = 0; p < run.patch_count; ++p) run.patches[p].block = place[run.patches[p].block];
    return flat;
}

void unpack_queue(const ShapeTable& table, const BlockQueue& queue, int count, const uint8_t* end, QueueRows& rows) {
    for (int i = 0; i < count; ++i) {
        const PackedBlock block = {queue.payload[i], rows.coefficients + 64 * i, queue.shape[i]};
        unpack_block(table, block, end, [](int k) { return kNaturalOrder[k]; });
        block.out[0] = queue.dc[i];
    }
}

}  // namespace

const UnpackKernels& portable_unpack_kernels() {
    static constexpr UnpackKernels kernels = {unpack_portable, add_run, read_dc, 1, unpack_queue, nullptr, nullptr};
    return kernels;
}

}  // namespace feeder
