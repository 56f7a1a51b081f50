// Where finished pixels go: dtype, layout and normalization of one output image.
#pragma once

#include <cstddef>
#include <cstdint>

namespace feeder {

enum class Dtype : uint8_t { uint8, float32, float16, bfloat16 };
enum class Layout : uint8_t { nchw, nhwc };

constexpr size_t dtype_bytes(Dtype dtype) {
    return dtype == Dtype::uint8 ? 1 : dtype == Dtype::float32 ? 4 : 2;
}

// One output image: three channels, dense, in the given layout.
struct Output {
    void* data = nullptr;  // aligned to dtype_bytes(dtype)
    Dtype dtype = Dtype::uint8;
    Layout layout = Layout::nchw;
    int height = 0;
    int width = 0;
    const float* scale = nullptr;  // [3]; out = pixel(0-255) * scale + bias, product rounded before the sum
    const float* bias = nullptr;   // [3]; null with scale: the pixel's own value. uint8 takes neither.
};

}  // namespace feeder
