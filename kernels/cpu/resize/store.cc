#include "cpu/resize/store.h"

#include <algorithm>
#include <cstring>

#if defined(__x86_64__)
#include <xmmintrin.h>
#endif

namespace feeder {
namespace {

constexpr size_t kLineBytes = 64;  // of a cache line
constexpr size_t kMostAtOnce = size_t{1} << 20;  // samples: the kernels count in int

// Afterwards other threads may be told of what was stored past the caches.
void fence([[maybe_unused]] const PixelKernels& kernels) {
#if defined(__x86_64__)
    if (kernels.streams) _mm_sfence();
#endif
}

// Maps samples of one channel, of which the last ones are copied, as the kernels read past them.
void map_plane(const uint8_t* samples, size_t n, const float* scale, const float* bias, const PixelKernels& kernels,
               float* out) {
    constexpr size_t pattern = kPattern;
    while (n >= 2 * pattern) {
        const size_t count = (n < kMostAtOnce ? n - pattern : kMostAtOnce) / pattern * pattern;
        kernels.affine_float32(samples, static_cast<int>(count), scale, bias, out);
        samples += count, out += count, n -= count;
    }
    uint8_t last[2 * kPattern + kRowPadding] = {};
    std::memcpy(last, samples, n);
    kernels.affine_float32(last, static_cast<int>(n), scale, bias, out);
}

}  // namespace

RowStore::RowStore(const Output& output, const PixelKernels& kernels) : output_(output), kernels_(kernels) {
    for (int i = 0; i < kPatternMemory; ++i) {
        // By channel: one channel's values throughout for a planar row, all three in turn for an interleaved one.
        for (int c = 0; c < 3; ++c) {
            const int channel = output.layout == Layout::nhwc ? i % 3 : c;
            scale_[c][i] = output.scale ? output.scale[channel] : 1.0f;
            bias_[c][i] = output.bias ? output.bias[channel] : 0.0f;
        }
    }
    const size_t line = kLineBytes / dtype_bytes(output.dtype);
    streams_ = kernels.streams && (output.dtype == Dtype::float32 || output.dtype == Dtype::uint8) &&
               output.layout == Layout::nchw && output.row_elements == 0;
    joins_rows_ = streams_ && static_cast<size_t>(output.width) % line != 0;
    const bool interleaves = output.layout == Layout::nhwc && output.dtype != Dtype::uint8;
    if (joins_rows_ || interleaves) pixels_.resize(static_cast<size_t>(output.width) * 3 * kLanes + kRowPadding);
}

RowStore::~RowStore() { fence(kernels_); }

void RowStore::affine(const uint8_t* samples, int n, int channel, size_t at) {
    const float* scale = scale_[channel];
    const float* bias = bias_[channel];
    switch (output_.dtype) {
        case Dtype::uint8: {
            uint8_t* const out = static_cast<uint8_t*>(output_.data) + at;
            streams_ ? kernels_.copy(samples, n, out) : void(std::memcpy(out, samples, static_cast<size_t>(n)));
            break;
        }
        case Dtype::float32:
            kernels_.affine_float32(samples, n, scale, bias, static_cast<float*>(output_.data) + at);
            break;
        case Dtype::float16:
            kernels_.affine_float16(samples, n, scale, bias, static_cast<uint16_t*>(output_.data) + at);
            break;
        case Dtype::bfloat16:
            kernels_.affine_bfloat16(samples, n, scale, bias, static_cast<uint16_t*>(output_.data) + at);
            break;
    }
}

void RowStore::rows(int y, int count, const uint8_t* const rgb[3], ptrdiff_t stride) {
    const size_t width = static_cast<size_t>(output_.width), height = static_cast<size_t>(output_.height);
    const size_t first = static_cast<size_t>(y);
    if (joins_rows_) {
        for (int c = 0; c < output_.channels; ++c) {
            const uint8_t* joined = rgb[c];
            if (stride != output_.width) {
                uint8_t* const pixels = pixels_.data();
                for (int i = 0; i < count; ++i)
                    std::memcpy(pixels + static_cast<size_t>(i) * width, rgb[c] + i * stride, width);
                joined = pixels;
            }
            affine(joined, output_.width * count, c, (static_cast<size_t>(c) * height + first) * width);
        }
        return;
    }
    if (output_.layout == Layout::nchw) {
        const size_t row = output_.row_elements ? output_.row_elements : width;
        const size_t channel = output_.row_elements ? output_.channel_elements : height * width;
        // Channel by channel: long runs of neighbouring addresses.
        for (int c = 0; c < output_.channels; ++c)
            for (int i = 0; i < count; ++i)
                affine(rgb[c] + i * stride, output_.width, c,
                       static_cast<size_t>(c) * channel + (first + static_cast<size_t>(i)) * row);
        return;
    }
    const size_t at = first * width * 3;
    for (int i = 0; i < count; ++i) {
        const uint8_t* const row[3] = {rgb[0] + i * stride, rgb[1] + i * stride, rgb[2] + i * stride};
        uint8_t* const to = output_.dtype == Dtype::uint8 ? static_cast<uint8_t*>(output_.data) + at : pixels_.data();
        kernels_.interleave(row, output_.width, to + static_cast<size_t>(i) * width * 3);
    }
    if (output_.dtype != Dtype::uint8) affine(pixels_.data(), output_.width * 3 * count, 0, at);
}

void map_images(const uint8_t* pixels, size_t images, size_t plane, const float scale[3], const float bias[3],
                const PixelKernels& kernels, float* out) {
    float scales[3][kPatternMemory], biases[3][kPatternMemory];
    for (int c = 0; c < 3; ++c) {
        std::fill_n(scales[c], kPatternMemory, scale[c]);
        std::fill_n(biases[c], kPatternMemory, bias[c]);
    }
    for (size_t i = 0; i < 3 * images; ++i)
        map_plane(pixels + i * plane, plane, scales[i % 3], biases[i % 3], kernels, out + i * plane);
    fence(kernels);
}

void copy_past_caches(const uint8_t* bytes, size_t count, const PixelKernels& kernels, uint8_t* out) {
    for (size_t at = 0; at < count; at += kMostAtOnce)
        kernels.copy(bytes + at, static_cast<int>(std::min(count - at, kMostAtOnce)), out + at);
    fence(kernels);
}

}  // namespace feeder
