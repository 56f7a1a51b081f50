#include "cpu/png.h"

#include <libdeflate.h>

#include <algorithm>
#include <cstring>

#include "cpu/png_rows.h"

namespace feeder {
namespace {

constexpr uint64_t kMostPixels = 178'956'970;     // more are a bomb to Pillow
constexpr size_t kMostRatio = 1032;               // of deflate
constexpr size_t kMostText = 1 << 20;             // bytes inflated, which Pillow takes from a chunk
constexpr size_t kSmallText = kMostText / 1040;   // can't have more

constexpr uint32_t kind_of(const char (&name)[5]) {
    return static_cast<uint32_t>(name[0]) << 24 | static_cast<uint32_t>(name[1]) << 16 |
           static_cast<uint32_t>(name[2]) << 8 | static_cast<uint32_t>(name[3]);
}

constexpr uint32_t kHeader = kind_of("IHDR"), kPalette = kind_of("PLTE"), kPixels = kind_of("IDAT"), kEnd = kind_of("IEND");

uint32_t big_endian32(const uint8_t* bytes) {
    return uint32_t{bytes[0]} << 24 | uint32_t{bytes[1]} << 16 | uint32_t{bytes[2]} << 8 | bytes[3];
}

// Letters, the first of them small, as every decoder may leave such a chunk out.
bool is_ancillary(uint32_t kind) {
    for (int shift = 0; shift < 32; shift += 8) {
        const uint32_t letter = (kind >> shift & 0xFF) | 0x20;
        if (letter < 'a' || letter > 'z') return false;
    }
    return (kind & 0x20000000) != 0;
}

bool is_zero_behind_name(ByteSpan body) {
    const auto end = std::find(body.begin(), body.end(), 0);
    return body.end() - end > 1 && end[1] == 0;
}

Outcome for_pillow(const char* reason) { return {Status::not_jpeg, std::string("PNG: ") + reason}; }

}  // namespace

void PngDecoder::Free::operator()(libdeflate_decompressor* one) const { libdeflate_free_decompressor(one); }

bool PngDecoder::read_header(ByteSpan body) {
    if (body.size() != 13 || body[10] != 0 || body[11] != 0 || body[12] != 0) return false;
    const uint64_t width = big_endian32(body.data()), height = big_endian32(body.data() + 4);
    if (width < 1 || height < 1 || width > kMostPixels || width * height > kMostPixels) return false;
    constexpr int kChannels[7] = {1, 0, 3, 1, 2, 0, 4};
    const int color = body[9];
    depth_ = body[8];
    channels_ = color < 7 ? kChannels[color] : 0;
    has_palette_ = color == 3;
    const bool is_small = depth_ == 1 || depth_ == 2 || depth_ == 4;
    if (channels_ == 0 || !(depth_ == 8 || (is_small && channels_ == 1))) return false;
    width_ = static_cast<int>(width);
    height_ = static_cast<int>(height);
    row_bytes_ = (static_cast<size_t>(width_) * static_cast<size_t>(channels_ * depth_) + 7) / 8;
    return true;
}

// True if Pillow reads the chunk without an error, and makes the same pixels without it.
bool PngDecoder::is_harmless(uint32_t kind, ByteSpan body) {
    switch (kind) {
        case kind_of("acTL"):
        case kind_of("fcTL"):
        case kind_of("fdAT"): return false;
        case kind_of("gAMA"): return body.size() == 4;
        case kind_of("cHRM"): return body.size() == 32;
        case kind_of("sRGB"): return body.size() == 1;
        case kind_of("pHYs"): return body.size() == 9;
        case kind_of("tRNS"):
            return has_palette_ ? body.size() <= 256 : body.size() == (channels_ == 1 ? 2u : channels_ == 3 ? 6u : 0u);
        case kind_of("tEXt"): return body.size() < kMostText;
        case kind_of("zTXt"): return body.size() < kSmallText && is_zero_behind_name(body);  // its method
        case kind_of("iTXt"):  // whether it is compressed
            return body.size() < (is_zero_behind_name(body) ? kMostText : kSmallText);
        case kind_of("iCCP"): {
            if (!is_zero_behind_name(body)) return false;
            const ByteSpan profile(std::find(body.begin(), body.end(), 0) + 2, body.end());
            size_t size = 0;
            return profile.size() < kSmallText ||
                   (rows_.reserve(kMostText) &&
                    libdeflate_zlib_decompress(inflater_.get(), profile.data(), profile.size(), rows_.data(), kMostText,
                                               &size) == LIBDEFLATE_SUCCESS);
        }
        default: return is_ancillary(kind);
    }
}

Outcome PngDecoder::open(ByteSpan file) {
    if (!inflater_) inflater_.reset(libdeflate_alloc_decompressor());
    if (!inflater_) return {Status::corrupt, "out of memory"};
    parts_.clear();
    palette_ = {};
    bool has_pixels = false;
    uint32_t before = 0;
    for (size_t at = 8; before != kEnd;) {
        if (file.size() - at < 12) return for_pillow("it ends early");
        const uint8_t* const chunk = file.data() + at;
        const size_t length = big_endian32(chunk);
        if (length > file.size() - at - 12) return for_pillow("it ends early");
        const uint32_t kind = big_endian32(chunk + 4);
        const ByteSpan body = {chunk + 8, length};
        if ((kind == kHeader) != (before == 0)) return for_pillow("its header is not the first chunk");
        if (!has_pixels && kind != kPixels && libdeflate_crc32(0, chunk + 4, 4 + length) != big_endian32(chunk + 8 + length))
            return for_pillow("a checksum is wrong");
        if (kind == kHeader) {
            if (!read_header(body)) return for_pillow("of a kind that is left to Pillow");
        } else if (kind == kPalette) {
            if (has_pixels || !palette_.empty() || length % 3 != 0 || length < 3 || length > 768)
                return for_pillow("an odd palette");
            palette_ = body;
        } else if (kind == kPixels) {
            if (has_pixels && before != kPixels) return for_pillow("pixels in two places");
            has_pixels = true;
            parts_.push_back(body);
        } else if (kind == kEnd) {
            if (!has_pixels) return for_pillow("no pixels");
        } else if (!is_harmless(kind, body)) {
            return for_pillow("a chunk that is left to Pillow");
        }
        before = kind;
        at += 12 + length;
    }
    return has_palette_ && palette_.empty() ? for_pillow("no palette") : Outcome();
}

bool PngDecoder::inflate() {
    size_t size = 0;
    for (const ByteSpan part : parts_) size += part.size();
    ByteSpan deflated = parts_.front();
    if (parts_.size() > 1) {
        if (!joined_.reserve(size)) return false;
        joined_.set_size(0);
        for (const ByteSpan part : parts_)
            if (!part.empty()) joined_.append(part.data(), part.size());
        deflated = joined_.span();
    }
    const size_t expected = static_cast<size_t>(height_) * (1 + row_bytes_);
    if (expected / kMostRatio > size || !rows_.reserve(expected)) return false;
    return libdeflate_zlib_decompress(inflater_.get(), deflated.data(), deflated.size(), rows_.data(), expected, nullptr) ==
           LIBDEFLATE_SUCCESS;
}

// Undoes the filters of some rows, and of those above that these need.
bool PngDecoder::unfilter(int top, int bottom) {
    for (int y = 0; y < height_; ++y)
        if (!is_png_filter(row(y)[-1])) return false;
    int y = top;
    while (y > 0 && row(y)[-1] >= static_cast<uint8_t>(PngFilter::up)) --y;
    zeros_.assign(row_bytes_, 0);
    const size_t pixel_bytes = static_cast<size_t>(std::max(channels_ * depth_ / 8, 1));
    for (; y < bottom; ++y) {
        uint8_t* const at = row(y);
        unfilter_row(static_cast<PngFilter>(at[-1]), at, y > 0 ? row(y - 1) : zeros_.data(), row_bytes_, pixel_bytes, at);
    }
    return true;
}

// Makes 8 bits a sample of fewer, and colors of places in the palette. False: a place that the palette does not have.
bool PngDecoder::expand(int top, int bottom) {
    const size_t out_bytes = has_palette_ ? 3 : 1, width = static_cast<size_t>(width_);
    if (!expanded_.reserve(static_cast<size_t>(bottom - top) * width * out_bytes + 1)) return false;
    const size_t colors = has_palette_ ? palette_.size() / 3 : 256;
    uint32_t table[256] = {};  // the last byte is written over
    for (size_t i = 0; i < std::min<size_t>(colors, 256) && has_palette_; ++i) std::memcpy(&table[i], palette_.data() + 3 * i, 3);
    const unsigned mask = (1u << depth_) - 1, scale = 255 / mask;
    const size_t samples = 8 / static_cast<size_t>(depth_);
    unsigned most = 0;
    uint8_t* to = expanded_.data();
    for (int y = top; y < bottom; ++y) {
        const uint8_t* const from = row(y);
        for (size_t x = 0; x < width; ++x, to += out_bytes) {
            const unsigned shift = static_cast<unsigned>((samples - 1 - x % samples) * static_cast<size_t>(depth_));
            const unsigned sample = static_cast<unsigned>(from[x / samples]) >> shift & mask;
            if (has_palette_) {
                most = std::max(most, sample);
                std::memcpy(to, &table[sample], 4);
            } else {
                *to = static_cast<uint8_t>(sample * scale);
            }
        }
    }
    return most < colors;
}

Outcome PngDecoder::decode(int top, int bottom, Planes& planes) {
    if (!inflate() || !unfilter(top, bottom)) return for_pillow("its pixels are damaged");
    const bool expands = has_palette_ || depth_ < 8;
    if (expands && !expand(top, bottom)) return for_pillow("a place that its palette does not have");
    const bool is_gray = !has_palette_ && channels_ < 3;
    planes = Planes();
    planes.count = is_gray ? 1 : 3;
    planes.color = is_gray ? ColorModel::gray : ColorModel::rgb;
    planes.image_width = planes.window_width = width_;
    planes.image_height = height_;
    planes.origin_y = top;
    planes.window_height = bottom - top;
    const int step = expands ? planes.count : channels_;
    for (int i = 0; i < planes.count; ++i) {
        Plane& plane = planes.plane[i];
        plane.data = (expands ? expanded_.data() : row(top)) + i;
        plane.stride_bytes = expands ? ptrdiff_t{step} * width_ : static_cast<ptrdiff_t>(1 + row_bytes_);
        plane.width = width_;
        plane.height = planes.window_height;
        plane.step_bytes = step;
    }
    return {};
}

}  // namespace feeder
