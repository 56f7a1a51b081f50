// Any bytes as a PNG whose checksums are set right, as few inputs would have them; or, of a file that can be read so far, any
// bytes as its rows. The pixels of a box must be the same whether all rows are made or only those that it needs.
//
// The input's last 12 bytes choose the box and what is done; the rest is the file.
#include <libdeflate.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "cpu/png.h"

using namespace feeder;

namespace {

constexpr size_t kChoiceBytes = 12;
constexpr int64_t kMaxPixels = 1 << 14;

uint32_t big_endian32(const uint8_t* bytes) {
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

void put32(uint32_t value, uint8_t* to) {
    for (int i = 0; i < 4; ++i) to[i] = static_cast<uint8_t>(value >> (24 - 8 * i));
}

void set_checksums(std::vector<uint8_t>& file) {
    for (size_t at = 8; file.size() >= at + 12;) {
        const size_t length = big_endian32(&file[at]);
        if (length > file.size() - at - 12) return;
        put32(libdeflate_crc32(0, &file[at + 4], 4 + length), &file[at + 8 + length]);
        at += 12 + length;
    }
}

void add_chunk(const char* kind, const std::vector<uint8_t>& body, std::vector<uint8_t>& file) {
    const size_t at = file.size();
    file.resize(at + 8);
    put32(static_cast<uint32_t>(body.size()), &file[at]);
    std::memcpy(&file[at + 4], kind, 4);
    file.insert(file.end(), body.begin(), body.end());
    file.resize(file.size() + 4);
}

// A file with the input's header and palette, and its bytes as rows.
std::vector<uint8_t> of_rows(const std::vector<uint8_t>& input, int height, size_t row_bytes) {
    std::vector<uint8_t> rows(static_cast<size_t>(height) * (1 + row_bytes));
    for (size_t i = 0; i < rows.size(); ++i) rows[i] = input[i % input.size()];
    for (size_t i = 0; i < rows.size(); i += 1 + row_bytes) rows[i] = static_cast<uint8_t>(rows[i] % 5);
    static libdeflate_compressor* const compressor = libdeflate_alloc_compressor(1);
    std::vector<uint8_t> deflated(libdeflate_zlib_compress_bound(compressor, rows.size()));
    deflated.resize(libdeflate_zlib_compress(compressor, rows.data(), rows.size(), deflated.data(), deflated.size()));
    std::vector<uint8_t> file(input.begin(), input.begin() + 33);
    add_chunk("PLTE", std::vector<uint8_t>(input.end() - 3, input.end()), file);
    add_chunk("IDAT", deflated, file);
    add_chunk("IEND", {}, file);
    return file;
}

std::vector<uint8_t> pixels_of(const Planes& planes, int left, int top, int right, int bottom) {
    std::vector<uint8_t> found;
    for (int c = 0; c < planes.count; ++c) {
        const Plane& plane = planes.plane[c];
        for (int y = top - planes.origin_y; y < bottom - planes.origin_y; ++y)
            for (int x = left; x < right; ++x) found.push_back(plane.data[y * plane.stride_bytes + x * plane.step_bytes]);
    }
    return found;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    if (size < kChoiceBytes + 1) return 0;
    const uint8_t* const choice = data + size - kChoiceBytes;
    std::vector<uint8_t> file(data, data + size - kChoiceBytes);
    if (!looks_like_png(file)) return 0;
    set_checksums(file);

    static PngDecoder decoder;
    if (file.size() >= 33 && (choice[0] & 1) != 0) {
        constexpr size_t kChannels[8] = {1, 1, 3, 1, 2, 1, 4, 1};
        const uint64_t width = big_endian32(&file[16]), height = big_endian32(&file[20]);
        if (width < 1 || height < 1 || width * height > kMaxPixels || width > kMaxPixels || height > kMaxPixels) return 0;
        file = of_rows(file, static_cast<int>(height), (width * kChannels[file[25] % 8] * (file[24] % 9) + 7) / 8);
        set_checksums(file);
    }
    const Outcome opened = decoder.open(file);
    if (!opened.ok()) {
        if (opened.reason.empty()) std::abort();
        return 0;
    }
    const int width = decoder.width(), height = decoder.height();
    if (int64_t{width} * height > kMaxPixels) return 0;
    const int left = choice[2] % width, right = left + 1 + choice[3] % (width - left);
    const int top = (choice[4] | choice[5] << 8) % height, bottom = top + 1 + choice[6] % (height - top);
    Planes planes;
    const Outcome whole = decoder.decode(0, height, planes);
    const std::vector<uint8_t> expected = whole.ok() ? pixels_of(planes, left, top, right, bottom) : std::vector<uint8_t>();
    const Outcome part = decoder.decode(top, bottom, planes);
    // A place that the palette lacks may lie outside the box.
    if (whole.ok() && (!part.ok() || pixels_of(planes, left, top, right, bottom) != expected)) std::abort();
    return 0;
}
