// A JPEG's header: every marker up to the first scan's entropy-coded data. Our own parser, bounds-checked.
#pragma once

#include <cstddef>
#include <cstdint>

#include "cpu/bytes.h"
#include "cpu/status.h"

namespace feeder {

struct JpegComponent {
    uint8_t id = 0;
    uint8_t h = 0;  // sampling factors, 1-4
    uint8_t v = 0;
    uint8_t quant_table = 0;
    uint8_t dc_table = 0;  // of the first scan
    uint8_t ac_table = 0;
};

// A table's payload in the file; length 0 if the file does not define the table.
struct TableRef {
    size_t offset = 0;
    size_t length = 0;
    uint8_t precision = 0;  // of a quantization table: 0 for 8 bits, 1 for 16
};

struct JpegHeader {
    uint8_t sof = 0;  // 0xC0 baseline, 0xC1 extended, 0xC2 progressive, 0xC9 and up arithmetic, ...
    int precision_bits = 0;
    int width = 0;
    int height = 0;
    int components = 0;
    JpegComponent component[4];
    int h_max = 1;
    int v_max = 1;
    int restart_interval_mcus = 0;  // 0: none
    int adobe_transform = -1;       // -1: no Adobe marker
    bool jfif = false;
    bool arithmetic_tables = false;  // a DAC marker, whose contents are ignored
    bool interleaved_scan = false;  // the first scan has all components, in order, and all coefficients
    TableRef quant[4];
    TableRef dc_huffman[4];
    TableRef ac_huffman[4];
    size_t sof_offset = 0;      // of the marker's 0xFF
    size_t entropy_offset = 0;  // of the first scan's data

    bool huffman_sequential() const { return sof == 0xC0 || sof == 0xC1; }
    bool one_scan() const { return huffman_sequential() && interleaved_scan; }
};

// One marker segment: `offset` is its payload's, after the two length bytes.
struct MarkerSegment {
    uint8_t code = 0;
    size_t offset = 0;
    size_t length = 0;
};

// Walks over the marker segments in front of the first scan. Usage: while (walker.next(segment)) ...
class MarkerWalker {
  public:
    explicit MarkerWalker(ByteSpan file) : file_(file) {}

    // False after SOS was returned, or if the file is damaged (see error()).
    bool next(MarkerSegment& segment);
    // nullptr, or the fault.
    const char* error() const { return error_; }

  private:
    ByteSpan file_;
    size_t position_ = 2;  // after SOI
    const char* error_ = nullptr;
    bool done_ = false;
};

// True if a decoder does not need the segment: comments and APPn, except JFIF's and Adobe's, which decide the color
// space.
bool is_metadata(const MarkerSegment& segment, ByteSpan file);

// Writes a marker segment. The caller has reserved the memory.
void append_segment(Bytes& out, uint8_t code, const uint8_t* payload, size_t length);

// Writes the JFIF segment with this payload of 14 bytes or more, without the thumbnail that may be in it.
void append_jfif(Bytes& out, const uint8_t* payload);

// True if the bytes start like a JPEG.
inline bool looks_like_jpeg(ByteSpan file) {
    return file.size() >= 3 && file[0] == 0xFF && file[1] == 0xD8 && file[2] == 0xFF;
}

// Reads a quantization table that the file defines, into natural order.
void read_quant_table(ByteSpan file, const TableRef& table, int16_t quant[64]);

// Reads the header. Any status but ok leaves `header` half filled.
Outcome parse_jpeg_header(ByteSpan file, JpegHeader& header);

}  // namespace feeder
