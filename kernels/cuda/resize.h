// Planes to the finished output: resized, turned, converted to RGB, normalized and stored. A thread a pixel.
#pragma once

#include "cuda/batch.h"
#include "cuda/filters.h"

namespace feeder::cuda {

// The pixels of cpu/resize/resize.h to the bit: the same roundings between the passes, in the same order. A thread sums
// both directions at once, so that nothing is stored between them; a pixel's neighbours read the same samples, which come
// from the caches.
struct Resize {
    static constexpr int kThreads = 128;
    static constexpr int kPhases = 1;
    using Shared = Nothing;
    using Local = Nothing;

    // See cpu/resize/pixels.h.
    static constexpr int kRedCr = 13173, kGreenCb = -11277, kGreenCr = -23401, kBlueCb = 25297;

    // The weights of an output along an axis.
    struct Taps {
        const int32_t* weight;
        uint32_t step;
        int first, count;

        FEEDER_DEVICE Taps(const Batch& batch, const ImageRow& image, uint32_t a, uint32_t c, uint32_t output) {
            const AxisRow& axis = image.axis[a];
            step = a == 0 ? batch.width : batch.height;
            const int32_t* const table =
                batch.weights + axis.weights + static_cast<uint64_t>(c) * (2 + axis.taps) * step + output;
            first = table[0];
            count = table[step];
            weight = table + 2 * step;
        }
    };

    // Sums over both axes, the inner one for each input of the outer one, and rounds each sum.
    FEEDER_DEVICE static int summed(const uint8_t* samples, const Taps& outer, uint64_t outer_step, const Taps& inner,
                                    uint64_t inner_step, int inner_bits, int outer_bits) {
        int sum = 1 << (outer_bits - 1);
        for (int i = 0; i < outer.count; ++i, samples += outer_step) {
            const uint8_t* at = samples;
            int part = 1 << (inner_bits - 1);
            for (int k = 0; k < inner.count; ++k, at += inner_step) part += inner.weight[k * inner.step] * *at;
            sum += outer.weight[i * outer.step] * (part >> inner_bits);
        }
        return sum >> outer_bits;
    }

    // A component's sample at output (y, x): of 7 fractional bits, or of none where exact.
    FEEDER_DEVICE static int sample(const Batch& batch, const ImageRow& image, uint32_t c, uint32_t y, uint32_t x) {
        const Taps columns(batch, image, 0, c, image.flip != 0 ? batch.width - 1 - x : x);
        const Taps rows(batch, image, 1, c, y);
        const uint64_t stride = 8 * image.block_columns[c];
        const uint64_t down = image.transposed != 0 ? 1 : stride, across = image.transposed != 0 ? stride : 1;
        const uint8_t* const first = batch.samples + 64 * static_cast<uint64_t>(image.first_block[c]) +
                                     static_cast<uint64_t>(rows.first) * down + static_cast<uint64_t>(columns.first) * across;
        constexpr int exact = Filters::kExactBits, plain = Filters::kPlainBits;
        // YCbCr has the vertical pass first, Pillow the horizontal one.
        return image.exact != 0 ? summed(first, rows, down, columns, across, exact, exact)
                                : summed(first, columns, across, rows, down, plain - 7, plain);
    }

    FEEDER_DEVICE static int saturated(int value) { return clamped(value, -32768, 32767); }
    FEEDER_DEVICE static int scaled(int value, int factor_q15) { return (value * factor_q15 + (1 << 14)) >> 15; }
    FEEDER_DEVICE static int level(int value_q7) { return clamped((saturated(value_q7) + 64) >> 7, 0, 255); }

    FEEDER_DEVICE static uint32_t bits_of(float value) {
        union {
            float number;
            uint32_t bits;
        } both;
        both.number = value;
        return both.bits;
    }
    // Round to nearest, ties to even, as in cpu/resize/pixels_portable.cc.
    FEEDER_DEVICE static uint16_t to_float16(float value) {
        const uint32_t bits = bits_of(value), sign = bits >> 16 & 0x8000u, magnitude = bits & 0x7fffffffu;
        if (magnitude > 0x7f800000u) return static_cast<uint16_t>(sign | 0x7e00u);
        if (magnitude >= 0x477ff000u) return static_cast<uint16_t>(sign | 0x7c00u);
        if (magnitude < 0x33000001u) return static_cast<uint16_t>(sign);
        const int exponent = static_cast<int>(magnitude >> 23);
        const bool subnormal = exponent < 113;
        const uint32_t mantissa = subnormal ? (magnitude & 0x7fffffu) | 0x800000u : magnitude - (112u << 23);
        const int drop = subnormal ? 126 - exponent : 13;
        const uint32_t half = 1u << (drop - 1), odd = mantissa >> drop & 1u;
        return static_cast<uint16_t>(sign | (mantissa + half - 1u + odd) >> drop);
    }
    FEEDER_DEVICE static uint16_t to_bfloat16(float value) {
        const uint32_t bits = bits_of(value);
        return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
    }

    FEEDER_DEVICE static void store(const Batch& batch, uint64_t at, uint32_t channel, int pixel) {
        if (batch.type == kUint8) {
            static_cast<uint8_t*>(batch.out)[at] = static_cast<uint8_t>(pixel);
            return;
        }
        const float product = static_cast<float>(pixel) * batch.scale[channel];
        const float value = product + batch.bias[channel];
        if (batch.type == kFloat32) {
            static_cast<float*>(batch.out)[at] = value;
        } else {
            static_cast<uint16_t*>(batch.out)[at] = batch.type == kFloat16 ? to_float16(value) : to_bfloat16(value);
        }
    }

    // Blocks of threads that an image takes.
    FEEDER_DEVICE static uint32_t tiles(const Batch& batch) {
        return (batch.height * batch.width + kThreads - 1) / kThreads;
    }

    template <int kPhase>
    FEEDER_DEVICE static void run(const Batch& batch, Place place, Shared&, Local&) {
        const uint32_t number = place.block / tiles(batch);
        const uint32_t pixel = place.block % tiles(batch) * kThreads + place.thread;
        const uint32_t pixels = batch.height * batch.width;
        if (pixel >= pixels) return;
        const ImageRow& image = batch.images[number];
        const uint32_t y = pixel / batch.width, x = pixel % batch.width;
        int rgb[3];
        rgb[0] = sample(batch, image, 0, y, x);
        if (image.components == 1) {
            rgb[1] = rgb[2] = rgb[0];
        } else {
            rgb[1] = sample(batch, image, 1, y, x);
            rgb[2] = sample(batch, image, 2, y, x);
        }
        if (image.exact == 0) {
            const int luma = rgb[0], cb = rgb[1] - (128 << 7), cr = rgb[2] - (128 << 7);
            rgb[0] = level(luma + cr + scaled(cr, kRedCr));
            rgb[1] = level(luma + scaled(cb, kGreenCb) + scaled(cr, kGreenCr));
            rgb[2] = level(luma + cb + scaled(cb, kBlueCb));
        }
        const uint64_t start = 3 * static_cast<uint64_t>(number) * pixels;
        const uint64_t first = start + (batch.channels_last != 0 ? 3 * static_cast<uint64_t>(pixel) : pixel);
        const uint64_t step = batch.channels_last != 0 ? 1 : pixels;
        store(batch, first, 0, rgb[0]);
        store(batch, first + step, 1, rgb[1]);
        store(batch, first + 2 * step, 2, rgb[2]);
    }
};

}  // namespace feeder::cuda
