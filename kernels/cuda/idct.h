// The inverse DCT: coefficients to samples, libjpeg-turbo's accurate integer one to the bit.
#pragma once

#include "cuda/batch.h"

namespace feeder::cuda {

// Eight threads transform a block, each a column and then a row. The arithmetic is that of Note [inverse DCT] in
// cpu/jpeg/idct.h: products and sums that wrap at 16 bits, 32-bit sums of products, saturation in between.
struct InverseDct {
    static constexpr int kBlocks = 16;
    static constexpr int kThreads = 8 * kBlocks;
    static constexpr int kPhases = 2;

    struct Shared {
        int16_t values[kBlocks][8][9];  // [block, row, column]; nine, so that threads use different banks
    };
    struct Local {
        uint32_t image;
    };

    static constexpr int kConstBits = 13;  // as in jidctint.c
    static constexpr int kPass1Bits = 2;
    static constexpr int kF0298 = 2446, kF0390 = 3196, kF0541 = 4433, kF0765 = 6270, kF0899 = 7373, kF1175 = 9633,
                         kF1501 = 12299, kF1847 = 15137, kF1961 = 16069, kF2053 = 16819, kF2562 = 20995, kF3072 = 25172;
    static constexpr int kSafeLevel = 8192;  // see cpu/jpeg/idct.h

    template <int kShift>
    FEEDER_DEVICE static void transform(int (&v)[8]) {
        constexpr int half = 1 << (kShift - 1);
        const int tmp0 = static_cast<int16_t>(v[0] + v[4]) * (1 << kConstBits) + half;
        const int tmp1 = static_cast<int16_t>(v[0] - v[4]) * (1 << kConstBits) + half;
        const int tmp2 = v[2] * kF0541 + v[6] * (kF0541 - kF1847);
        const int tmp3 = v[2] * (kF0541 + kF0765) + v[6] * kF0541;
        const int e0 = tmp0 + tmp3, e3 = tmp0 - tmp3, e1 = tmp1 + tmp2, e2 = tmp1 - tmp2;
        const int s37 = static_cast<int16_t>(v[3] + v[7]), s15 = static_cast<int16_t>(v[1] + v[5]);
        const int z3 = s37 * (kF1175 - kF1961) + s15 * kF1175;
        const int z4 = s37 * kF1175 + s15 * (kF1175 - kF0390);
        const int o0 = v[7] * (kF0298 - kF0899) - v[1] * kF0899 + z3;
        const int o3 = v[1] * (kF1501 - kF0899) - v[7] * kF0899 + z4;
        const int o1 = v[5] * (kF2053 - kF2562) - v[3] * kF2562 + z4;
        const int o2 = v[3] * (kF3072 - kF2562) - v[5] * kF2562 + z3;
        const auto descaled = [](int value) { return clamped(value >> kShift, -32768, 32767); };
        v[0] = descaled(e0 + o3);
        v[7] = descaled(e0 - o3);
        v[1] = descaled(e1 + o2);
        v[6] = descaled(e1 - o2);
        v[2] = descaled(e2 + o1);
        v[5] = descaled(e2 - o1);
        v[3] = descaled(e3 + o0);
        v[4] = descaled(e3 - o0);
    }

    template <int kPhase>
    FEEDER_DEVICE static void run(const Batch& batch, Place place, Shared& shared, Local& local) {
        const uint32_t slot = place.thread / 8, line = place.thread % 8;
        const uint32_t block = place.block * kBlocks + slot;
        if (block >= batch.block_count) return;
        int16_t(&values)[8][9] = shared.values[slot];
        int v[8];
        if constexpr (kPhase == 0) {
            local.image = image_of_block(batch, block);
            const ImageRow& image = batch.images[local.image];
            const uint32_t c = block >= image.first_block[1] ? block >= image.first_block[2] ? 2 : 1 : 0;
            const int16_t* const coefficients = batch.coefficients + 64 * static_cast<uint64_t>(block);
            for (uint32_t y = 0; y < 8; ++y)
                v[y] = static_cast<int16_t>(coefficients[8 * y + line] * image.quant[c][8 * y + line]);
            if (v[0] < -kSafeLevel || v[0] >= kSafeLevel) set_bits(batch.faults + local.image, kUnusual);
            transform<kConstBits - kPass1Bits>(v);
            for (uint32_t y = 0; y < 8; ++y) values[y][line] = static_cast<int16_t>(v[y]);
        } else {
            const ImageRow& image = batch.images[local.image];
            const uint32_t c = block >= image.first_block[1] ? block >= image.first_block[2] ? 2 : 1 : 0;
            const uint32_t number = block - image.first_block[c], columns = image.block_columns[c];
            for (uint32_t x = 0; x < 8; ++x) v[x] = values[line][x];
            transform<kConstBits + kPass1Bits + 3>(v);
            uint64_t row = 0;
            for (int x = 0; x < 8; ++x) row |= static_cast<uint64_t>(clamped(v[x], -128, 127) + 128) << (8 * x);
            const uint64_t y = 8 * (number / columns) + line;
            uint64_t* const plane = reinterpret_cast<uint64_t*>(batch.samples + 64 * static_cast<uint64_t>(image.first_block[c]));
            plane[y * columns + number % columns] = row;
        }
    }
};

}  // namespace feeder::cuda
