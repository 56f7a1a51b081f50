// Any bytes through the transcode: what it accepts, libjpeg must accept too, and the output must be a seekable JPEG that
// decodes to the same planes.
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/jpeg/header.h"
#include "cpu/jpeg/libjpeg_decode.h"
#include "cpu/jpeg/segments.h"
#include "cpu/transcode/transcode.h"

using namespace feeder;

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < 1) return 0;
    const std::vector<uint8_t> file(data, data + size - 1);
    TranscodeOptions options;
    options.keep_metadata = (data[size - 1] & 1) != 0;
    options.segment_px = 8 << (data[size - 1] >> 1) % 5;
    options.max_pixels = 1 << 16;
    Bytes out;
    const Outcome outcome = transcode_jpeg(file, options, out);
    if (!outcome.ok()) {
        if (outcome.reason.empty()) std::abort();
        return 0;
    }

    JpegHeader before;
    JpegHeader after;
    if (!parse_jpeg_header(file, before).ok() || !parse_jpeg_header(out.span(), after).ok()) std::abort();
    if (!segment_grid(after).seekable()) std::abort();
    if (before.width != after.width || before.height != after.height) std::abort();
    const PixelBox whole = {0, 0, after.width, after.height};
    Bytes pixels[2];
    Planes planes[2];
    if (!decode_with_libjpeg(file, before, whole, Fidelity::fast, pixels[0], planes[0]).ok()) std::abort();
    if (!decode_with_libjpeg(out.span(), after, whole, Fidelity::fast, pixels[1], planes[1]).ok()) std::abort();
    for (int i = 0; i < planes[0].count; ++i) {
        const Plane& a = planes[0].plane[i];
        const Plane& b = planes[1].plane[i];
        for (int y = 0; y < a.height; ++y) {
            if (std::memcmp(a.data + y * a.stride_bytes, b.data + y * b.stride_bytes, static_cast<size_t>(a.width)) !=
                0) {
                std::abort();
            }
        }
    }
    return 0;
}
