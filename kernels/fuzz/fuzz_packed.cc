// Packed JPEGs. A JPEG that packs must give the same bytes at every SIMD level, come back to the byte, and give the JPEG's
// samples, whole and in a box; and one that packs with some codebook must pack with one that is trained on it. A packed file,
// given or with one of these bytes changed, may hold anything: it must give a status, and the same samples and the same JPEG
// at every level, with the codebook that it was packed with and with a hostile one.
//
// The input's last 12 bytes choose the box, the change, codebook, fidelity and level; the rest is the file. What takes long
// and has a target of its own, the whole way to resized pixels and libjpeg's decoding, is done for one input in 8, by a hash
// of it, which also chooses the inputs with a hostile codebook; most inputs end at the decoder's planes, in which no
// difference is averaged out.
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
#include "fuzz/codebooks.h"
#include "fuzz/mutate_packed.h"

using namespace feeder;

namespace {

constexpr int64_t kMaxPixels = 1 << 14;
constexpr size_t kChoiceBytes = 12;
constexpr size_t kPixels = 3 * 24 * 16;

int little_endian16(const uint8_t* bytes) { return bytes[0] | bytes[1] << 8; }

uint8_t codebook_number(const uint8_t* choice) {
    return static_cast<uint8_t>((choice[1] >> 3 & 3) | (choice[11] >> 4 & 12));
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

// Samples of a box, in memory of their own.
struct Samples {
    Bytes memory;
    Planes planes;
    bool good = false;

    bool operator==(const Samples& other) const {
        if (good != other.good || planes.count != other.planes.count) return false;
        for (int i = 0; i < planes.count && good; ++i) {
            const Plane &a = planes.plane[i], &b = other.planes.plane[i];
            if (a.width != b.width || a.height != b.height) return false;
            for (ptrdiff_t y = 0; y < a.height; ++y) {
                const size_t bytes = static_cast<size_t>(a.width);
                if (std::memcmp(a.data + y * a.stride_bytes, b.data + y * b.stride_bytes, bytes) != 0) return false;
            }
        }
        return true;
    }
};

void read_samples(const PackedFile& file, const Codebook& book, const PixelBox& box, int shrink, SimdLevel level,
                  Samples& out) {
    static PackedDecoder decoder;
    set_simd_level(level);
    out.good = decoder.decode(file, book, box, out.memory, out.planes, nullptr, shrink);
}

struct Choices {
    explicit Choices(const uint8_t* choice)
        : added(choice[0]),
          fidelity((choice[1] & 1) != 0      ? Fidelity::exact
                   : (choice[1] & 0x40) != 0 ? Fidelity::draft
                                             : Fidelity::fast),
          level(static_cast<SimdLevel>(1 + (choice[1] >> 1) % 2)),
          shrink((choice[1] & 0x40) == 0 ? 1 : (choice[1] & 1) != 0 ? 2 : 4),
          first_row((choice[1] & 0x80) != 0 ? 8 * (choice[0] % 4) : -1),
          number(codebook_number(choice)),
          at(static_cast<size_t>(choice[10]) << 8 | choice[11]) {
        for (int i = 0; i < 4; ++i) places[i] = little_endian16(choice + 2 + 2 * i);
    }

    // A box in an image.
    PixelBox box(int width, int height) const {
        const int x = places[0] % width, y = places[1] % height;
        return {x, y, x + 1 + places[2] % (width - x), y + 1 + places[3] % (height - y)};
    }

    uint8_t added;
    Fidelity fidelity;
    SimdLevel level;
    int shrink, first_row;
    uint8_t number;
    size_t at;
    int places[4];
};

View view_of(const PixelBox& box) {
    View view;
    view.out.height = 24;
    view.out.width = 16;
    const int edges[4] = {box.left, box.top, box.right, box.bottom};
    std::copy_n(edges, 4, view.support_box);
    std::copy_n(edges, 4, view.source_box);
    return view;
}

// A JPEG and what it was packed to.
void check_packed(const std::vector<uint8_t>& jpeg, const JpegHeader& header, const std::vector<uint8_t>& bytes,
                  const Codebook& book, const Choices& choices, bool thoroughly) {
    const PixelBox box = choices.box(header.width, header.height);
    PackedFile packed;
    if (!packed.open(bytes, -1).ok()) std::abort();
    static Samples expected, found;
    ColorModel color;
    if (has_resizable_planes(header) && color_model(header, color).ok()) {
        static BaselineDecoder decoder;
        set_simd_level(SimdLevel::portable);
        expected.good = decoder.decode(jpeg, header, box, 0, expected.memory, expected.planes, nullptr, choices.shrink);
        read_samples(packed, book, box, choices.shrink, choices.level, found);
        if (!found.good || !(found == expected)) std::abort();
    }
    if (!thoroughly) return;
    Bytes back;
    if (!unpack_jpeg(packed, book, back).ok()) std::abort();
    if (back.size() != jpeg.size() || std::memcmp(back.data(), jpeg.data(), jpeg.size()) != 0) std::abort();
    static uint8_t pixels[2][kPixels];
    View view = view_of(box);
    const Outcome outcome = decode(jpeg, -1, view, choices.fidelity, SimdLevel::portable, pixels[0]);
    for (const SimdLevel level : {SimdLevel::portable, choices.level}) {
        if (decode(bytes, -1, view, choices.fidelity, level, pixels[1]).status != outcome.status) std::abort();
        if (outcome.ok() && std::memcmp(pixels[0], pixels[1], kPixels) != 0) std::abort();
    }
    std::vector<uint32_t> places;
    if (!find_packed_bands(bytes, places)) std::abort();
    const BandExtent extent = band_extent(places, static_cast<int64_t>(bytes.size()), box.top, box.bottom, 0);
    if (extent.first_row < 0 || !outcome.ok()) return;
    std::vector<uint8_t> rows(bytes.begin(), bytes.begin() + extent.header);
    rows.insert(rows.end(), bytes.begin() + extent.begin, bytes.begin() + extent.end);
    const int first_row = static_cast<int>(extent.first_row);
    if (!decode(rows, first_row, view, choices.fidelity, choices.level, pixels[1]).ok()) std::abort();
    if (std::memcmp(pixels[0], pixels[1], kPixels) != 0) std::abort();
}

// Any bytes that begin as a packed file does.
void check_bytes(const std::vector<uint8_t>& bytes, const Codebook& book, const Choices& choices, bool thoroughly,
                 bool hostile) {
    PackedFile packed;
    const bool opened = packed.open(bytes, choices.first_row).ok();
    PixelBox box = choices.box(opened ? packed.header().width : 8, opened ? packed.header().height : 8);
    if (thoroughly) {
        static uint8_t pixels[2][kPixels];
        View view = view_of(box);
        const Outcome portable =
            decode(bytes, choices.first_row, view, choices.fidelity, SimdLevel::portable, pixels[0]);
        const Outcome simd = decode(bytes, choices.first_row, view, choices.fidelity, choices.level, pixels[1]);
        if (portable.status != simd.status || portable.reason != simd.reason) std::abort();
        if (portable.status <= Status::damaged && std::memcmp(pixels[0], pixels[1], kPixels) != 0) std::abort();
    }
    if (!opened || static_cast<int64_t>(packed.header().width) * packed.header().height > kMaxPixels) return;
    static Samples samples[2];
    ColorModel color;
    if (has_resizable_planes(packed.header()) && color_model(packed.header(), color).ok()) {
        read_samples(packed, book, box, choices.shrink, SimdLevel::portable, samples[0]);
        read_samples(packed, book, box, choices.shrink, choices.level, samples[1]);
        if (!(samples[0] == samples[1])) std::abort();
    }
    if (choices.first_row >= 0) return;
    static Bytes backs[2];
    const Outcome outcome = unpack_jpeg(packed, book, backs[0]);
    if (thoroughly || hostile) {
        set_simd_level(SimdLevel::portable);
        Bytes fresh;
        if (unpack_jpeg(packed, book, fresh).status != outcome.status) std::abort();
        if (outcome.ok() && !std::ranges::equal(fresh.span(), backs[0].span())) std::abort();
        CutPlace place;
        cut_packed(packed, book, box, backs[1], place);
    }
    std::vector<uint32_t> places;
    find_packed_bands(bytes, places);
}

// Shapes whose groups are those of another codebook in other places, turned by the input's bytes: the lines of a file that was
// packed with that one have the same lengths, so that their blocks are unpacked.
std::vector<Shape> turned(const ShapeTable& table, const std::vector<uint8_t>& bytes, size_t at) {
    std::vector<Shape> shapes;
    for (int i = 0; i < table.count; ++i) {
        const uint8_t by = bytes.empty() ? 0 : bytes[(at + static_cast<size_t>(i)) % bytes.size()];
        Shape shape;
        for (size_t g = 0; g < kGroups; ++g) shape[g] = table.codes[i][(g + by) % kGroups];
        shapes.push_back(shape);
    }
    return shapes;
}

// A codebook of any shapes, none of which may hold all numbers.
const Codebook& hostile_codebook(const std::vector<uint8_t>& bytes, const Choices& choices) {
    static Codebook hostile;
    if (looks_like_packed(bytes)) {
        const ShapeTable(&tables)[2] = codebook(choices.number).tables;
        if (!hostile.parse(write_codebook(turned(tables[0], bytes, choices.at), turned(tables[1], bytes, choices.at + 1))))
            std::abort();
        return hostile;
    }
    std::vector<uint8_t> file = {'F', 'P', 'C', 1, choices.added, static_cast<uint8_t>(choices.at)};
    const size_t size = file.size() + 3 * (size_t{file[4]} + file[5] + 2);
    for (size_t i = choices.at; file.size() < size; ++i)
        file.push_back(bytes.empty() ? 0 : bytes[bytes.size() - 1 - i % bytes.size()]);
    if (hostile.parse({file.data(), size - 1}) || !hostile.parse(file)) std::abort();
    return hostile;
}

// Any bytes behind a codebook's magic.
void check_codebook(const std::vector<uint8_t>& bytes) {
    std::vector<uint8_t> file = {'F', 'P', 'C', 1};
    file.insert(file.end(), bytes.begin(), bytes.end());
    static Codebook parsed;
    parsed.parse(file);
}

// `packs`: with a codebook that holds all numbers.
void check_training(const std::vector<uint8_t>& jpeg, const Choices& choices, bool packs, bool trains) {
    std::vector<uint8_t> trained[2];
    for (int i = 0; i < 2; ++i) {
        set_simd_level(i == 0 ? choices.level : SimdLevel::portable);
        CodebookTrainer trainer;
        if (!trainer.add(jpeg, kMaxPixels) && packs) std::abort();
        if (!trains) return;
        trained[i] = trainer.train();
    }
    if (trained[0] != trained[1]) std::abort();
    static Codebook book;
    if (!book.parse(trained[0])) std::abort();
    static JpegPacker packer;
    std::vector<uint8_t> packed;
    if (packer.pack(jpeg, {}, book, kMaxPixels, packed).ok() != packs) std::abort();
}

// Packs a JPEG, and checks what comes out. False: it is kept.
bool check_jpeg(const std::vector<uint8_t>& jpeg, const Codebook& book, const Choices& choices, bool thoroughly,
                bool hostile) {
    static JpegPacker packer;
    static std::vector<uint8_t> packed, portable;
    const CodebookId id = {choices.number};
    set_simd_level(choices.level);
    const Outcome outcome = packer.pack(jpeg, id, book, kMaxPixels, packed);
    if (!outcome.ok() && outcome.reason.empty()) std::abort();
    if (thoroughly || hostile) {
        set_simd_level(SimdLevel::portable);
        const Outcome expected = packer.pack(jpeg, id, book, kMaxPixels, portable);
        if (outcome.status != expected.status || outcome.reason != expected.reason) std::abort();
        if (outcome.ok() && packed != portable) std::abort();
    }
    if (!outcome.ok()) return false;
    JpegHeader header;
    if (!parse_jpeg_header(jpeg, header).ok()) std::abort();
    const std::vector<uint8_t> bytes = packed;  // of its own size, so that a read beyond its end is seen
    check_packed(jpeg, header, bytes, book, choices, thoroughly);
    std::vector<uint8_t> changed = bytes;
    uint8_t& byte = changed[choices.at % changed.size()];
    byte = static_cast<uint8_t>(byte + choices.added);
    check_bytes(changed, book, choices, thoroughly, hostile);
    return true;
}

}  // namespace

// Freed memory waits for less time to be used again, and fewer callers of an allocation are noted: both take much of an
// execution.
extern "C" const char* __asan_default_options() { return "quarantine_size_mb=16:malloc_context_size=4"; }

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    const uint8_t number = size < kChoiceBytes ? 0 : codebook_number(data + size - kChoiceBytes);
    return mutate_packed(data, size, most, seed, kChoiceBytes, {number}, codebook(number));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const Choices choices(data + size - kChoiceBytes);
    std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    const uint32_t hash = hash_of(data, size);
    const bool thoroughly = hash % 8 == 0, hostile = hash % 32 == 3;
    const Codebook& book = hostile ? hostile_codebook(file, choices) : codebook(choices.number);
    if (hash % 64 == 1) check_codebook(file);
    if (looks_like_packed(file)) {
        check_bytes(file, book, choices, thoroughly, hostile);
        return 0;
    }
    const bool packs = check_jpeg(file, book, choices, thoroughly, hostile);
    if (hash % 32 == 0) check_training(file, choices, packs, hash % 256 == 0);
    // The corpus gets few of those that are kept, or most inputs would be made of them.
    return packs || hash % 16 == 2 ? 0 : -1;
}
