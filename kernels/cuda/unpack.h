// The lines of packed JPEGs to coefficients: a block of threads a line, a prefix sum for places and DC.
#pragma once

#include "cpu/jpeg/zigzag.h"
#include "cuda/batch.h"

namespace feeder::cuda {

// A thread takes neighbouring blocks of the line. Their payload's place is a sum over the shapes before them, their DC
// coefficient a sum over the differences before them: each thread sums its own part, and then the parts before it.
struct Unpack {
    static constexpr int kThreads = 64;
    static constexpr int kPhases = 4;
    static constexpr uint32_t kMostGroups = 1024;  // of 8 blocks: a line has at most 8191 blocks

    struct Shared {
        uint32_t dc_bytes[kThreads];  // of a thread's groups of DC differences
        uint32_t payload_bytes[kThreads];
        uint32_t dc[kThreads];             // sum of its differences
        uint16_t dc_offset[kMostGroups];   // of each group
        uint8_t natural[64];
    };
    struct Local {
        uint32_t payload;  // of its first block
        uint32_t patch;    // the first one of its first block, or of a later one
    };

    FEEDER_DEVICE static uint32_t byte_at(const Batch& batch, uint32_t at) { return load32(batch.bytes, at) & 0xFF; }
    // Codes of widths 0, 2, 3, 4, ...
    FEEDER_DEVICE static uint32_t width_of(uint32_t code) { return code == 0 ? 0 : code + 1; }

    struct Line {
        const Batch& batch;
        const LineRow& row;
        const ImageRow& image;
        uint32_t table;  // 0: luma, 1: chroma
        uint32_t blocks, groups;

