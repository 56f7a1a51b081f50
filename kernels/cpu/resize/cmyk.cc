#include "cpu/resize/cmyk.h"

#include <algorithm>
#include <cstddef>

namespace feeder {

void convert_cmyk(const Planes& planes, const Region& region, uint8_t* const rgb[3]) {
    const auto clip = [](int value) { return std::clamp(value, 0, 255); };
    const auto divided = [](int product) {
        product += 128;
        return ((product >> 8) + product) >> 8;
    };
    size_t at = 0;
    for (int y = region.top; y < region.bottom; ++y) {
        const uint8_t* row[4];
        for (int i = 0; i < 4; ++i)
            row[i] = planes.plane[i].data + y * planes.plane[i].stride_bytes;
        for (int x = region.left; x < region.right; ++x, ++at) {
            int ink[4];
            for (int i = 0; i < 4; ++i) ink[i] = row[i][ptrdiff_t{x} * planes.plane[i].step_bytes];
            if (planes.color == ColorModel::ycck) {
                // jdcolor.c: 16 fractional bits, rounded in the tables for Cr => R and Cb => B.
                constexpr auto fixed = [](double value) { return static_cast<int>(value * 65536 + 0.5); };
                const int luma = ink[0], cb = ink[1] - 128, cr = ink[2] - 128;
                ink[0] = clip(255 - (luma + ((fixed(1.40200) * cr + 32768) >> 16)));
                ink[1] = clip(255 - (luma + ((-fixed(0.34414) * cb - fixed(0.71414) * cr + 32768) >> 16)));
                ink[2] = clip(255 - (luma + ((fixed(1.77200) * cb + 32768) >> 16)));
            }
            const int invert = planes.inverted ? 255 : 0;
            const int white = 255 - (ink[3] ^ invert);
            for (int c = 0; c < 3; ++c)
                rgb[c][at] = static_cast<uint8_t>(clip(white - divided((ink[c] ^ invert) * white)));
        }
    }
}

}  // namespace feeder
