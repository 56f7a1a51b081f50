// The resize's integer tables, a thread an output row or column of a component.
#pragma once

#include "cuda/batch.h"

namespace feeder::cuda {

// The numbers of cpu/resize/coefficients.h to the bit, computed without its arrays: doubles in the same order. There every
// function says what it does; here a weight is computed anew wherever it is needed.
struct Filters {
    static constexpr int kThreads = 128;
    static constexpr int kPhases = 1;
    static constexpr int kPlainBits = 14;
    static constexpr int kExactBits = 22;
    using Shared = Nothing;
    using Local = Nothing;

    // Pillow's filter of one output, on the samples of the full resolution (pillow_filter, place_filter).
    struct Full {
        double center, inverse, total;
        int first;      // before it was placed
        int count;
        int begin;      // placed
        bool mirrored;

        FEEDER_DEVICE Full(const AxisRow& axis, uint32_t outputs, uint32_t output) {
            const double scale = static_cast<double>(axis.in1 - axis.in0) / static_cast<int>(outputs);
            const double support = most(scale, 1.0);
            inverse = 1.0 / support;
            center = axis.in0 + (static_cast<int>(output) + 0.5) * scale;
            first = most(static_cast<int>(center - support + 0.5), 0);
            count = least(static_cast<int>(center + support + 0.5), axis.in_size) - first;
            mirrored = axis.mirrored != 0;
            begin = mirrored ? axis.base - (first + count - 1) : first + axis.base;
            total = 0.0;
            FEEDER_KEPT_LOOP
            for (int x = 0; x < count; ++x) total += unscaled(x);
        }
        FEEDER_DEVICE double unscaled(int x) const {
            const double at = (x + first - center + 0.5) * inverse;
            return most(1.0 - (at < 0 ? -at : at), 0.0);
        }
        // The weight of input begin + x; 0 beside the filter.
        FEEDER_DEVICE double weight(int x) const {
            if (x < 0 || x >= count) return 0.0;
            const double value = unscaled(mirrored ? count - 1 - x : x);
            return total != 0.0 ? value / total : value;
        }
    };

    // The same on the samples of a component (compose_filter).
    struct Composed {
        const Full& full;
        int replicate, factor;  // factor 2: smooth; else 1
        int last;               // sample
        int first, count;
        bool inside;            // no sample is missing at the sides

        FEEDER_DEVICE Composed(const Full& filter, const AxisRow::Component& c) : full(filter) {
            const bool smooth = c.smooth != 0;
            replicate = smooth ? c.replicate : c.replicate * c.factor;
            factor = smooth ? c.factor : 1;
            last = c.samples - 1;
            inside = smooth && replicate == 1 && full.begin >= 2 && (full.begin + full.count + 1) / 2 <= last;
            if (inside) {
                first = full.begin / 2 - 1;
                count = (full.begin + full.count) / 2 - first + 1;
                return;
            }
            const int side = smooth ? 1 : 0;
            first = clamped(full.begin / replicate / factor - side, 0, last);
            count = clamped((full.begin + full.count - 1) / (replicate * factor) + side, first, last) - first + 1;
        }
        // The weight of sample first + s.
        FEEDER_DEVICE double weight(int s) const {
            if (inside) {
                const int x = 2 * (first + s) - full.begin;
                double near = 0.0, far = 0.0;
                FEEDER_KEPT_LOOP
                for (int side = -1; side <= 2; ++side) {
                    const double weight = full.weight(x + side);
                    const bool is_near = side == 0 || side == 1;
                    near += is_near ? weight : 0.0;
                    far += is_near ? 0.0 : weight;
                }
                return 0.75 * near + 0.25 * far;
            }
            const int sample = first + s;
            double sum = 0.0;
            FEEDER_KEPT_LOOP
            for (int x = 0; x < full.count; ++x) {
                const int position = (full.begin + x) / replicate;
                const int center = least(position / factor, last);
                const int neighbour = clamped(center + (position % 2 != 0 ? 1 : -1), 0, last);
                const bool near = center == sample, far = factor != 1 && neighbour == sample;
                if (!near && !far) continue;
                const double weight = full.weight(x);
                if (near) sum += factor == 1 ? weight : 0.75 * weight;
                if (far) sum += 0.25 * weight;
            }
            return sum;
        }
    };

    // Blocks of threads that each axis of each component takes.
    FEEDER_DEVICE static uint32_t tiles(const Batch& batch) {
        return (most(batch.height, batch.width) + kThreads - 1) / kThreads;
    }

    // Rounds the weights of an output (TableMaker::round) and stores them.
    template <typename Filter>
    FEEDER_DEVICE static void store(const Filter& filter, int first, int count, bool exact, uint32_t outputs, int32_t* to) {
        to[0] = first;
        to[outputs] = count;
        to += 2 * outputs;
        double total = 0.5;
        int32_t before = 0;
        FEEDER_KEPT_LOOP
        for (int s = 0; s < count; ++s, to += outputs) {
            const double weight = filter.weight(s);
            if (exact) {
                *to = static_cast<int32_t>(0.5 + weight * (1 << kExactBits));
                continue;
            }
            total += weight * (1 << kPlainBits);
            const int32_t rounded = static_cast<int32_t>(total);
            *to = rounded - before;
            before = rounded;
        }
    }

    template <int kPhase>
    FEEDER_DEVICE static void run(const Batch& batch, Place place, Shared&, Local&) {
        const uint32_t tile = place.block % tiles(batch), rest = place.block / tiles(batch);
        const uint32_t c = rest % kComponents, a = rest / kComponents % 2;
        const ImageRow& image = batch.images[rest / kComponents / 2];
        const AxisRow& axis = image.axis[a];
        const uint32_t outputs = a == 0 ? batch.width : batch.height;
        const uint32_t output = tile * kThreads + place.thread;
        if (output >= outputs || c >= image.components) return;
        int32_t* const to = batch.weights + axis.weights + static_cast<uint64_t>(c) * (2 + axis.taps) * outputs + output;
        const Full full(axis, outputs, output);
        const AxisRow::Component& component = axis.component[c];
        if (component.replicate * component.factor == 1) {
            store(full, full.begin, full.count, image.exact != 0, outputs, to);
        } else {
            const Composed composed(full, component);
            store(composed, composed.first, composed.count, image.exact != 0, outputs, to);
        }
    }
};

}  // namespace feeder::cuda
