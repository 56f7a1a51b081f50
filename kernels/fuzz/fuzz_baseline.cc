// Our own entropy decoder against libjpeg: what it accepts must have libjpeg's samples.
//
// The input's last 4 bytes choose the box; the rest is the file.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/jpeg_baseline.h"
#include "cpu/jpeg_header.h"
#include "cpu/jpeg_libjpeg.h"

using namespace feeder;

namespace {

constexpr size_t kChoiceBytes = 4;

// The place in plane i of a full-resolution coordinate that is a multiple of the sample size, or rounds up to one.
int sample(int position, int origin, int factor, int most) {
    return (position * factor + most - 1) / most - origin * factor / most;
}

bool same_box(const Planes& a, const Planes& b, const PixelBox& box) {
    for (int i = 0; i < a.count; ++i) {
        const auto rows = [&](const Planes& planes, int y) {
            return sample(y, planes.origin_y, planes.v_factor[i], planes.v_max);
        };
        const auto columns = [&](const Planes& planes, int x) {
            return sample(x, planes.origin_x, planes.h_factor[i], planes.h_max);
        };
        const size_t width = static_cast<size_t>(columns(a, box.right) - columns(a, box.left));
        for (int y = 0; y < rows(a, box.bottom) - rows(a, box.top); ++y) {
            const uint8_t* const row_a =
                a.plane[i].data + (rows(a, box.top) + y) * a.plane[i].stride_bytes + columns(a, box.left);
            const uint8_t* const row_b =
                b.plane[i].data + (rows(b, box.top) + y) * b.plane[i].stride_bytes + columns(b, box.left);
            if (std::memcmp(row_a, row_b, width) != 0) return false;
        }
    }
    return true;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    const std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    JpegHeader header;
    if (!parse_jpeg_header(file, header).ok() || static_cast<int64_t>(header.width) * header.height > 1 << 18) return 0;
    PixelBox box;
    box.left = choice[0] % header.width;
    box.top = choice[1] % header.height;
    box.right = box.left + 1 + choice[2] % (header.width - box.left);
    box.bottom = box.top + 1 + choice[3] % (header.height - box.top);

    static BaselineDecoder decoder;
    Bytes pixels[2];
    Planes planes[2];
    if (!decoder.decode(file, header, box, pixels[0], planes[0])) return 0;
    if (!decode_with_libjpeg(file, header, box, Fidelity::fast, pixels[1], planes[1]).ok()) return 0;
    if (!same_box(planes[0], planes[1], box)) std::abort();
    return 0;
}
