// Times the host's part of decoding on a GPU: for random resized crops of a folder's JPEGs, reading the rows that a crop needs
// from a file in the page cache, and planning, which ends with the bytes and rows that the kernels take.
//
//   bench_cuda FOLDER [PASSES]
//
// Prints microseconds of CPU an image, the least of PASSES for each image, on one thread.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <random>
#include <vector>

#include "bench/photos.h"
#include "cpu/decode.h"
#include "cpu/jpeg/bands.h"
#include "cpu/packed/pack.h"
#include "cpu/packed/train.h"
#include "cpu/transcode/transcode.h"
#include "cuda/joined.h"
#include "cuda/plan.h"

using namespace feeder;

namespace {

constexpr CodebookId kId = {1};
constexpr size_t kBatch = 64;  // images whose plans lie in one piece of memory, as in a part of a batch

struct Image {
    int box[4];
    struct Form {  // seekable, packed
        off_t offset = 0;
        std::vector<uint32_t> places;
        int64_t length = 0;
    } form[2];
};

double cpu_us() {
    timespec now;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
    return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

[[noreturn]] void stop(const char* what) {
    std::fprintf(stderr, "bench_cuda: %s\n", what);
    std::exit(1);
}

void append(int file, const uint8_t* bytes, size_t count, Image::Form& form) {
    form.offset = lseek(file, 0, SEEK_END);
    form.length = static_cast<int64_t>(count);
    if (write(file, bytes, count) != static_cast<ssize_t>(count)) stop("can't write to a temporary file");
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 2) {
        std::fprintf(stderr, "usage: bench_cuda FOLDER [PASSES]\n");
        return 2;
    }
    const int passes = argc > 2 ? std::atoi(argv[2]) : 9;
    const std::vector<std::filesystem::path> paths = files_in(argv[1]);
    CodebookTrainer trainer;
    for (const auto& path : paths) trainer.add(read_file(path), 0);
    if (!add_codebook(kId, trainer.train())) stop("no codebook");

    std::FILE* const store = std::tmpfile();
    if (store == nullptr) stop("no temporary file");
    const int file = fileno(store);
    std::mt19937 random(0);
    std::vector<Image> images;
    JpegPacker packer;
    for (const auto& path : paths) {
        const std::vector<uint8_t> original = read_file(path);
        JpegHeader header;
        Bytes seekable;
        std::vector<uint8_t> packed;
        if (!transcode_jpeg(original, TranscodeOptions(), seekable).ok() ||
            !parse_jpeg_header(seekable.span(), header).ok() ||
            !packer.pack(seekable.span(), kId, *find_codebook(kId), 0, packed).ok()) {
            continue;
        }
        Image image;
        if (!find_bands(seekable.span(), header, image.form[0].places) || !find_packed_bands(packed, image.form[1].places))
            stop("no bands");
        append(file, seekable.data(), seekable.size(), image.form[0]);
        append(file, packed.data(), packed.size(), image.form[1]);
        draw_box(random, header.width, header.height, image.box);
        images.push_back(std::move(image));
    }
    if (images.empty()) stop("no JPEG that is seekable and packed");

    std::vector<uint8_t> buffer;
    for (int kind = 0; kind < 2; ++kind) {
        cuda::ImagePlan plan;
        Bytes plans;
        std::vector<double> least[2] = {std::vector<double>(images.size(), 1e30), std::vector<double>(images.size(), 1e30)};
        double bytes[2] = {};
        size_t segments = 0, lines = 0;
        for (int pass = 0; pass < passes; ++pass) {
            bytes[0] = bytes[1] = 0;
            segments = lines = 0;
            for (size_t i = 0; i < images.size(); ++i) {
                if (i % kBatch == 0) plans.set_size(0);
                const Image::Form& form = images[i].form[kind];
                const double started = cpu_us();
                const BandExtent extent = band_extent(form.places, form.length, images[i].box[1], images[i].box[3]);
                const size_t head = static_cast<size_t>(extent.header), rows = static_cast<size_t>(extent.end - extent.begin);
                if (buffer.size() < head + rows) buffer.resize(head + rows);
                if (pread(file, buffer.data(), head, form.offset) != static_cast<ssize_t>(head) ||
                    pread(file, buffer.data() + head, rows, form.offset + extent.begin) != static_cast<ssize_t>(rows)) {
                    stop("can't read the temporary file");
                }
                const double read = cpu_us();
                View view;
                std::copy_n(images[i].box, 4, view.support_box);
                std::copy_n(images[i].box, 4, view.source_box);
                ImageJob job;
                job.file = {buffer.data(), head + rows};
                job.first_row = static_cast<int>(extent.first_row);
                view.out.height = view.out.width = 224;
                job.views = {&view, 1};
                if (!plan.open(job) || !plan.make(plan.groups().front(), plans)) stop("an image is left to the CPU");
                if (!cuda::append_planned(plan, plans)) stop("no memory");
                const double planned = cpu_us();
                least[0][i] = std::min(least[0][i], read - started);
                least[1][i] = std::min(least[1][i], planned - read);
                bytes[0] += static_cast<double>(head + rows);
                bytes[1] += static_cast<double>(plan.byte_count());
                segments += plan.segments().size();
                lines += plan.lines().size();
            }
        }
        const double count = static_cast<double>(images.size());
        double total[2] = {};
        for (int part = 0; part < 2; ++part)
            for (const double us : least[part]) total[part] += us / count;
        std::printf("%s, %zu images: read %.1f us, plan %.1f us, in all %.1f us; bytes read %.0f, for the GPU %.0f and %.0f of rows\n",
                    kind == 0 ? "seekable" : "packed", images.size(), total[0], total[1], total[0] + total[1], bytes[0] / count,
                    bytes[1] / count,
                    sizeof(cuda::ImageRow) + (static_cast<double>(segments) * sizeof(cuda::SegmentRow) +
                                              static_cast<double>(lines) * sizeof(cuda::LineRow)) /
                                                 count);
    }
    std::fclose(store);
    return 0;
}
