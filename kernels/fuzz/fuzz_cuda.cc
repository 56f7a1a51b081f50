// The CUDA kernels, run on the CPU (kernels/cuda/emulate.h), as a batch of several forms of an image: the input itself, its
// seekable and its packed form, that with a byte changed, and an image that is always good. Three orders of threads must write
// the same. An image that the kernels accept must have the samples of libjpeg, or of the CPU's packed decoder, which must
// accept it too, and the pixels that the CPU makes of them. Each has two views, which share planes where that is cheaper. The
// good image must come out in any company.
//
// The input's last 12 bytes choose boxes, orientations, flips, dtype, layout, the forms, and whether the kernels get whole files
// or the rows that a box needs; the rest is the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/boxes.h"
#include "cpu/jpeg/bands.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/planes.h"
#include "cpu/packed/pack.h"
#include "cpu/packed/packed_decoder.h"
#include "cpu/packed/train.h"
#include "cpu/resize/resize.h"
#include "cpu/transcode/transcode.h"
#include "cuda/emulate.h"
#include "fuzz/mutate.h"

using namespace feeder;
using namespace feeder::cuda;

namespace {

constexpr int64_t kMaxPixels = 1 << 16;
constexpr size_t kChoiceBytes = 12;
constexpr int kHeight = 24, kWidth = 16;
constexpr size_t kValues = 3 * size_t{kHeight} * kWidth;
// Of float outputs. In float16 the second channel is subnormal, and the third infinite from some level on.
constexpr float kScale[3] = {0.017f, 3e-7f, 900.0f}, kBias[3] = {-2.1f, 1e-7f, -0.5f};

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

// A gray JPEG of 24 x 16 pixels, with a restart segment for each row of blocks, which grow brighter to the right.
std::vector<uint8_t> good_jpeg() {
    std::vector<uint8_t> file = {0xFF, 0xD8, 0xFF, 0xDB, 0, 67, 0};
    file.insert(file.end(), 64, 16);
    const auto append = [&file](std::initializer_list<uint8_t> bytes) { file.insert(file.end(), bytes); };
    append({0xFF, 0xC0, 0, 11, 8, 0, 16, 0, 24, 1, 1, 0x11, 0});
    append({0xFF, 0xC4, 0, 20, 0x00, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 4});
    append({0xFF, 0xC4, 0, 21, 0x10, 1, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x00, 0x01});
    append({0xFF, 0xDD, 0, 4, 0, 3, 0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0});
    // A block: code 0 and the 4 bits of 11 for DC; code 10 and a 1; code 0, the end.
    append({0x5D, 0x2E, 0x97, 0x5F, 0xFF, 0xD0, 0x5D, 0x2E, 0x97, 0x5F, 0xFF, 0xD9});
    return file;
}

// An image of the batch, and where the batch has it.
struct Image {
    enum Form { given, seekable, packed, changed, good, kForms };

