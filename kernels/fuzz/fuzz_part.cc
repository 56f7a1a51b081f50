// Any index, any shard: a part of two samples, from their records to pixels. A sample that is made has the pixels of the
// whole file, decoded with the same draws.
//
// The input's last 12 bytes choose what the index says and the draws; the rest is the file, a JPEG or a packed one, which lies
// in a shard. Most choices leave the index right, as little would be decoded otherwise.
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/jpeg/bands.h"
#include "cpu/jpeg/header.h"
#include "cpu/part/part_runner.h"
#include "fuzz/codebooks.h"
#include "fuzz/mutate_packed.h"

using namespace feeder;

namespace {

constexpr size_t kChoiceBytes = 12;
constexpr int64_t kMaxPixels = 1 << 14;
constexpr int kSide = 16;
constexpr RecordIndex::Layout kLayout = {26, 4, 12, 22, 0, 16, 20, 25};

// A choice of 0 to 199 leaves the number as it is.
uint64_t said(uint64_t number, uint8_t choice) {
    if (choice < 200) return number;
    return choice < 210 ? 0 : choice < 220 ? UINT32_MAX : number + choice - 238;
}

std::vector<uint8_t> steps_of(const std::vector<uint32_t>& places) {
    std::vector<uint16_t> values;
    for (size_t i = 0; i < places.size(); ++i) {
        const uint32_t step = i < 2 ? places[i] : places[i] - places[i - 1];
        values.push_back(static_cast<uint16_t>(std::min<uint32_t>(step, 0xFFFF)));
        if (step < 0xFFFF) continue;
        values.push_back(static_cast<uint16_t>(step));
        values.push_back(static_cast<uint16_t>(step >> 16));
    }
    const uint8_t* const bytes = reinterpret_cast<const uint8_t*>(values.data());
    return {bytes, bytes + 2 * values.size()};
}

uint8_t codebook_number(const uint8_t* choice) { return choice[1] % kCodebooks; }

std::vector<DrawOp> ops_of(const uint8_t* choice) {
    std::vector<DrawOp> ops(3);
    constexpr DrawOp::Kind kinds[] = {DrawOp::Kind::random_resized_crop, DrawOp::Kind::random_crop,
                                      DrawOp::Kind::center_crop, DrawOp::Kind::resize, DrawOp::Kind::pad,
                                      DrawOp::Kind::letterbox};
    ops[0].kind = kinds[choice[0] % 6];
    for (int side = 0; side < 4; ++side) ops[0].padding[side] = choice[1] >> side & 40;
    ops[0].pads_if_needed = choice[1] % 2 != 0;
    ops[0].height = ops[0].width = kSide;
    ops[0].scale[0] = choice[1] / 255.0, ops[0].scale[1] = 1;
    ops[0].ratio[0] = 0.75, ops[0].ratio[1] = 4.0 / 3.0;
    ops[0].log_ratio[0] = -0.2876820724517809, ops[0].log_ratio[1] = 0.2876820724517809;
    ops[0].side = static_cast<DrawOp::Side>(choice[1] % 4);
    ops[0].most = choice[0] / 4 % 3 * 20;
    ops[1].stream = 1;
    ops[1].p = 0.5;
    ops[2].kind = DrawOp::Kind::center_crop;
    ops[2].height = ops[2].width = kSide;
    return ops;
}

// The size of an image, and the places of its rows where it has some.
void read_header(const std::vector<uint8_t>& file, int& width, int& height, std::vector<uint32_t>& places) {
    JpegHeader header;
    const bool is_packed = looks_like_packed(file);
    if (is_packed) {
        PackedFile packed;
        if (!packed.open(file, -1).ok()) return;
        header = packed.header();
    } else if (!parse_jpeg_header(file, header).ok()) {
        return;
    }
    width = header.width;
    height = header.height;
    if (!(is_packed ? find_packed_bands(file, places) : find_bands(file, header, places))) places.clear();
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    const uint8_t number = size < kChoiceBytes ? 0 : codebook_number(data + size - kChoiceBytes);
    return mutate_packed(data, size, most, seed, kChoiceBytes, {number}, codebook(number));
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    const std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    codebook(codebook_number(choice));
    int width = 64, height = 64;
    std::vector<uint32_t> places;
    read_header(file, width, height, places);

    const uint32_t before = choice[2];
    const int descriptor = memfd_create("shard", 0);
    if (descriptor < 0 || pwrite(descriptor, file.data(), file.size(), before) != static_cast<ssize_t>(file.size()))
        std::abort();
    struct stat status;
    if (fstat(descriptor, &status) != 0) std::abort();
    std::vector<uint8_t> steps = steps_of(places);
    steps.reserve(1);  // a place in memory even where there are none
    if (choice[3] >= 200 && !steps.empty()) steps[choice[4] % steps.size()] ^= choice[3];

    // Two samples: as the index should be, but for its places, and as it is said to be.
    std::vector<uint8_t> records(2 * kLayout.bytes);
    for (int i = 0; i < 2; ++i) {
        uint8_t* const record = records.data() + i * kLayout.bytes;
        const auto put = [&](size_t at, uint64_t number, size_t bytes) {
            if (i == 1) number = said(number, choice[at % 7 + 5]);
            std::memcpy(record + at, &number, bytes);
        };
        put(kLayout.offset, before, 4);
        put(kLayout.length, file.size(), 4);
        put(kLayout.steps, steps.empty() ? UINT32_MAX : 0, 4);
        put(kLayout.label, 7, 4);
        put(kLayout.width, static_cast<uint64_t>(width), 2);
        put(kLayout.height, static_cast<uint64_t>(height), 2);
        put(kLayout.orientation, 1 + choice[0] % 8, 1);
    }
    RecordIndex index(kLayout);
    index.worth_bytes = 0;  // inputs are smaller than any other gap
    index.add(3, records);
    index.add_steps(3, steps);
    OpenShards shards;
    const int64_t changed = int64_t{status.st_ctim.tv_sec} * 1'000'000'000 + status.st_ctim.tv_nsec;
    shards.put(3, {descriptor, static_cast<uint64_t>(status.st_size), changed});

    PartOptions options;
    options.ops = ops_of(choice);
    options.large_bytes = 1 << 20;
    options.made_ns = INT64_MAX;
    options.decode.max_pixels = kMaxPixels;
    options.filter = (choice[2] & 1) != 0 ? ResizeFilter::bicubic : ResizeFilter::bilinear;
    PartRunner runner(options);
    const PartSample samples[3] = {{3, 0, choice[11]}, {3, 1, choice[11]}, {3, 2, 0}};
    std::vector<int64_t> missing;
    if (runner.find(samples, index, shards, false, missing) || missing != std::vector<int64_t>{3}) std::abort();
    if (!runner.find(samples, index, shards, true, missing)) std::abort();
    runner.draw(samples, choice[1], index);
    runner.read(shards);
    close(descriptor);
    static uint8_t pixels[3][3 * kSide * kSide];
    PartOutput output;
    output.first.data = pixels;
    output.first.height = output.first.width = kSide;
    output.image_bytes = sizeof(pixels[0]);
    runner.decode(output);
    if (runner.is_done(2)) std::abort();

    // The corpus gets few of those that are not made, or most inputs would be made of them.
    if (!runner.is_done(0)) return hash_of(data, size) % 16 == 2 ? 0 : -1;
    BaseDraw drawn;
    const int orientation = 1 + choice[0] % 8;
    if (orientation >= 5) std::swap(width, height);
    if (!draw_base(options.ops, 0, choice[1], choice[11], height, width, drawn)) std::abort();
    View view;
    std::copy_n(drawn.source_box, 4, view.source_box);
    std::copy_n(drawn.support_box, 4, view.support_box);
    view.flip = drawn.flip;
    view.filter = options.filter;
    if (drawn.frame[2] != drawn.width || drawn.frame[3] != drawn.height)
        view.part = {static_cast<int>(drawn.frame[0]), static_cast<int>(drawn.frame[1]),
                     static_cast<int>(drawn.frame[2]), static_cast<int>(drawn.frame[3]), {}};
    static uint8_t whole[3 * kSide * kSide];
    view.out = output.first;
    view.out.data = whole;
    ImageJob job;
    job.file = file;
    job.orientation = orientation;
    job.views = {&view, 1};
    static ImageDecoder decoder;
    const Outcome outcome = decoder.decode(job, options.decode);
    const bool is_right = choice[3] < 200;  // the places of rows
    if (is_right && outcome.ok() && std::memcmp(whole, pixels[0], sizeof(whole)) != 0) std::abort();
    return 0;
}
