// Packs the JPEGs of a folder with a codebook trained on them, checks that they come back, and times random resized crops to
// 224, float32 NCHW, beside the seekable JPEGs, in turns and on one thread.
//
//   bench_packed FOLDER [PASSES [LEVEL]]     LEVEL: 0 portable, 1 AVX2, 2 AVX-512
//
// Prints sizes, the reasons why files are kept as they are, and microseconds an image, the least of PASSES for each image.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "bench/photos.h"
#include "cpu/decode.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/packed/pack.h"
#include "cpu/packed/train.h"
#include "cpu/simd.h"
#include "cpu/transcode/transcode.h"

using namespace feeder;

namespace {

constexpr CodebookId kId = {1};

struct Image {
    std::vector<uint8_t> original, bytes[2];  // seekable, packed
    int box[4];
};

double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_packed FOLDER [PASSES [LEVEL]]\n");
        return 2;
    }
    const int passes = argc > 2 ? std::atoi(argv[2]) : 9;
    if (argc > 3 && !set_simd_level(static_cast<SimdLevel>(std::atoi(argv[3])))) return 2;
    const std::vector<std::filesystem::path> paths = files_in(argv[1]);

    CodebookTrainer trainer;
    for (const auto& path : paths) trainer.add(read_file(path), 0);
    double started = now_us();
    const std::vector<uint8_t> codebook_bytes = trainer.train();
    std::printf("codebook: %zu bytes, trained in %.0f ms\n", codebook_bytes.size(), (now_us() - started) / 1000);
    if (!add_codebook(kId, codebook_bytes)) return 1;
    const Codebook& codebook = *find_codebook(kId);

    std::mt19937 random(0);
    std::vector<Image> images;
    std::map<std::string, int> reasons;
    JpegPacker packer;
    double sizes[3] = {}, pack_us = 0, transcode_us = 0;
    for (const auto& path : paths) {
        Image image;
        image.original = read_file(path);
        JpegHeader header;
        Bytes seekable;
        started = now_us();
        if (!parse_jpeg_header(image.original, header).ok() ||
            !transcode_jpeg(image.original, TranscodeOptions(), seekable).ok()) {
            ++reasons["not seekable"];
            continue;
        }
        transcode_us += now_us() - started;
        image.bytes[0].assign(seekable.data(), seekable.data() + seekable.size());
        started = now_us();
        const Outcome outcome = packer.pack(image.original, kId, codebook, 0, image.bytes[1]);
        pack_us += now_us() - started;
        ++reasons[outcome.ok() ? "packed" : outcome.reason];
        if (!outcome.ok()) continue;
        PackedFile packed;
        Bytes back;
        if (!packed.open(image.bytes[1], -1).ok() || !unpack_jpeg(packed, codebook, back).ok() ||
            back.size() != image.original.size() || std::memcmp(back.data(), image.original.data(), back.size()) != 0) {
            std::printf("%s does not come back\n", path.c_str());
            return 1;
        }
        sizes[0] += static_cast<double>(image.original.size());
        sizes[1] += static_cast<double>(image.bytes[0].size());
        sizes[2] += static_cast<double>(image.bytes[1].size());
        draw_box(random, header.width, header.height, image.box);
        images.push_back(std::move(image));
    }
    const double count = static_cast<double>(images.size());
    for (const auto& [reason, number] : reasons) std::printf("%s: %d\n", reason.c_str(), number);
    std::printf("bytes an image: original %.0f, seekable %.0f, packed %.0f: %.3f of seekable, %.3f of original\n",
                sizes[0] / count, sizes[1] / count, sizes[2] / count, sizes[2] / sizes[1], sizes[2] / sizes[0]);
    std::printf("to make one: seekable %.0f us, packed %.0f us\n", transcode_us / count, pack_us / count);

    std::vector<float> out[2] = {std::vector<float>(3 * 224 * 224), std::vector<float>(3 * 224 * 224)};
    const float scale[3] = {1 / 58.4f, 1 / 57.1f, 1 / 57.4f}, bias[3] = {-2.1f, -2.0f, -1.8f};
    static ImageDecoder decoder;
    const auto decode = [&](Image& image, int kind, bool floats, Fidelity fidelity) {
        View view;
        std::copy_n(image.box, 4, view.support_box);
        std::copy_n(image.box, 4, view.source_box);
        view.out.data = out[kind].data();
        view.out.height = view.out.width = 224;
        view.out.dtype = floats ? Dtype::float32 : Dtype::uint8;
        view.out.layout = Layout::nchw;
        view.out.scale = floats ? scale : nullptr;
        view.out.bias = floats ? bias : nullptr;
        ImageJob job;
        job.file = image.bytes[kind];
        job.views = {&view, 1};
        const Outcome outcome = decoder.decode(job, {fidelity, 0});
        if (outcome.status > Status::ok) {
            std::printf("%s\n", outcome.reason.c_str());
            std::exit(1);
        }
    };
    for (const Fidelity fidelity : {Fidelity::fast, Fidelity::exact}) {
        for (const bool floats : {true, false}) {
            std::vector<double> least[2] = {std::vector<double>(images.size(), 1e30),
                                            std::vector<double>(images.size(), 1e30)};
            for (int pass = 0; pass < passes; ++pass) {
                for (size_t i = 0; i < images.size(); ++i) {
                    for (int kind = 0; kind < 2; ++kind) {
                        started = now_us();
                        decode(images[i], kind, floats, fidelity);
                        least[kind][i] = std::min(least[kind][i], now_us() - started);
                    }
                    if (std::memcmp(out[0].data(), out[1].data(), out[0].size() * sizeof(float)) != 0) {
                        std::printf("image %zu differs\n", i);
                        return 1;
                    }
                }
            }
            double total[2] = {};
            for (int kind = 0; kind < 2; ++kind)
                for (const double us : least[kind]) total[kind] += us;
            std::printf("%s, %s: seekable %.1f us, packed %.1f us, %.2f times as fast\n",
                        fidelity == Fidelity::fast ? "fast" : "exact", floats ? "float32" : "uint8", total[0] / count,
                        total[1] / count, total[0] / total[1]);
        }
    }
    return 0;
}