    Form form;
    std::vector<uint8_t> file;
    std::vector<uint8_t> sent;  // all of it, or the rows that the box needs
    int first_row = ImageJob::kWhole;
    View views[2];
    int orientation = 1;
    int width = 0, height = 0;  // as stored
};

// A view as the batch has it.
struct Planned {
    const Image* image;
    const View* view;
    ImageRow row;
    size_t first_sample;
};

// The head's size, which limits what is decoded; false for what is no JPEG.
bool read_size(Image& image) {
    JpegHeader header;
    PackedFile packed;
    if (!parse_jpeg_header(image.file, header).ok()) {
        if (!packed.open(image.file, -1).ok()) return false;
        header = packed.header();
    }
    image.width = header.width;
    image.height = header.height;
    return static_cast<int64_t>(header.width) * header.height <= kMaxPixels;
}

// Each form has an orientation of its own, and each view of it a box and a flip.
void choose_view(const uint8_t* choice, int number, Image& image) {
    View& view = image.views[number];
    const int form = image.form + 8 * number;
    image.orientation = 1 + (choice[0] + image.form) % 8;
    view.flip = ((choice[0] >> 7) + form + number) % 2 != 0;
    view.out.height = kHeight;
    view.out.width = kWidth;
    int width = image.width, height = image.height;
    if (image.orientation >= 5) std::swap(width, height);
    const int x0 = (little_endian16(choice + 2) + 5 * form) % width, y0 = (little_endian16(choice + 4) + 3 * form) % height;
    view.support_box[0] = x0;
    view.support_box[1] = y0;
    view.support_box[2] = x0 + 1 + (little_endian16(choice + 6) + 7 * form) % (width - x0);
    view.support_box[3] = y0 + 1 + (little_endian16(choice + 8) + 11 * form) % (height - y0);
    std::copy_n(view.support_box, 4, view.source_box);
    view.source_box[0] += choice[10] / 256.0 * (view.support_box[2] - view.support_box[0]) / 2;
    view.source_box[3] -= choice[11] / 256.0 * (view.support_box[3] - view.support_box[1]) / 2;
}

// Leaves out the rows that the boxes do not need, of an image that is seekable or packed.
void take_rows(Image& image) {
    PixelBox box = stored_box(image.views[0].support_box, image.orientation, image.width, image.height);
    const PixelBox other = stored_box(image.views[1].support_box, image.orientation, image.width, image.height);
    box.top = std::min(box.top, other.top);
    box.bottom = std::max(box.bottom, other.bottom);
    JpegHeader header;
    std::vector<uint32_t> places;
    const bool found = looks_like_packed(image.file)
                           ? find_packed_bands(image.file, places)
                           : parse_jpeg_header(image.file, header).ok() && find_bands(image.file, header, places);
    if (!found) return;
    const BandExtent extent = band_extent(places, static_cast<int64_t>(image.file.size()), box.top, box.bottom, 0);
    if (extent.first_row == BandExtent::kWhole) return;
    image.first_row = static_cast<int>(extent.first_row);
    image.sent.assign(image.file.begin(), image.file.begin() + extent.header);
    image.sent.insert(image.sent.end(), image.file.begin() + extent.begin, image.file.begin() + extent.end);
}

std::vector<Image> images_of(const std::vector<uint8_t>& file, const uint8_t* choice) {
    std::vector<Image> images;
    const auto add = [&](Image::Form form, std::vector<uint8_t> bytes) {
        if (((choice[1] >> 3) & (1 << form)) != 0) return;
        Image image;
        image.form = form;
        image.file = std::move(bytes);
        if (!read_size(image)) return;
        for (int number : {0, 1}) choose_view(choice, number, image);
        image.sent = image.file;
        if ((choice[0] & 8) != 0) take_rows(image);
        images.push_back(std::move(image));
    };
    add(Image::given, file);
    TranscodeOptions options;
    options.keep_metadata = false;
    options.segment_px = 8 << choice[10] % 4;
    options.max_pixels = kMaxPixels;
    Bytes seekable;
    if (transcode_jpeg(file, options, seekable).ok())
        add(Image::seekable, std::vector<uint8_t>(seekable.data(), seekable.data() + seekable.size()));
    const CodebookId id = {9};
    std::vector<uint8_t> packed = file;
    static JpegPacker packer;
    if (packer.pack(file, id, codebook(id), kMaxPixels, packed).ok()) {
        add(Image::packed, packed);
    } else {
        packed = file;
    }
    if (looks_like_packed(packed)) {
        const size_t at = (static_cast<size_t>(choice[10]) << 8 | choice[11]) % packed.size();
        packed[at] = static_cast<uint8_t>(packed[at] + choice[0]);
        add(Image::changed, packed);
    }
    add(Image::good, good_jpeg());
    std::rotate(images.begin(), images.begin() + (images.empty() ? 0 : choice[2] % static_cast<int>(images.size())), images.end());
    return images;
}

// What the CPU makes of an image: libjpeg's planes or the packed decoder's. False: it refuses the image.
bool cpu_planes(const Image& image, const std::vector<uint8_t>& given, const PixelBox& box, Bytes& pixels, Planes& planes) {
    if (image.form != Image::packed && looks_like_packed(image.file)) {
        static PackedDecoder decoder;
        PackedFile packed;
        if (!packed.open(image.sent, image.first_row).ok()) return false;
        const Codebook* const known = find_codebook(packed.codebook_id());
        return known != nullptr && decoder.decode(packed, *known, box, pixels, planes);
    }
    const std::vector<uint8_t>& file = image.form == Image::packed ? given : image.file;
    JpegHeader header;
    if (!parse_jpeg_header(file, header).ok()) return false;
    const PixelBox whole = {0, 0, header.width, header.height};
    return decode_with_libjpeg(file, header, whole, Fidelity::fast, pixels, planes).ok();
}

bool same_samples(const Planned& planned, const Written& written, const Planes& planes, const PixelBox& box) {
    const ImageRow& row = planned.row;
    for (int i = 0; i < planes.count; ++i) {
        const PixelBox part = samples_of(planes, i, box);
        // The kernels' window begins where an MCU does, the CPU's planes may begin before.
        const int left = static_cast<int>(row.first_column) * 8 * row.h[i] - planes.origin_x * planes.h_factor[i] / planes.h_max;
        const int top = static_cast<int>(row.first_row) * 8 * row.v[i] - planes.origin_y * planes.v_factor[i] / planes.v_max;
        const ptrdiff_t stride = 8 * static_cast<ptrdiff_t>(row.block_columns[i]);
        const uint8_t* const ours = written.samples.data() + planned.first_sample + 64 * size_t{row.first_block[i]};
        for (int y = part.top; y < part.bottom; ++y) {
            const uint8_t* const theirs = planes.plane[i].data + y * planes.plane[i].stride_bytes + part.left;
            if (std::memcmp(ours + (y - top) * stride + part.left - left, theirs, static_cast<size_t>(part.right - part.left)) != 0)
                return false;
        }
    }
    return true;
}

void check(const Planned& planned, const std::vector<uint8_t>& given, const Written& written, const uint8_t* out, Dtype dtype,
           Layout layout) {
    const Image& image = *planned.image;
    const View& view = *planned.view;
    const ImageRow& row = planned.row;
    const bool is_good = image.form == Image::good;
    int support[4];
    std::copy_n(view.support_box, 4, support);
    narrow_support(view.filter, view.source_box, kHeight, kWidth, support);
    const PixelBox box = stored_box(support, image.orientation, image.width, image.height);
    static Bytes pixels;
    Planes planes;
    if (!cpu_planes(image, given, box, pixels, planes)) {
        // libjpeg also reads segments that the kernels need not.
        const uint32_t needed = (row.end_row - row.first_row) * (row.end_column - row.first_column);
        if (is_good || looks_like_packed(image.file) || needed == row.mcus) std::abort();
        return;
    }
    if (!same_samples(planned, written, planes, box)) std::abort();
    static Scratch scratch;
    alignas(64) static uint8_t expected[kValues * sizeof(float)];
    const bool is_float = dtype != Dtype::uint8;
    const Output output = {expected, dtype, layout, kHeight, kWidth, is_float ? kScale : nullptr, is_float ? kBias : nullptr};
    resample(planes, view.source_box, support, image.orientation, view.flip, view.filter, output, scratch);
    if (std::memcmp(out, expected, kValues * dtype_bytes(dtype)) != 0) std::abort();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    return mutate_jpeg(data, size, most, seed, kChoiceBytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    const std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    const Layout layout = (choice[1] & 1) != 0 ? Layout::nhwc : Layout::nchw;
    const Dtype dtype = static_cast<Dtype>(choice[1] >> 1 & 3);

    static ImagePlan plan;
    static Bytes plans;
    plans.set_size(0);
    const std::vector<Image> images = images_of(file, choice);
    std::vector<Planned> planned;
    std::vector<size_t> places{0}, owners;
    size_t samples = 0;
    for (const Image& image : images) {
        ImageJob job;
        job.file = image.sent;
        job.first_row = image.first_row;
        job.orientation = image.orientation;
        job.views = image.views;
        if (!plan.open(job)) {
            if (image.form == Image::good) std::abort();
            continue;
        }
        for (const ViewGroup& group : plan.groups()) {
            if (!plan.make(group, plans)) {
                if (image.form == Image::good || plans.size() != places.back()) std::abort();
                continue;
            }
            const size_t owner = planned.size();
            for (size_t i = 0; i < group.views.size(); ++i) {
                const PlannedView& view = plan.views()[i];
                if (!(i == 0 ? append_planned(plan, plans) : append_sharing(view, plans))) std::abort();
                planned.push_back({&image, &image.views[group.views[i]], view.image, samples});
                owners.push_back(owner);
                places.push_back(plans.size());
            }
            samples += 64 * size_t{plan.block_count()};
        }
    }
    if (planned.empty()) return 0;
    JoinedBatch joined;
    for (size_t i = 0; i < planned.size(); ++i) {
        if (!joined.add(plans.span().subspan(places[i], places[i + 1] - places[i]), places[i], owners[i])) std::abort();
    }
    Finish finish;
    finish.type = static_cast<uint32_t>(dtype);  // of the same order
    finish.channels_last = layout == Layout::nhwc;
    std::copy_n(kScale, 3, finish.scale);
    std::copy_n(kBias, 3, finish.bias);
    Written written;
    if (!emulate_in_all_orders(joined, plans.span(), finish, written)) std::abort();
    for (size_t i = 0; i < planned.size(); ++i) {
        if (written.faults[owners[i]] == 0) {
            check(planned[i], file, written, written.out.data() + i * kValues * dtype_bytes(dtype), dtype, layout);
        } else if (planned[i].image->form == Image::good) {
            std::abort();
        }
    }
    return 0;
}
