// The grid of restart segments of a seekable JPEG, and the place of each segment in the file.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"

namespace feeder {

// A box in pixels of the stored image (before EXIF orientation).
struct PixelBox {
    int left = 0;
    int top = 0;
    int right = 0;
    int bottom = 0;
};

// An MCU is (8 * h_max) x (8 * v_max) pixels in an interleaved scan, and one 8x8 block in a scan of one component,
// regardless of that component's sampling factors.
struct McuGrid {
    int mcu_width_px = 0;
    int mcu_height_px = 0;
    int columns = 0;
    int rows = 0;
};

McuGrid mcu_grid(const JpegHeader& header);

// A JPEG is seekable when it is Huffman-coded and sequential with 8 bits, in one scan, and its restart interval divides
// its MCU columns: then every MCU row is cut into the same columns of segments.
struct SegmentGrid {
    McuGrid mcu;
    int segment_mcus = 0;      // the restart interval
    int segments_per_row = 0;  // 0: not seekable

    bool seekable() const { return segments_per_row != 0; }
};

SegmentGrid segment_grid(const JpegHeader& header);

// The restart interval that `transcode` gives an image: the divisor of its MCU columns that comes nearest to
// `segment_px` (by ratio, at most twice or half), else a whole MCU row.
int choose_segment_mcus(const McuGrid& grid, int segment_px);

// A rectangle of whole segments.
struct SegmentWindow {
    int first_row = 0;
    int last_row = 0;  // inclusive, as the column
    int first_column = 0;
    int last_column = 0;
};

// The segments that hold `box` and the pixels beside it that chroma upsampling reads.
SegmentWindow segments_for(const JpegHeader& header, const SegmentGrid& grid, const PixelBox& box);

struct Segment {
    size_t begin = 0;  // of the entropy-coded bytes
    size_t end = 0;    // of the marker that ends them, or of the file
};

enum class MarkerScan {
    complete,      // all requested segments were found, in order
    out_of_order,  // a marker that is not the next one: damage, left to a decoder that can resynchronize
    truncated,     // the file, or its entropy-coded data, ended before the last one
};

// Finds `count` segments from number `first` on. If truncated, `segments` holds those that begin in the file, the last
// one perhaps cut short. If `first` is not 0, `file` lacks the segments before it, except for the marker that ends them.
MarkerScan find_segments(ByteSpan file, size_t entropy_offset, size_t first, size_t count,
                         std::vector<Segment>& segments);

// The position of the next marker (its 0xFF, followed by a byte other than 00 and FF) at or after `from`; file.size() if
// there is none.
size_t find_marker(ByteSpan file, size_t from);
// The same, byte by byte: the reference, which also runs without SSE2.
size_t find_marker_portable(ByteSpan file, size_t from);

// True if an end-of-image marker follows the header. Nearly always it is at the very end.
bool has_end(ByteSpan file, size_t entropy_offset);

// The file; without the zeros or ones behind its data if it has no end-of-image marker, as they are no blocks.
ByteSpan without_padding(ByteSpan file, size_t entropy_offset);

}  // namespace feeder
