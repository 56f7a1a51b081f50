// The lossless rewrite of a JPEG into a seekable one: coefficients in, the same coefficients out.
#pragma once

#include "cpu/bytes.h"
#include "cpu/status.h"

namespace feeder {

struct TranscodeOptions {
    bool keep_metadata = true;  // false: of all APPn and COM, only those that decide color are kept
    int orientation = 1;        // the EXIF orientation, 1-8, to write in place of the metadata left out
    int segment_px = 64;        // wanted width of a segment; see choose_segment_mcus
    int64_t max_pixels = 0;     // 0: no limit
};

// Writes a baseline JPEG with the pixels of `file`, restart markers on a segment grid and optimized Huffman tables.
// `unsupported` and `damaged` name the reason why the file should be kept as it is.
Outcome transcode_jpeg(ByteSpan file, const TranscodeOptions& options, Bytes& out);

}  // namespace feeder
