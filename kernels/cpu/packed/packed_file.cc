#include "cpu/packed/packed_file.h"

#include <algorithm>

#include "cpu/jpeg/bands.h"

namespace feeder {
namespace {

Outcome corrupt(const char* reason) { return {Status::corrupt, std::string("packed JPEG: ") + reason}; }

}  // namespace

const char* unpackable_kind(const JpegHeader& header) {
    if (header.sof >= 0xC9 || header.arithmetic_tables) return "arithmetic coding";
    if (header.sof > 0xC2) return "lossless or hierarchical coding";
    if (header.precision_bits != 8) return "more than 8 bits a sample";
    if (header.sof == 0xC2) return "progressive";
    if (header.components == 2) return "two components";
    if (header.components == 4) return "four components";
    if (!header.interleaved_scan) return "several scans";
    int blocks = 0;
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        if (header.quant[component.quant_table].length == 0) return "a missing table";
        if (header.dc_huffman[component.dc_table].length == 0) return "a missing table";
        if (header.ac_huffman[component.ac_table].length == 0) return "a missing table";
        if (header.h_max % component.h != 0 || header.v_max % component.v != 0)
            return "sampling factors that no decoder upsamples";
        blocks += header.components == 1 ? 1 : component.h * component.v;
    }
    return blocks > 10 ? "more than 10 blocks in an MCU" : nullptr;
}

Outcome PackedFile::open(ByteSpan file, int64_t first_row_px) {
    file_ = file;
    if (file.size() < sizeof(PackedHead)) return corrupt("the file ends inside its head");
    std::memcpy(&head_, file.data(), sizeof(head_));
    if (std::memcmp(head_.magic, kPackedMagic, 3) != 0) return corrupt("it does not start with FPK");
    if (head_.magic[3] != kPackedMagic[3])
        return {Status::corrupt, "packed JPEG: version " + std::to_string(head_.magic[3]) + " of its format; update feeder"};
    const uint64_t table = sizeof(PackedHead) + uint64_t{head_.header_bytes};
    const uint64_t head_end = table + 4 * (uint64_t{head_.rows} + 1);
    if (head_end > file.size()) return corrupt("the file ends inside its head");
    Outcome outcome = parse_jpeg_header(jpeg_header(), header_);
    if (!outcome.ok()) return outcome;
    if (header_.entropy_offset != head_.header_bytes) return corrupt("its JPEG header has a wrong length");
    if (const char* kind = unpackable_kind(header_)) return corrupt(kind);
    if (head_.ones > 1) return corrupt("unknown padding");
    if (header_.components == 1) {
        header_.component[0].h = header_.component[0].v = 1;
        header_.h_max = header_.v_max = 1;
    }
    grid_ = mcu_grid(header_);
    lines_per_row_ = 0;
    for (int i = 0; i < header_.components; ++i) lines_per_row_ += header_.component[i].v;
    if (head_.rows != static_cast<uint32_t>(grid_.rows)) return corrupt("it has another number of rows than its image");
    if (row_offset(0) != head_end) return corrupt("its rows do not follow its head");
    if (first_row_px < 0) {
        const uint64_t size = uint64_t{row_offset(grid_.rows)} + head_.trailer_bytes;
        if (file.size() < size) return corrupt("truncated");
        if (file.size() != size) return corrupt("there are bytes after its end");
        first_row_ = 0;
        data_begin_ = static_cast<size_t>(head_end);
        return {};
    }
    first_row_ = first_row_px > INT32_MAX ? -1 : mcu_row_at(header_, static_cast<int>(first_row_px));
    if (first_row_ < 0) return corrupt("its rows are not where they were said to be");
    data_begin_ = static_cast<size_t>(head_end) + (first_row_ > 0 ? kBandMarkerBytes : 0);
    return {};
}

CodebookId PackedFile::codebook_id() const {
    CodebookId id;
    std::copy_n(head_.codebook, id.size(), id.begin());
    return id;
}

uint32_t PackedFile::row_offset(int row) const {
    uint32_t offset;
    std::memcpy(&offset, file_.data() + sizeof(PackedHead) + head_.header_bytes + 4 * static_cast<size_t>(row), 4);
    return offset;
}

ByteSpan PackedFile::row_bytes(int row) const {
    if (row < first_row_ || row >= grid_.rows) return {};
    const uint32_t first = row_offset(first_row_), begin = row_offset(row), end = row_offset(row + 1);
    if (begin < first || end < begin) return {};
    if (data_begin_ > file_.size() || end - first > file_.size() - data_begin_) return {};
    return file_.subspan(data_begin_ + (begin - first), end - begin);
}

