// The layout of a packed JPEG, and its bounds-checked reading. Byte by byte in docs/packed-format.md.
#pragma once

#include <cstdint>
#include <cstring>
#include <vector>

#include "cpu/bytes.h"
#include "cpu/jpeg/header.h"
#include "cpu/jpeg/segments.h"
#include "cpu/packed/codebook.h"
#include "cpu/status.h"

namespace feeder {

static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "the format's numbers are little-endian");

inline constexpr uint8_t kPackedMagic[4] = {'F', 'P', 'K', 1};
inline constexpr size_t kDigestBytes = 32;

// The first bytes of the file.
struct PackedHead {
    uint8_t magic[4];
    uint8_t codebook[kCodebookIdBytes];
    uint8_t sha256[kDigestBytes];  // of the JPEG
    uint32_t jpeg_bytes;           // length of the JPEG
    uint32_t header_bytes;         // of the JPEG, up to its entropy-coded data; they follow this head
    uint32_t trailer_bytes;        // of the JPEG, from its end-of-image marker on; they end the file
    uint32_t rows;                 // of MCUs
    uint8_t ones;                  // 1 if entropy-coded segments are filled up to a byte with ones, 0 with zeros
    uint8_t sequential_copy;       // 1 if the JPEG is a sequential copy of a progressive file, 0 if it is the file
    uint8_t reserved[2];
};
static_assert(sizeof(PackedHead) == 64);

// A patch adds to a number that its group's width w is too narrow for: 2^w times `high`. 24 bits: block << 11 | zigzag
// index << 5 | high, in two's complement. Index 0 means the difference of DC coefficients. A line has at most 8191 blocks, as
// libjpeg's images have at most 65,500 columns.
struct Patch {
    int block;
    int index;
    int high;
};
inline constexpr int kPatchBytes = 3;
inline constexpr int kLeastHigh = -16;
inline constexpr int kMostHigh = 15;

inline constexpr int kMostPatches = 0xFFFF;  // of a line

// The blocks of one component in one row of blocks.
struct PackedLine {
    int component = 0;
    int row = 0;  // of blocks, in its row of MCUs
    int blocks = 0;
    const uint8_t* shapes = nullptr;  // one for each block
    const uint8_t* dc_codes = nullptr;    // of the widths of 8 differences of DC coefficients each, 4 bits
    const uint8_t* dc_payload = nullptr;  // the differences
    const uint8_t* payload = nullptr;
    const uint8_t* patches = nullptr;
    int patch_count = 0;
    bool has_dc_patches = false;

    int dc_groups() const { return (blocks + 7) / 8; }
    int dc_code(int group) const { return dc_codes[group / 2] >> 4 * (group % 2) & 15; }
    // Of the i-th patch: block << 6 | index.
    int patch_place(int i) const { return static_cast<int>(patch_bits(i) >> 5); }
    Patch patch(int i) const {
        const uint32_t bits = patch_bits(i);
        return {static_cast<int>(bits >> 11), static_cast<int>(bits >> 5 & 63), static_cast<int32_t>(bits << 27) >> 27};
    }
    uint32_t patch_bits(int i) const {
        const uint8_t* const at = patches + kPatchBytes * i;
        return at[0] | static_cast<uint32_t>(at[1]) << 8 | static_cast<uint32_t>(at[2]) << 16;
    }
};

// Bits of a difference of DC coefficients, by code.
inline constexpr int kDcCodes = 12;
inline constexpr int kDcWidths[kDcCodes] = {0, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

// The part of a number that a field of `width` bits holds, if the rest of it is in a patch.
inline int low_part(int number, int width) {
    return width == 0 ? 0 : ((number + (1 << (width - 1))) & ((1 << width) - 1)) - (1 << (width - 1));
}

inline bool looks_like_packed(ByteSpan file) { return file.size() >= 3 && std::memcmp(file.data(), kPackedMagic, 3) == 0; }

// A packed JPEG, or its head and the bytes from 2 before some row of MCUs on.
class PackedFile {
  public:
    // Reads the head. Afterwards header() is valid, and every row can be asked for. `first_row` is the row of MCUs that
    // follows the head; -1: the file is whole. See ImageJob. `file` must stay.
    Outcome open(ByteSpan file, int64_t first_row_px);

    const PackedHead& head() const { return head_; }
    CodebookId codebook_id() const;
    ByteSpan jpeg_header() const { return file_.subspan(sizeof(PackedHead), head_.header_bytes); }
    // Of jpeg_header(). With one component its factors are 1, as an MCU is then one block.
    const JpegHeader& header() const { return header_; }
    const McuGrid& grid() const { return grid_; }
    ByteSpan trailer() const { return file_.last(head_.trailer_bytes); }  // of a whole file
    // Where the bytes of a row of MCUs start in the whole file; for grid().rows its end.
    uint32_t row_offset(int row) const;
    int lines_per_row() const { return lines_per_row_; }
    const uint8_t* end() const { return file_.data() + file_.size(); }

    // Finds the lines of a row of MCUs, in order. False: damaged, or not among the rows that `file` has.
    bool read_row(int row, const Codebook& codebook, std::vector<PackedLine>& lines) const;

    // Has the bytes of a row of MCUs brought into the cache: its lines would be found one cache miss after the other.
    void fetch_row(int row) const;

  private:
    // The bytes of a row of MCUs. Empty: damaged, or not among the rows that `file` has.
    ByteSpan row_bytes(int row) const;

    ByteSpan file_;
    PackedHead head_{};
    JpegHeader header_;
    McuGrid grid_;
    int lines_per_row_ = 0;
    int first_row_ = 0;
    size_t data_begin_ = 0;  // of first_row_, in file_
};

// The same as find_bands() for a packed JPEG; the last place is the end of its rows.
bool find_packed_bands(ByteSpan file, std::vector<uint32_t>& places);

// The i-th difference of a group of DC differences, without its patch. Memory is read up to `end`.
int16_t dc_field(const uint8_t* group, int code, int i, const uint8_t* end);

// Patches the first `count` DC differences of a line. Only for a line that has such patches.
void patch_dc(const PackedLine& line, int count, int16_t* differences);

// Why a JPEG header is of a kind that is not packed; nullptr if it is not.
const char* unpackable_kind(const JpegHeader& header);

}  // namespace feeder
