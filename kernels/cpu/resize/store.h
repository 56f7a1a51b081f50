// The output: dtype, layout and normalization of one image.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/resize/pixels.h"

namespace feeder {

enum class Dtype : uint8_t { uint8, float32, float16, bfloat16 };
enum class Layout : uint8_t { nchw, nhwc };

constexpr size_t dtype_bytes(Dtype dtype) {
    return dtype == Dtype::uint8 ? 1 : dtype == Dtype::float32 ? 4 : 2;
}

// One output image: channels in the given layout, dense unless it says otherwise.
struct Output {
    void* data = nullptr;  // aligned to dtype_bytes(dtype)
    Dtype dtype = Dtype::uint8;
    Layout layout = Layout::nchw;
    int height = 0;
    int width = 0;
    const float* scale = nullptr;  // [3]; out = pixel(0-255) * scale + bias, product rounded before the sum
    const float* bias = nullptr;   // [3]; null with scale: the pixel's own value. uint8 takes neither.
    // Elements from a row to the next and from a channel to the next, where nchw is not dense; 0 and 0 if it is.
    size_t row_elements = 0;
    size_t channel_elements = 0;
    int channels = 3;  // or 1: red alone, in the layout nchw
};

// Writes rows of 8-bit RGB to an output image.
class RowStore {
  public:
    RowStore(const Output& output, const PixelKernels& kernels);
    // Afterwards other threads may be told that the output is there, although some stores go past the caches.
    ~RowStore();
    RowStore(const RowStore&) = delete;
    RowStore& operator=(const RowStore&) = delete;

    // Rows y ... y + count - 1, at most kLanes, from samples `stride` bytes apart, with kRowPadding (see pixels.h).
    void rows(int y, int count, const uint8_t* const rgb[3], ptrdiff_t stride);

  private:
    void affine(const uint8_t* samples, int n, int channel, size_t at);

    Output output_;
    const PixelKernels& kernels_;
    float scale_[3][kPatternMemory];
    float bias_[3][kPatternMemory];
    bool streams_;     // past the caches, if the kernels do
    bool joins_rows_;  // so that stores past the caches are of whole cache lines
    std::vector<uint8_t> pixels_;  // of a stripe's rows, one behind the other
};

// Maps planar images of three channels to floats: out = sample * scale + bias of the channel, as RowStore does. `plane`:
// samples of a channel; `pixels` and `out` are dense and need no padding, `out` is aligned to a float.
void map_images(const uint8_t* pixels, size_t images, size_t plane, const float scale[3], const float bias[3],
                const PixelKernels& kernels, float* out);

// Copies bytes that this CPU does not need soon, past its caches where it can.
void copy_past_caches(const uint8_t* bytes, size_t count, const PixelKernels& kernels, uint8_t* out);

}  // namespace feeder
