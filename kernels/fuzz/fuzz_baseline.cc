// Our own entropy decoder against libjpeg, at every SIMD level: what it accepts must have libjpeg's samples, and libjpeg
// must accept it too, wherever both read the same bytes. What it refuses is left to libjpeg, so there is nothing to
// compare.
//
// The input's last 5 bytes choose the box, whether it is the whole image instead, and the level; the rest is the file.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/jpeg/baseline.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/planes.h"
#include "cpu/jpeg/segments.h"
#include "cpu/simd.h"
#include "fuzz/mutate.h"

using namespace feeder;

namespace {

constexpr size_t kChoiceBytes = 5;
constexpr int64_t kMaxPixels = 1 << 16;

bool same_samples(const Planes& a, const Planes& b, const PixelBox& box) {
    for (int i = 0; i < a.count; ++i) {
        const PixelBox in_a = samples_of(a, i, box), in_b = samples_of(b, i, box);
        for (int y = 0; y < in_a.bottom - in_a.top; ++y) {
            const uint8_t* const row_a = a.plane[i].data + (in_a.top + y) * a.plane[i].stride_bytes + in_a.left;
            const uint8_t* const row_b = b.plane[i].data + (in_b.top + y) * b.plane[i].stride_bytes + in_b.left;
            if (std::memcmp(row_a, row_b, static_cast<size_t>(in_a.right - in_a.left)) != 0) return false;
        }
    }
    return true;
}

// True if ours reads all the entropy-coded bytes that libjpeg reads. libjpeg decodes whole rows of MCUs, from the first
// one on; ours leaves out the restart segments beside and above the box, and what follows the box's last MCU.
bool same_stream(const JpegHeader& header, const PixelBox& box) {
    if (box.right != header.width) return false;
    if (header.restart_interval_mcus != 0 && (box.left != 0 || box.top != 0)) return false;
    // In a file of one component with factors above 1 libjpeg's rows are higher than ours.
    return header.components > 1 || box.bottom == header.height;
}

}  // namespace

extern "C" size_t LLVMFuzzerCustomMutator(uint8_t* data, size_t size, size_t most, unsigned seed) {
    return mutate_jpeg(data, size, most, seed, kChoiceBytes);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    const std::vector<uint8_t> whole(data, data + size - kChoiceBytes);
    JpegHeader header;
    if (!parse_jpeg_header(whole, header).ok() || static_cast<int64_t>(header.width) * header.height > kMaxPixels)
        return 0;
    // libjpeg is not given the padding of a file without an end, of which ours would make blocks.
    const ByteSpan file = without_padding(whole, header.entropy_offset);
    PixelBox box = {0, 0, header.width, header.height};
    if ((choice[4] & 0x80) == 0) {
        box.left = choice[0] % header.width;
        box.top = choice[1] % header.height;
        box.right = box.left + 1 + choice[2] % (header.width - box.left);
        box.bottom = box.top + 1 + choice[3] % (header.height - box.top);
    }
    set_simd_level(static_cast<SimdLevel>(choice[4] % 3));  // where this CPU has it

    static BaselineDecoder decoder;
    static Bytes pixels[2];
    Planes planes[2];
    if (!decoder.decode(file, header, box, 0, pixels[0], planes[0])) return 0;
    if (!decode_with_libjpeg(file, header, box, Fidelity::fast, pixels[1], planes[1]).ok()) {
        if (same_stream(header, box)) std::abort();
        return 0;
    }
    if (!same_samples(planes[0], planes[1], box)) std::abort();
    return 0;
}