void PackedFile::fetch_row(int row) const {
    constexpr size_t kCacheLine = 64;
    const ByteSpan bytes = row_bytes(row);
    for (size_t at = 0; at < bytes.size(); at += kCacheLine) __builtin_prefetch(bytes.data() + at);
}

bool PackedFile::read_row(int row, const Codebook& codebook, std::vector<PackedLine>& lines) const {
    lines.clear();
    const ByteSpan bytes = row_bytes(row);
    if (bytes.empty()) return false;  // a row has lines, and each of them some bytes
    const uint8_t* at = bytes.data();
    const uint8_t* const stop = at + bytes.size();
    for (int i = 0; i < header_.components; ++i) {
        const ShapeTable& table = codebook.of_component(i);
        for (int v = 0; v < header_.component[i].v; ++v) {
            PackedLine line;
            line.component = i;
            line.row = v;
            line.blocks = grid_.columns * header_.component[i].h;
            const size_t blocks = static_cast<size_t>(line.blocks);
            const size_t code_bytes = static_cast<size_t>((line.dc_groups() + 1) / 2);
            if (static_cast<size_t>(stop - at) < 2 + blocks + code_bytes) return false;
            line.patch_count = at[0] | at[1] << 8;
            line.shapes = at + 2;
            line.dc_codes = line.shapes + blocks;
            line.dc_payload = line.dc_codes + code_bytes;
            size_t dc_bytes = 0;
            for (int g = 0; g < line.dc_groups(); ++g) {
                if (line.dc_code(g) >= kDcCodes) return false;
                dc_bytes += static_cast<size_t>(kDcWidths[line.dc_code(g)]);
            }
            if (dc_bytes > static_cast<size_t>(stop - line.dc_payload)) return false;
            line.payload = line.dc_payload + dc_bytes;
            size_t payload_bytes = 0;
            for (size_t x = 0; x < blocks; ++x) payload_bytes += table.bytes[line.shapes[x]];
            if (table.count < kMostShapes) {
                uint8_t largest = 0;
                for (size_t x = 0; x < blocks; ++x) largest = std::max(largest, line.shapes[x]);
                if (largest >= table.count) return false;
            }
            const size_t patch_bytes = static_cast<size_t>(kPatchBytes) * static_cast<size_t>(line.patch_count);
            if (payload_bytes + patch_bytes > static_cast<size_t>(stop - line.payload)) return false;
            line.patches = line.payload + payload_bytes;
            int last = -1;  // of the places of patches, which rise
            for (int p = 0; p < line.patch_count; ++p) {
                const int place = line.patch_place(p);
                if (place <= last) return false;
                last = place;
                line.has_dc_patches |= (place & 63) == 0;
            }
            if (last >> 6 >= line.blocks) return false;
            at = line.patches + patch_bytes;
            lines.push_back(line);
        }
    }
    return at == stop;
}

bool find_packed_bands(ByteSpan file, std::vector<uint32_t>& places) {
    places.clear();
    PackedFile packed;
    if (!packed.open(file, -1).ok()) return false;
    const McuGrid& grid = packed.grid();
    for (int row = 0; row < grid.rows; ++row)
        if (packed.row_offset(row) > packed.row_offset(row + 1)) return false;
    const int band_rows = std::max(1, kBandPixels / grid.mcu_height_px);
    places.push_back(static_cast<uint32_t>(band_rows * grid.mcu_height_px));
    for (int row = 0; row < grid.rows; row += band_rows) places.push_back(packed.row_offset(row));
    places.push_back(packed.row_offset(grid.rows));
    return true;
}

int16_t dc_field(const uint8_t* group, int code, int i, const uint8_t* end) {
    const int width = kDcWidths[code], bit = width * i;
    const uint8_t* const at = group + bit / 8;
    uint32_t word = 0;  // at most 7 + 12 bits of it count
    if (end > at) std::memcpy(&word, at, static_cast<size_t>(std::min<ptrdiff_t>(4, end - at)));
    const int bias = width == 0 ? 0 : 1 << (width - 1), mask = (1 << width) - 1;
    return static_cast<int16_t>((static_cast<int>(word >> bit % 8) & mask) - bias);
}

void patch_dc(const PackedLine& line, int count, int16_t* differences) {
    for (int p = 0; p < line.patch_count; ++p) {
        const Patch patch = line.patch(p);
        if (patch.block >= count) break;
        if (patch.index != 0) continue;
        const int width = kDcWidths[line.dc_code(patch.block / 8)];
        differences[patch.block] = static_cast<int16_t>(differences[patch.block] + patch.high * (1 << width));
    }
}

}  // namespace feeder
