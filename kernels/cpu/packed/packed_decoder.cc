#include "cpu/packed/packed_decoder.h"

#include <algorithm>
#include <cstring>

#include "cpu/jpeg/zigzag.h"

namespace feeder {
namespace {

// A place in a line, whose blocks are taken in order, some at a time.
class LineCursor {
  public:
    static constexpr int kMost = 32;  // blocks in one take

    LineCursor(const PackedLine& line, const ShapeTable& table, int first)
        : line_(line), table_(table), payload_(line.payload), block_(first) {
        for (int x = 0; x < first; ++x) payload_ += table.bytes[line.shapes[x]];
        while (patch_ < line.patch_count && line.patch(patch_).block < first) ++patch_;
    }

    // The next `count` blocks: their payload, and their kinds with the patches counted in.
    void take(int count, const uint8_t** payloads, uint8_t* kinds) {
        for (int i = 0; i < count; ++i) {
            const uint8_t shape = line_.shapes[block_ + i];
            payloads[i] = payload_;
            payload_ += table_.bytes[shape];
            kinds[i] = table_.kind[shape];
        }
        first_patch_ = patch_;
        first_block_ = block_;
        block_ += count;
        for (; patch_ < line_.patch_count; ++patch_) {
            const Patch patch = line_.patch(patch_);
            if (patch.block >= block_) break;
            if (patch.index == 0) continue;
            uint8_t& kind = kinds[patch.block - first_block_];
            kind = std::max<uint8_t>(kind, patch.index < kCornerEnd ? ShapeTable::corner : ShapeTable::full);
        }
    }

    // Patches the coefficients of the blocks that were taken last.
    void patch(int16_t (*blocks)[64]) const {
        for (int p = first_patch_; p < patch_; ++p) {
            const Patch patch = line_.patch(p);
            if (patch.index == 0) continue;
            const Shape& codes = table_.codes[line_.shapes[patch.block]];
            const int width = kWidths[codes[static_cast<size_t>(patch.index) / 8]];
            int16_t& coefficient = blocks[patch.block - first_block_][kNaturalOrder[patch.index]];
            coefficient = static_cast<int16_t>(coefficient + patch.high * (1 << width));
        }
    }

  private:
    const PackedLine& line_;
    const ShapeTable& table_;
    const uint8_t* payload_;
    int block_;
    int patch_ = 0;
    int first_patch_ = 0;
    int first_block_ = 0;
};

}  // namespace

void unpack_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                 std::vector<int16_t>& dc, int16_t (*out)[64]) {
    dc.resize(std::max(dc.size(), static_cast<size_t>(end)));
    read_dc(line, end, stop, dc.data());
    const UnpackBlocks unpack = unpack_blocks();
    LineCursor cursor(line, table, first);
    for (int x = first; x < end;) {
        const int count = std::min(LineCursor::kMost, end - x);
        const uint8_t* payloads[LineCursor::kMost];
        uint8_t kinds[LineCursor::kMost];
        PackedBlock blocks[LineCursor::kMost];
        cursor.take(count, payloads, kinds);
        for (int i = 0; i < count; ++i) blocks[i] = {payloads[i], out[i], line.shapes[x + i]};
        unpack(table, blocks, count, stop);
        cursor.patch(out);
        for (int i = 0; i < count; ++i) out[i][0] = dc[static_cast<size_t>(x + i)];
        x += count;
        out += count;
    }
}

void PackedDecoder::decode_line(const PackedLine& line, const ShapeTable& table, int first, int end,
                                const uint8_t* stop, uint8_t* out, const int16_t* quant, ptrdiff_t stride_bytes) {
    const UnpackBlocks unpack = unpack_blocks();
    const IdctKernels* const kernels = wide_idct_kernels();
    dc_.resize(std::max(dc_.size(), static_cast<size_t>(end)));
    read_dc(line, end, stop, dc_.data());
    LineCursor cursor(line, table, first);
    for (int x = first; x < end;) {
        const int count = std::min(LineCursor::kMost, end - x);
        const uint8_t* payloads[kRunBlocks];
        uint8_t kinds[kRunBlocks];
        PackedBlock blocks[kRunBlocks];
        IdctBlock full[kRunBlocks], corner[kRunBlocks];
        int packed = 0, fulls = 0, corners = 0;
        cursor.take(count, payloads, kinds);
        for (int i = 0; i < count; ++i) {
            const IdctBlock target = {blocks_[i], out + 8 * (x - first + i)};
            if (kinds[i] == ShapeTable::flat) {
                alignas(16) int16_t flat[64] = {dc_[static_cast<size_t>(x + i)]};
                transform_.flat({flat, target.out}, quant, stride_bytes);
                continue;
            }
            blocks[packed++] = {payloads[i], blocks_[i], line.shapes[x + i]};
            if (kinds[i] == ShapeTable::corner) {
                corner[corners++] = target;
            } else {
                full[fulls++] = target;
            }
        }
        unpack(table, blocks, packed, stop);
        cursor.patch(blocks_);
        for (int i = 0; i < count; ++i) blocks_[i][0] = dc_[static_cast<size_t>(x + i)];
        transform_.full(kernels, full, fulls, quant, stride_bytes);
        transform_.corner(kernels, corner, corners, quant, stride_bytes);
        x += count;
    }
}

bool PackedDecoder::decode(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& pixels,
                           Planes& planes, StageTimes* times) {
    Lap lap(times);
    const JpegHeader& header = file.header();
    const McuGrid& grid = file.grid();
    ColorModel color;
    if (!transform_.ready() || !color_model(header, color).ok()) return false;
    for (int i = 0; i < header.components; ++i)
        read_quant_table(file.jpeg_header(), header.quant[header.component[i].quant_table], quant_[i]);
    const PixelBox window = mcu_window(header, box);
    if (!lay_out_planes(header, window, color, pixels, planes)) return false;
    lap.add_to(&StageTimes::tables);
    const int first_column = window.left / grid.mcu_width_px;
    const int end_column = (window.right + grid.mcu_width_px - 1) / grid.mcu_width_px;
    const int first_row = window.top / grid.mcu_height_px;
    const int end_row = (window.bottom + grid.mcu_height_px - 1) / grid.mcu_height_px;
    for (int row = first_row; row < end_row; ++row) {
        if (!file.read_row(row, codebook, lines_)) return false;
        for (const PackedLine& line : lines_) {
            const JpegComponent& component = header.component[line.component];
            const Plane& plane = planes.plane[line.component];
            const ptrdiff_t top = 8 * ((row - first_row) * component.v + line.row);
            decode_line(line, codebook.of_component(line.component), first_column * component.h,
                        end_column * component.h, file.end(), const_cast<uint8_t*>(plane.data) + top * plane.stride_bytes,
                        quant_[line.component], plane.stride_bytes);
        }
    }
    lap.add_to(&StageTimes::idct);
    return true;
}

}  // namespace feeder
