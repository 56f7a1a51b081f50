// Times the stages of a decode: random resized crops to 224 of the JPEGs in a folder, float32 NCHW, on one thread.
//
//   bench_decode FOLDER [PASSES [LEVEL]]     LEVEL: 0 portable, 1 AVX2, 2 AVX-512
//
// Prints microseconds an image, the least of PASSES for each image, of the files as they are and of their lossless transcode.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <vector>

#include "cpu/decode.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/simd.h"
#include "cpu/transcode/transcode.h"

using namespace feeder;

namespace {

struct Image {
    std::vector<uint8_t> bytes[2];  // as it is, seekable
    JpegHeader header;
    int box[4];
};

std::vector<Image> read_images(const char* folder) {
    std::vector<std::filesystem::path> paths;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(folder))
        if (entry.is_regular_file()) paths.push_back(entry.path());
    std::sort(paths.begin(), paths.end());
    std::mt19937 random(0);
    std::vector<Image> images;
    for (const auto& path : paths) {
        std::ifstream file(path, std::ios::binary);
        Image image;
        image.bytes[0].assign(std::istreambuf_iterator<char>(file), {});
        Bytes seekable;
        if (!parse_jpeg_header(image.bytes[0], image.header).ok()) continue;
        if (!transcode_jpeg(image.bytes[0], TranscodeOptions(), seekable).ok()) continue;
        image.bytes[1].assign(seekable.data(), seekable.data() + seekable.size());
        const int width = image.header.width, height = image.header.height;
        image.box[0] = image.box[1] = 0;
        image.box[2] = width;
        image.box[3] = height;
        for (int attempt = 0; attempt < 10; ++attempt) {
            const double area = std::uniform_real_distribution<double>(0.08, 1.0)(random) * width * height;
            const double ratio =
                std::exp(std::uniform_real_distribution<double>(std::log(3.0 / 4), std::log(4.0 / 3))(random));
            const int w = static_cast<int>(std::lround(std::sqrt(area * ratio)));
            const int h = static_cast<int>(std::lround(std::sqrt(area / ratio)));
            if (w < 1 || h < 1 || w > width || h > height) continue;
            image.box[0] = std::uniform_int_distribution<int>(0, width - w)(random);
            image.box[1] = std::uniform_int_distribution<int>(0, height - h)(random);
            image.box[2] = image.box[0] + w;
            image.box[3] = image.box[1] + h;
            break;
        }
        images.push_back(std::move(image));
    }
    return images;
}

// Mean over the images of the least time of several calls, microseconds.
template <typename Call>
double time_us(std::vector<Image>& images, int passes, const Call& call) {
    std::vector<double> least(images.size(), 1e30);
    for (int pass = 0; pass < passes; ++pass) {
        for (size_t i = 0; i < images.size(); ++i) {
            const auto started = std::chrono::steady_clock::now();
            call(images[i]);
            const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - started;
            least[i] = std::min(least[i], took.count());
        }
    }
    double total = 0;
    for (const double us : least) total += us;
    return total / static_cast<double>(images.size());
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_decode FOLDER [PASSES [LEVEL]]\n");
        return 2;
    }
    const int passes = argc > 2 ? std::atoi(argv[2]) : 9;
    if (argc > 3 && !set_simd_level(static_cast<SimdLevel>(std::atoi(argv[3])))) return 2;
    std::vector<Image> images = read_images(argv[1]);
    std::printf("%zu images, SIMD level %d\n", images.size(), static_cast<int>(simd_level()));
    std::vector<float> out(3 * 224 * 224);
    const float scale[3] = {1 / 58.4f, 1 / 57.1f, 1 / 57.4f}, bias[3] = {-2.1f, -2.0f, -1.8f};
    static ImageDecoder decoder;
    static BaselineDecoder baseline;
    for (const int kind : {1, 0}) {
        const auto decode = [&](Image& image, StageTimes* times) {
            View view;
            std::copy_n(image.box, 4, view.support_box);
            std::copy_n(image.box, 4, view.source_box);
            view.out.data = out.data();
            view.out.height = view.out.width = 224;
            view.out.dtype = Dtype::float32;
            view.out.layout = Layout::nchw;
            view.out.scale = scale;
            view.out.bias = bias;
            ImageJob job;
            job.file = image.bytes[kind];
            job.views = {&view, 1};
            if (decoder.decode(job, DecodeOptions(), times).status > Status::damaged) std::abort();
        };
        const double whole = time_us(images, passes, [&](Image& image) { decode(image, nullptr); });
        const double ours = time_us(images, passes, [&](Image& image) {
            JpegHeader header;
            if (!parse_jpeg_header(image.bytes[kind], header).ok()) std::abort();
            baseline.read_coefficients(image.bytes[kind], header, nullptr);
        });
        const double libjpeg = time_us(images, passes, [&](Image& image) {
            JpegHeader header;
            if (!parse_jpeg_header(image.bytes[kind], header).ok() ||
                !read_with_libjpeg(image.bytes[kind], header).ok())
                std::abort();
        });
        StageTimes least[1];
        std::vector<StageTimes> best(images.size());
        int64_t StageTimes::*const stages[] = {&StageTimes::header,  &StageTimes::tables,  &StageTimes::markers,
                                               &StageTimes::unstuff, &StageTimes::entropy, &StageTimes::idct,
                                               &StageTimes::libjpeg, &StageTimes::resize};
        const char* const names[] = {"header", "tables", "markers", "unstuff", "entropy", "idct", "libjpeg", "resize"};
        for (int pass = 0; pass < passes; ++pass) {
            for (size_t i = 0; i < images.size(); ++i) {
                StageTimes times;
                decode(images[i], &times);
                for (const auto stage : stages)
                    best[i].*stage = pass == 0 ? times.*stage : std::min(best[i].*stage, times.*stage);
            }
        }
        std::printf("%s: decode %.1f us; entropy decoding of whole images %.1f us, libjpeg-turbo's %.1f us\n ",
                    kind == 1 ? "seekable" : "ordinary", whole, ours, libjpeg);
        for (int s = 0; s < 8; ++s) {
            for (const StageTimes& times : best) least->*stages[s] += times.*stages[s];
            std::printf(" %s %.1f", names[s],
                        static_cast<double>(least->*stages[s]) / 1000 / static_cast<double>(images.size()));
        }
        std::printf("\n");
    }
    return 0;
}
