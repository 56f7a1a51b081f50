// The loops that make the tables of a resize, once per SIMD level. All levels give the same bits.
//
// Tables are rebuilt for nearly every image. The outputs lie side by side, in the lanes of a vector, and a row holds one
// weight of each: no loop depends on an output's number of weights.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/image.h"
#include "cpu/simd.h"

namespace feeder {

inline constexpr int kFilterLanes = 16;    // outputs are padded to a multiple of this with copies of the last one
inline constexpr int kFilterPadding = 7;  // rows before and after the weights

struct FilterAxis {
    ResizeFilter filter;
    int in_size;
    double in0;
    double scale;
    int outputs;
};

// `weight` points to [capacity, lanes]. compose_smooth() also reads kFilterPadding rows before and after, of zeros.
struct FilterRows {
    int32_t* first;
    int32_t* count;
    double* weight;
    int capacity;
    ptrdiff_t lanes;
};

// Integer values in the same places; those before first and from count on are zeros, but for `skip` ones at the start.
struct RoundedRows {
    int32_t* first;
    int32_t* count;
    int32_t* skip;
    int32_t* value;
};

struct FilterReach {
    int begin;  // all inputs are in [begin, end)
    int end;
};

struct FilterKernels {
    // Pillow's antialiased filters (ImagingResample, BILINEAR and BICUBIC), to the bit.
    void (*weigh)(const FilterAxis& axis, const FilterRows& out);

    // The filter on samples that a decoder upsamples by 2 with libjpeg's "fancy" weights, away from the first and last ones.
    void (*compose_smooth)(const FilterRows& full, const FilterRows& out);

    // Weights times `one`, rounded, without a leading and a trailing zero. running: so that they add up to the rounded
    // total.
    FilterReach (*round_weights)(const FilterRows& filter, double one, bool running, const RoundedRows& out);

    // Pairs of values [pairs, lanes], from value shift[i] on (-1, 0 or 1); the first one in the low half.
    void (*pair_values)(const int32_t* values, const int32_t* shift, int lanes, int pairs, int32_t* plain);
};

const FilterKernels& portable_filter_kernels();
#if defined(__x86_64__)
const FilterKernels& avx2_filter_kernels();
const FilterKernels& avx512_filter_kernels();
#endif

// The kernels of simd_level().
inline const FilterKernels& filter_kernels() {
#if defined(__x86_64__)
    switch (simd_level()) {
        case SimdLevel::avx512: return avx512_filter_kernels();
        case SimdLevel::avx2: return avx2_filter_kernels();
        case SimdLevel::portable: break;
    }
#endif
    return portable_filter_kernels();
}

}  // namespace feeder
