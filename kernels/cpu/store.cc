#include "store.h"

#include <cstring>

namespace feeder {

RowStore::RowStore(const Output& output, const PixelKernels& kernels) : output_(output), kernels_(kernels) {
    for (int i = 0; i < kPattern; ++i) {
        // By channel: one channel's values throughout for a planar row, all three in turn for an interleaved one.
        for (int c = 0; c < 3; ++c) {
            const int channel = output.layout == Layout::nhwc ? i % 3 : c;
            scale_[c][i] = output.scale ? output.scale[channel] : 1.0f;
            bias_[c][i] = output.bias ? output.bias[channel] : 0.0f;
        }
    }
    const bool interleaved = output.layout == Layout::nhwc && output.dtype != Dtype::uint8;
    if (interleaved) pixels_.resize(static_cast<size_t>(output.width) * 3 + kRowPadding);
    // Whole cache lines only: a float32 image is far greater than the inner caches, and nobody on this core reads it.
    const size_t row_bytes = static_cast<size_t>(output.width) * 4 * (output.layout == Layout::nhwc ? 3 : 1);
    stream_ = output.dtype == Dtype::float32 && reinterpret_cast<uintptr_t>(output.data) % 64 == 0 &&
              row_bytes % 64 == 0;
}

void RowStore::affine(const uint8_t* samples, int n, int channel, size_t at) {
    const float* scale = scale_[channel];
    const float* bias = bias_[channel];
    switch (output_.dtype) {
        case Dtype::uint8: std::memcpy(static_cast<uint8_t*>(output_.data) + at, samples, static_cast<size_t>(n)); break;
        case Dtype::float32:
            kernels_.affine_float32(samples, n, scale, bias, static_cast<float*>(output_.data) + at, stream_);
            break;
        case Dtype::float16:
            kernels_.affine_float16(samples, n, scale, bias, static_cast<uint16_t*>(output_.data) + at);
            break;
        case Dtype::bfloat16:
            kernels_.affine_bfloat16(samples, n, scale, bias, static_cast<uint16_t*>(output_.data) + at);
            break;
    }
}

void RowStore::row(int y, const uint8_t* const rgb[3]) {
    const size_t width = static_cast<size_t>(output_.width), height = static_cast<size_t>(output_.height);
    const size_t row = static_cast<size_t>(y);
    if (output_.layout == Layout::nchw) {
        for (int c = 0; c < 3; ++c)
            affine(rgb[c], output_.width, c, (static_cast<size_t>(c) * height + row) * width);
    } else if (output_.dtype == Dtype::uint8) {
        kernels_.interleave(rgb, output_.width, static_cast<uint8_t*>(output_.data) + row * width * 3);
    } else {
        kernels_.interleave(rgb, output_.width, pixels_.data());
        affine(pixels_.data(), output_.width * 3, 0, row * width * 3);
    }
}

void RowStore::end() {
    if (stream_) kernels_.end_stream();
}

}  // namespace feeder