        FEEDER_DEVICE Line(const Batch& of, uint32_t number)
            : batch(of), row(of.lines[number]), image(of.images[row.image]) {
            table = row.component == 0 ? 0 : 1;
            blocks = image.mcu_columns * image.h[row.component];
            groups = (blocks + 7) / 8;
        }
        FEEDER_DEVICE uint32_t shape(uint32_t block) const { return byte_at(batch, row.shapes + block); }
        FEEDER_DEVICE uint32_t dc_width(uint32_t group) const {
            return width_of(byte_at(batch, row.shapes + blocks + group / 2) >> 4 * (group % 2) & 15);
        }
        // block << 11 | index << 5 | value.
        FEEDER_DEVICE uint32_t patch(uint32_t number) const {
            return load32(batch.bytes, row.patches + 3 * number) & 0xFFFFFF;
        }
        FEEDER_DEVICE static int high_of(uint32_t patch) { return static_cast<int>((patch & 31) ^ 16) - 16; }
        // The first patch of this block, or of a later one.
        FEEDER_DEVICE uint32_t first_patch(uint32_t block) const {
            uint32_t low = 0, high = row.patch_count;
            while (low < high) {
                const uint32_t middle = (low + high) / 2;
                if (patch(middle) >> 11 < block) {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            return low;
        }
        // The difference of a block's DC coefficient. `next` is the first patch that may be its own.
        FEEDER_DEVICE int difference(const Shared& shared, uint32_t block, uint32_t next) const {
            const uint32_t group = block / 8, width = dc_width(group), bit = block % 8 * width;
            const uint32_t bits = load32(batch.bytes, row.dc_payload + shared.dc_offset[group] + bit / 8) >> bit % 8;
            int value = width == 0 ? 0 : static_cast<int>(bits & ((1u << width) - 1)) - (1 << (width - 1));
            if (next < row.patch_count) {
                const uint32_t found = patch(next);
                if (found >> 11 == block && (found >> 5 & 63) == 0) value += high_of(found) * (1 << width);
            }
            return static_cast<int16_t>(value);
        }
    };

    // Sum of the parts of the threads before this one.
    FEEDER_DEVICE static uint32_t before(const uint32_t* parts, uint32_t thread) {
        uint32_t sum = 0;
        for (uint32_t t = 0; t < thread; ++t) sum += parts[t];
        return sum;
    }

    FEEDER_DEVICE static void unpack_block(const Line& line, const Shared& shared, uint32_t block, uint32_t payload,
                                           uint32_t patch, int dc, int16_t* out) {
        const uint8_t* const codes = line.batch.codebooks[line.image.codebook].codes[line.table][line.shape(block)];
        for (uint32_t g = 0; g < 8; ++g) {
            const uint32_t width = width_of(codes[g]);
            if (width == 0) continue;
            uint64_t word = load64(line.batch.bytes, payload);
            const int bias = 1 << (width - 1), mask = (1 << width) - 1;
            for (uint32_t i = 0; i < 8; ++i, word >>= width)
                out[shared.natural[8 * g + i]] = static_cast<int16_t>((static_cast<int>(word) & mask) - bias);
            payload += width;
        }
        out[0] = static_cast<int16_t>(dc);
        for (; patch < line.row.patch_count; ++patch) {
            const uint32_t found = line.patch(patch), index = found >> 5 & 63;
            if (found >> 11 != block) break;
            if (index == 0) continue;
            int16_t& coefficient = out[shared.natural[index]];
            coefficient = static_cast<int16_t>(coefficient + Line::high_of(found) * (1 << width_of(codes[index / 8])));
        }
    }

    template <int kPhase>
    FEEDER_DEVICE static void run(const Batch& batch, Place place, Shared& shared, Local& local) {
        const Line line(batch, place.block);
        const uint32_t thread = place.thread;
        const uint32_t blocks = (line.blocks + kThreads - 1) / kThreads, groups = (line.groups + kThreads - 1) / kThreads;
        const uint32_t begin = least(thread * blocks, line.blocks), end = least(begin + blocks, line.blocks);
        const uint32_t first_group = least(thread * groups, line.groups), end_group = least(first_group + groups, line.groups);
        const uint8_t* const bytes = batch.codebooks[line.image.codebook].bytes[line.table];
        if constexpr (kPhase == 0) {
            shared.natural[thread] = kNaturalOrder[thread];
            uint32_t dc_bytes = 0, payload_bytes = 0;
            for (uint32_t g = first_group; g < end_group; ++g) dc_bytes += line.dc_width(g);
            for (uint32_t block = begin; block < end; ++block) payload_bytes += bytes[line.shape(block)];
            shared.dc_bytes[thread] = dc_bytes;
            shared.payload_bytes[thread] = payload_bytes;
        } else if constexpr (kPhase == 1) {
            uint32_t offset = before(shared.dc_bytes, thread);
            for (uint32_t g = first_group; g < end_group; ++g) {
                shared.dc_offset[g] = static_cast<uint16_t>(offset);
                offset += line.dc_width(g);
            }
            local.payload = line.row.payload + before(shared.payload_bytes, thread);
            local.patch = line.first_patch(begin);
        } else if constexpr (kPhase == 2) {
            uint32_t sum = 0, patch = local.patch;
            for (uint32_t block = begin; block < end; ++block) {
                while (patch < line.row.patch_count && line.patch(patch) >> 11 < block) ++patch;
                sum += static_cast<uint32_t>(line.difference(shared, block, patch));
            }
            shared.dc[thread] = sum;
        } else if constexpr (kPhase == 3) {
            uint32_t dc = before(shared.dc, thread), payload = local.payload, patch = local.patch;
            const uint32_t first = line.image.first_column * line.image.h[line.row.component];
            const uint32_t last = line.image.end_column * line.image.h[line.row.component];
            for (uint32_t block = begin; block < end; ++block) {
                while (patch < line.row.patch_count && line.patch(patch) >> 11 < block) ++patch;
                dc += static_cast<uint32_t>(line.difference(shared, block, patch));
                if (block >= first && block < last) {
                    int16_t* const out =
                        batch.coefficients + 64 * static_cast<uint64_t>(line.row.first_block + block - first);
                    unpack_block(line, shared, block, payload, patch, static_cast<int>(dc), out);
                }
                payload += bytes[line.shape(block)];
            }
        }
    }
};

}  // namespace feeder::cuda
