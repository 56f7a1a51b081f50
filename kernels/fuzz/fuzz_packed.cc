// Packed JPEGs. A JPEG that packs must come back to the byte, and give the JPEG's pixels at every SIMD level, at both
// fidelities, and from the rows alone that a box needs. Then one of its bytes is changed, or its codebook, or the input itself
// is taken for a packed file: any bytes must give a status, and the same pixels at every level.
//
// The input's last 12 bytes choose the box, the change, fidelity and level; the rest is the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/decode.h"
#include "cpu/jpeg/bands.h"
#include "cpu/packed/jpeg_writer.h"
#include "cpu/packed/pack.h"
#include "cpu/packed/train.h"
#include "cpu/simd.h"

using namespace feeder;

namespace {

constexpr int64_t kMaxPixels = 1 << 14;
constexpr size_t kChoiceBytes = 12;
constexpr size_t kPixels = 3 * 24 * 16;

int little_endian16(const uint8_t* bytes) { return bytes[0] | bytes[1] << 8; }

// Codebooks of few shapes, in which most numbers need a patch, and of many. Their ids are 0 and 1 in the first byte.
const Codebook& codebook(uint8_t number) {
    const CodebookId id = {number};
    if (find_codebook(id) == nullptr) {
        std::vector<Shape> shapes;
        for (unsigned i = 0; i < (number == 0 ? 3u : 256u); ++i) {
            Shape shape;
            for (size_t g = 0; g < kGroups; ++g) shape[g] = static_cast<uint8_t>((i * 37 >> g) & 7);
            shapes.push_back(shape);
        }
        shapes.back().fill(7);
        if (!add_codebook(id, write_codebook(shapes, shapes))) std::abort();
    }
    return *find_codebook(id);
}

Outcome decode(ByteSpan file, int first_row, View& view, Fidelity fidelity, SimdLevel level, uint8_t* out) {
    static ImageDecoder decoder;
    set_simd_level(level);  // where this CPU has it
    std::memset(out, 0, kPixels);
    view.out.data = out;
    ImageJob job;
    job.file = file;
    job.first_row = first_row;
    job.views = {&view, 1};
    Outcome outcome = decoder.decode(job, {fidelity, kMaxPixels});
    if (!outcome.ok() && outcome.reason.empty()) std::abort();
    return outcome;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    const uint8_t number = choice[1] >> 3 & 1;
    const Codebook& book = codebook(number);
    const CodebookId id = {number};
    const Fidelity otherwise = (choice[1] & 0x40) != 0 ? Fidelity::draft : Fidelity::fast;
    const Fidelity fidelity = (choice[1] & 1) != 0 ? Fidelity::exact : otherwise;
    const SimdLevel level = static_cast<SimdLevel>(1 + (choice[1] >> 1) % 2);

    std::vector<uint8_t> packed_bytes;
    const bool is_packed = pack_jpeg(file, id, book, kMaxPixels, packed_bytes).ok();
    JpegHeader header;
    PackedFile packed;
    const bool has_size = is_packed ? parse_jpeg_header(file, header).ok() : packed.open(file, -1).ok();
    if (has_size && !is_packed) header = packed.header();
    const int width = has_size ? header.width : 8, height = has_size ? header.height : 8;
    View view;
    view.out.height = 24;
    view.out.width = 16;
    const int x0 = little_endian16(choice + 2) % width, y0 = little_endian16(choice + 4) % height;
    view.support_box[0] = x0;
    view.support_box[1] = y0;
    view.support_box[2] = x0 + 1 + little_endian16(choice + 6) % (width - x0);
    view.support_box[3] = y0 + 1 + little_endian16(choice + 8) % (height - y0);
    std::copy_n(view.support_box, 4, view.source_box);

    static uint8_t pixels[2][kPixels];
    if (is_packed) {
        Bytes back;
        if (!packed.open(packed_bytes, -1).ok() || !unpack_jpeg(packed, book, back).ok()) std::abort();
        if (back.size() != file.size() || std::memcmp(back.data(), file.data(), file.size()) != 0) std::abort();
        const Outcome expected = decode(file, -1, view, fidelity, SimdLevel::portable, pixels[0]);
        for (const SimdLevel each : {SimdLevel::portable, level}) {
            const Outcome found = decode(packed_bytes, -1, view, fidelity, each, pixels[1]);
            if (found.status != expected.status) std::abort();
            if (found.ok() && std::memcmp(pixels[0], pixels[1], kPixels) != 0) std::abort();
        }
        std::vector<uint32_t> places;
        if (!find_packed_bands(packed_bytes, places)) std::abort();
        const BandExtent extent = band_extent(places, static_cast<int64_t>(packed_bytes.size()), view.support_box[1],
                                              view.support_box[3], 0);
        if (extent.first_row >= 0 && expected.ok()) {
            std::vector<uint8_t> rows(packed_bytes.begin(), packed_bytes.begin() + extent.header);
            rows.insert(rows.end(), packed_bytes.begin() + extent.begin, packed_bytes.begin() + extent.end);
            if (!decode(rows, static_cast<int>(extent.first_row), view, fidelity, level, pixels[1]).ok()) std::abort();
            if (std::memcmp(pixels[0], pixels[1], kPixels) != 0) std::abort();
        }
        file = packed_bytes;
        const size_t at = (static_cast<size_t>(choice[10]) << 8 | choice[11]) % file.size();
        file[at] = static_cast<uint8_t>(file[at] + choice[0]);
    }
    // Whatever these bytes are now.
    const int first_row = (choice[1] & 0x80) != 0 ? 8 * (choice[0] % 4) : -1;
    const Outcome portable = decode(file, first_row, view, fidelity, SimdLevel::portable, pixels[0]);
    const Outcome simd = decode(file, first_row, view, fidelity, level, pixels[1]);
    if (portable.status != simd.status || portable.reason != simd.reason) std::abort();
    if (portable.status <= Status::damaged && std::memcmp(pixels[0], pixels[1], kPixels) != 0) std::abort();
    if (packed.open(file, -1).ok()) {
        Bytes back;
        std::vector<uint32_t> places;
        unpack_jpeg(packed, book, back);
        find_packed_bands(file, places);
    }
    Codebook hostile;
    hostile.parse(file);
    return 0;
}
