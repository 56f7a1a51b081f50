// The CUDA kernels, run on the CPU (kernels/cuda/emulate.h), against libjpeg and the CPU's resize. Three orders of threads must
// write the same. What the kernels accept must have libjpeg's samples, which libjpeg must accept too, and the pixels that
// the CPU makes of them; a JPEG that packs must give the same from its packed form.
//
// The input's last 12 bytes choose the box, orientation, flip and the form; the rest is the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/boxes.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/planes.h"
#include "cpu/packed/pack.h"
#include "cpu/packed/train.h"
#include "cpu/resize/resize.h"
#include "cuda/emulate.h"
#include "fuzz/mutate.h"

using namespace feeder;
using namespace feeder::cuda;

namespace {

constexpr int64_t kMaxPixels = 1 << 16;
constexpr size_t kChoiceBytes = 12;
constexpr int kHeight = 24, kWidth = 16;

int little_endian16(const uint8_t* bytes) { return bytes[0] | bytes[1] << 8; }

const Codebook& codebook(const CodebookId& id) {
    if (find_codebook(id) == nullptr) {
        std::vector<Shape> shapes;
        for (unsigned i = 0; i < 256u; ++i) {
            Shape shape;
            for (size_t g = 0; g < kGroups; ++g) shape[g] = static_cast<uint8_t>((i * 37 >> g) & 7);
            shapes.push_back(shape);
        }
        if (!add_codebook(id, write_codebook(shapes, shapes))) std::abort();
    }
    return *find_codebook(id);
}

// Runs the kernels in three orders. False where a kernel leaves the image to the CPU.
bool emulated(const BatchPlan& plan, const Finish& finish, Written& written) {
    written = emulate(plan, finish, Order::forward);
    if (written != emulate(plan, finish, Order::backward)) std::abort();
    if (written != emulate(plan, finish, Order::shuffled)) std::abort();
    return written.faults[0] == 0;
}

bool same_samples(const ImageRow& image, const Written& written, const Planes& planes, const PixelBox& box) {
    for (int i = 0; i < planes.count; ++i) {
        const PixelBox part = samples_of(planes, i, box);
        // The kernels' window begins where an MCU does, libjpeg's planes may begin before.
        const int left = static_cast<int>(image.first_column) * 8 * image.h[i] - planes.origin_x * planes.h_factor[i] / planes.h_max;
        const int top = static_cast<int>(image.first_row) * 8 * image.v[i] - planes.origin_y * planes.v_factor[i] / planes.v_max;
        const ptrdiff_t stride = 8 * static_cast<ptrdiff_t>(image.block_columns[i]);
        const uint8_t* const ours = written.samples.data() + 64 * size_t{image.first_block[i]};
        for (int y = part.top; y < part.bottom; ++y) {
            const uint8_t* const theirs = planes.plane[i].data + y * planes.plane[i].stride_bytes + part.left;
            if (std::memcmp(ours + (y - top) * stride + part.left - left, theirs, static_cast<size_t>(part.right - part.left)) != 0)
                return false;
        }
    }
    return true;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    return mutate_jpeg(data, size, most, seed, kChoiceBytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    const CodebookId id = {9};
    const Codebook& book = codebook(id);
    std::vector<uint8_t> packed;
    const bool is_packed = (choice[1] & 2) != 0 && pack_jpeg(file, id, book, kMaxPixels, packed).ok();

    JpegHeader header;
    PackedFile head;
    int width = 64, height = 64;
    const bool parsed = parse_jpeg_header(file, header).ok();
    if (parsed || head.open(file, -1).ok()) {
        if (!parsed) header = head.header();
        if (static_cast<int64_t>(header.width) * header.height > kMaxPixels) return 0;
        width = header.width;
        height = header.height;
    }
    View view;
    ImageJob job;
    job.orientation = 1 + choice[0] % 8;
    job.views = {&view, 1};
    view.flip = (choice[0] & 0x80) != 0;
    if (job.orientation >= 5) std::swap(width, height);
    const int x0 = little_endian16(choice + 2) % width, y0 = little_endian16(choice + 4) % height;
    view.support_box[0] = x0;
    view.support_box[1] = y0;
    view.support_box[2] = x0 + 1 + little_endian16(choice + 6) % (width - x0);
    view.support_box[3] = y0 + 1 + little_endian16(choice + 8) % (height - y0);
    std::copy_n(view.support_box, 4, view.source_box);
    view.source_box[0] += choice[10] / 256.0 * (view.support_box[2] - view.support_box[0]) / 2;
    view.source_box[3] -= choice[11] / 256.0 * (view.support_box[3] - view.support_box[1]) / 2;

    static BatchPlan plan(kHeight, kWidth);
    plan.clear();
    job.file = is_packed ? packed : file;
    Finish finish;
    finish.channels_last = choice[1] >> 2 & 1;
    Written written;
    if (!plan.add(job) || !emulated(plan, finish, written)) return 0;
    if (!parsed) return 0;  // a packed file that no JPEG is known of

    const PixelBox whole = {0, 0, header.width, header.height};
    static Bytes pixels;
    Planes planes;
    if (!decode_with_libjpeg(file, header, whole, Fidelity::fast, pixels, planes).ok()) {
        // libjpeg also reads segments that the kernels need not.
        const ImageRow& image = plan.images()[0];
        const uint32_t needed = (image.end_row - image.first_row) * (image.end_column - image.first_column);
        if (is_packed || needed == image.mcus) std::abort();
        return 0;
    }
    int support[4];
    std::copy_n(view.support_box, 4, support);
    narrow_support(view.source_box, kHeight, kWidth, support);
    const PixelBox box = stored_box(support, job.orientation, header.width, header.height);
    if (!same_samples(plan.images()[0], written, planes, box)) std::abort();
    static Scratch scratch;
    static uint8_t expected[3 * kHeight * kWidth];
    view.out = {expected, Dtype::uint8, finish.channels_last != 0 ? Layout::nhwc : Layout::nchw, kHeight, kWidth, nullptr, nullptr};
    resample(planes, view.source_box, support, job.orientation, view.flip, view.out, scratch);
    if (std::memcmp(written.out.data(), expected, sizeof(expected)) != 0) std::abort();
    return 0;
}
