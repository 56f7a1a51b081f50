// Times resample() by SIMD level: the least of many runs, each on another image of a batch, so that the output is as cold
// as a loader's. Usage: bench_resize [crop_px] [output_px] [rounds]
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "cpu/resize/resize.h"
#include "cpu/simd.h"

using namespace feeder;

namespace {

struct Work {
    const char* name;
    ColorModel color;
    int factor;  // of chroma subsampling, both ways
    Dtype dtype;
    Layout layout;
    int orientation;
};

constexpr int kBatch = 32;

double time_us(const Work& work, int crop, int size, int rounds) {
    const int image = crop + 96;
    const int channels = work.color == ColorModel::gray ? 1 : 3;
    std::vector<std::vector<uint8_t>> memory;
    Planes planes;
    planes.count = channels;
    planes.color = work.color;
    planes.h_max = planes.v_max = work.factor;
    planes.window_width = planes.window_height = planes.image_width = planes.image_height = image;
    unsigned state = 1;
    for (int i = 0; i < channels; ++i) {
        const int factor = i ? work.factor : 1;
        const int side = (image + factor - 1) / factor;
        memory.emplace_back(static_cast<size_t>(side) * side);
        for (uint8_t& value : memory.back()) value = static_cast<uint8_t>((state = state * 1664525u + 1013904223u) >> 24);
        planes.plane[i] = {memory.back().data(), side, side, side, 1};
        planes.h_factor[i] = planes.v_factor[i] = work.factor / factor;
    }
    std::vector<uint8_t> interleaved;
    if (work.color == ColorModel::rgb) {
        interleaved.resize(static_cast<size_t>(image) * image * 3, 77);
        for (int i = 0; i < 3; ++i) planes.plane[i] = {interleaved.data() + i, image * 3, image, image, 3};
    }
    const size_t image_bytes = static_cast<size_t>(size) * size * 3 * dtype_bytes(work.dtype);
    const size_t padded = (image_bytes + 4095) / 4096 * 4096;
    auto* batch = static_cast<uint8_t*>(std::aligned_alloc(4096, padded * kBatch));
    std::fill(batch, batch + padded * kBatch, uint8_t{0});
    const float scale[3] = {0.0171f, 0.0175f, 0.0174f}, bias[3] = {-2.1f, -2.0f, -1.8f};
    Scratch scratch;
    double least = 1e30;
    for (int round = 0; round < rounds; ++round) {
        const auto start = std::chrono::steady_clock::now();
        for (int i = 0; i < kBatch; ++i) {
            Output out{batch + padded * i, work.dtype, work.layout, size, size,
                       work.dtype == Dtype::uint8 ? nullptr : scale, work.dtype == Dtype::uint8 ? nullptr : bias};
            // Each crop differs, as random ones do: no table is reused.
            const int left = 2 * i + 1, top = 95 - 2 * i;
            const int support[4] = {left, top, left + crop - i % 2, top + crop - i % 3};
            const double source[4] = {double(support[0]), double(support[1]), double(support[2]), double(support[3])};
            resample(planes, source, support, work.orientation, i % 2, ResizeFilter::bilinear, out, scratch);
        }
        const std::chrono::duration<double, std::micro> passed = std::chrono::steady_clock::now() - start;
        least = std::min(least, passed.count() / kBatch);
    }
    std::free(batch);
    return least;
}

}  // namespace

int main(int argc, char** argv) {
    const int crop = argc > 1 ? std::atoi(argv[1]) : 320;
    const int size = argc > 2 ? std::atoi(argv[2]) : 224;
    const int rounds = argc > 3 ? std::atoi(argv[3]) : 30;
    const Work works[] = {
        {"4:2:0 float32 nchw", ColorModel::ycbcr, 2, Dtype::float32, Layout::nchw, 1},
        {"4:2:0 float32 nhwc", ColorModel::ycbcr, 2, Dtype::float32, Layout::nhwc, 1},
        {"4:2:0 float16 nchw", ColorModel::ycbcr, 2, Dtype::float16, Layout::nchw, 1},
        {"4:2:0 uint8 nchw", ColorModel::ycbcr, 2, Dtype::uint8, Layout::nchw, 1},
        {"4:2:0 uint8 nhwc", ColorModel::ycbcr, 2, Dtype::uint8, Layout::nhwc, 1},
        {"4:2:0 uint8 rotated", ColorModel::ycbcr, 2, Dtype::uint8, Layout::nchw, 6},
        {"4:4:4 float32 nchw", ColorModel::ycbcr, 1, Dtype::float32, Layout::nchw, 1},
        {"rgb float32 nchw", ColorModel::rgb, 1, Dtype::float32, Layout::nchw, 1},
        {"rgb uint8 nchw", ColorModel::rgb, 1, Dtype::uint8, Layout::nchw, 1},
        {"gray uint8 nchw", ColorModel::gray, 1, Dtype::uint8, Layout::nchw, 1},
    };
    std::printf("%d x %d -> %d x %d, microseconds per image\n%-22s%10s%10s%10s\n", crop, crop, size, size, "",
                "portable", "avx2", "avx512");
    for (const Work& work : works) {
        std::printf("%-22s", work.name);
        for (const SimdLevel level : {SimdLevel::portable, SimdLevel::avx2, SimdLevel::avx512})
            if (set_simd_level(level)) std::printf("%10.1f", time_us(work, crop, size, rounds));
        std::printf("\n");
    }
}
