// Any bytes, any box: the parser, the marker search, the cut, both decoders and the resize. Every SIMD level must give the
// same status and the same pixels, and so must the rows that are needed, without the rest of the file, and a view beside
// another one.
//
// The input's last 12 bytes choose the box, orientation, flip, fidelity and level; the rest is the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/boxes.h"
#include "cpu/decode.h"
#include "cpu/jpeg/bands.h"
#include "cpu/jpeg/cut.h"
#include "cpu/jpeg/header.h"
#include "cpu/simd.h"

using namespace feeder;

namespace {

int little_endian16(const uint8_t* bytes) { return bytes[0] | bytes[1] << 8; }

constexpr int64_t kMaxPixels = 1 << 14;
constexpr size_t kChoiceBytes = 12;

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    // A copy of the file's own size, so that a read beyond its end is seen.
    const std::vector<uint8_t> file(data, data + size - kChoiceBytes);

    ImageJob job;
    job.file = file;
    job.orientation = 1 + choice[0] % 8;
    View views[2];
    View& view = views[0];
    job.views = {views, 1};
    view.flip = (choice[0] & 0x80) != 0;
    view.filter = (choice[1] & 0x20) != 0 ? ResizeFilter::bicubic : ResizeFilter::bilinear;
    DecodeOptions options;
    const Fidelity otherwise = (choice[1] & 0x40) != 0 ? Fidelity::draft : Fidelity::fast;
    options.fidelity = (choice[1] & 1) != 0 ? Fidelity::exact : otherwise;
    options.max_pixels = kMaxPixels;

    JpegHeader header;
    int width = 64;
    int height = 64;
    if (parse_jpeg_header(job.file, header).ok()) {
        width = header.width;
        height = header.height;
        if (static_cast<int64_t>(width) * height <= kMaxPixels) {
            std::vector<Segment> segments;
            Bytes cut;
            CutPlace place;
            const PixelBox box = {width / 4, height / 4, width / 4 + 1, height / 4 + 1};
            if (cut_jpeg(job.file, header, box, 0, segments, cut, place) == CutResult::cut) {
                JpegHeader cut_header;
                if (!parse_jpeg_header(cut.span(), cut_header).ok() || cut_header.width != place.width) std::abort();
            }
        }
    }
    if (job.orientation >= 5) std::swap(width, height);
    const int x0 = little_endian16(choice + 2) % std::max(width, 1);
    const int y0 = little_endian16(choice + 4) % std::max(height, 1);
    view.support_box[0] = x0;
    view.support_box[1] = y0;
    view.support_box[2] = x0 + 1 + little_endian16(choice + 6) % std::max(width - x0, 1);
    view.support_box[3] = y0 + 1 + little_endian16(choice + 8) % std::max(height - y0, 1);
    std::copy_n(view.support_box, 4, view.source_box);
    view.source_box[0] += choice[10] / 256.0 * (view.support_box[2] - view.support_box[0]) / 2;
    view.source_box[3] -= choice[11] / 256.0 * (view.support_box[3] - view.support_box[1]) / 2;

    static ImageDecoder decoder;
    static uint8_t pixels[2][3 * 24 * 16];
    view.out.height = 24;
    view.out.width = 16;
    Outcome outcomes[2];
    pretend_no_sse2((choice[1] & 4) != 0);  // the portable level then is that of other CPUs
    const SimdLevel levels[2] = {SimdLevel::portable, static_cast<SimdLevel>(1 + (choice[1] >> 1) % 2)};
    for (int i = 0; i < 2; ++i) {
        set_simd_level(levels[i]);  // where this CPU has it
        std::memset(pixels[i], 0, sizeof(pixels[i]));
        view.out.data = pixels[i];
        outcomes[i] = decoder.decode(job, options);
        if (!outcomes[i].ok() && outcomes[i].reason.empty()) std::abort();
    }
    if (outcomes[0].status != outcomes[1].status || outcomes[0].reason != outcomes[1].reason) std::abort();
    if (outcomes[0].status <= Status::damaged && std::memcmp(pixels[0], pixels[1], sizeof(pixels[0])) != 0)
        std::abort();

    views[1] = view;
    for (int axis = 0; axis < 2; ++axis) {  // the part of the image in front of the first view's end
        views[1].support_box[axis] = choice[10 + axis] % view.support_box[2 + axis];
        views[1].source_box[axis] = views[1].support_box[axis];
        views[1].source_box[2 + axis] = view.support_box[2 + axis];
    }
    static uint8_t beside[2][3 * 24 * 16];
    std::memset(beside, 0, sizeof(beside));
    for (int i = 0; i < 2; ++i) views[i].out.data = beside[i];
    job.views = views;
    const Outcome both = decoder.decode(job, options);
    if (both.ok() && (!outcomes[0].ok() || std::memcmp(pixels[0], beside[0], sizeof(beside[0])) != 0)) std::abort();
    job.views = {views, 1};

    std::vector<uint32_t> places;
    if (!parse_jpeg_header(job.file, header).ok() || !find_bands(job.file, header, places)) return 0;
    const PixelBox stored = stored_box(view.support_box, job.orientation, header.width, header.height);
    const int64_t length = static_cast<int64_t>(file.size());
    BandExtent extent = band_extent(places, length, stored.top, stored.bottom, 0);
    if ((choice[1] & 0x80) != 0) extent.first_row += choice[0] / 8 * 8;  // said to be others than they are
    if (extent.first_row < 0) return 0;
    std::vector<uint8_t> rows(file.begin(), file.begin() + extent.header);
    rows.insert(rows.end(), file.begin() + extent.begin, file.begin() + extent.end);
    job.file = rows;
    job.first_row = static_cast<int>(extent.first_row);
    view.out.data = pixels[1];
    const Outcome outcome = decoder.decode(job, options);
    if ((choice[1] & 0x80) != 0) return 0;
    if (outcome.ok() && (!outcomes[0].ok() || std::memcmp(pixels[0], pixels[1], sizeof(pixels[0])) != 0)) std::abort();
    return 0;
}
