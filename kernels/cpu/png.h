// PNGs to planes.
//
// Note [Pillow's PNGs]
// Only what is plain and whole is decoded here: up to 8 bits a sample, not interlaced, one image, every chunk in its place,
// checksums and lengths right. Anything else, damaged files too, has the status not_jpeg: Pillow decodes or refuses it. So
// pixels and refusals are Pillow's, and this code need not follow it where files are odd. Pillow checks the CRC of the chunks
// before the pixels only; the pixels have zlib's own checksum.
#pragma once

#include <memory>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/image.h"
#include "cpu/status.h"

struct libdeflate_decompressor;

namespace feeder {

inline bool looks_like_png(ByteSpan file) {
    return file.size() >= 8 && std::memcmp(file.data(), "\x89PNG\r\n\x1a\n", 8) == 0;
}

// Decodes one image after the other and keeps its buffers.
class PngDecoder {
  public:
    // Reads the chunks of a file, which must outlive decode(). No memory is sized by its header.
    Outcome open(ByteSpan file);

    int width() const { return width_; }
    int height() const { return height_; }

    // Decodes the rows from top up to bottom. The planes are valid until the next call.
    Outcome decode(int top, int bottom, Planes& planes);

  private:
    struct Free {
        void operator()(libdeflate_decompressor* one) const;
    };

    bool read_header(ByteSpan body);
    bool is_harmless(uint32_t kind, ByteSpan body);
    bool inflate();
    bool unfilter(int top, int bottom);
    bool expand(int top, int bottom);
    uint8_t* row(int y) { return rows_.data() + static_cast<size_t>(y) * (1 + row_bytes_) + 1; }

    std::unique_ptr<libdeflate_decompressor, Free> inflater_;
    std::vector<ByteSpan> parts_;  // of the deflated rows
    ByteSpan palette_;
    int width_ = 0;
    int height_ = 0;
    int depth_ = 0;     // bits a sample
    int channels_ = 0;  // as stored, with alpha
    bool has_palette_ = false;
    size_t row_bytes_ = 0;
    Bytes joined_, rows_, expanded_;
    std::vector<uint8_t> zeros_;
};

}  // namespace feeder
