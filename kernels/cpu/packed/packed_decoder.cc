#include "cpu/packed/packed_decoder.h"

#include <algorithm>
#include <cstring>
#include <span>

#include "cpu/jpeg/reduced_idct.h"
#include "cpu/jpeg/zigzag.h"

namespace feeder {
namespace {

// DC coefficients of the first `count` blocks of a line.
void read_line_dc(const PackedLine& line, int count, const uint8_t* stop, std::vector<int16_t>& dc) {
    dc.resize(std::max(dc.size(), static_cast<size_t>(count) + 7));
    unpack_kernels().read_dc(line, count, stop, dc.data());
}

// A place in a line, whose blocks are taken in order, some at a time.
class LineCursor {
  public:
    static constexpr int kMost = 64;  // blocks in one take

    LineCursor(const PackedLine& line, const ShapeTable& table, int first)
        : line_(line), table_(table), payload_(line.payload), block_(first) {
        for (int x = 0; x < first; ++x) payload_ += table.bytes[line.shapes[x]];
        while (patch_ < line.patch_count && line.patch_place(patch_) >> 6 < first) ++patch_;
    }

    // The payload of the next `count` blocks, and their kinds: those with patches count as full. Adds the patches of their
    // coefficients, by the block's number among these.
    void take(int count, const uint8_t** payloads, uint8_t* kinds, std::vector<BlockPatch>& patches) {
        const uint8_t* const shapes = line_.shapes + block_;
        for (int i = 0; i < count; ++i) {
            payloads[i] = payload_;
            const unsigned kind_and_bytes = table_.kind_and_bytes[shapes[i]];
            payload_ += kind_and_bytes & 0xFF;
            kinds[i] = static_cast<uint8_t>(kind_and_bytes >> 8);
        }
        const int first = block_;
        block_ += count;
        for (; patch_ < line_.patch_count; ++patch_) {
            const Patch patch = line_.patch(patch_);
            if (patch.block >= block_) break;
            if (patch.index == 0) continue;
            const int block = patch.block - first;
            const int width = kWidths[table_.codes[shapes[block]][static_cast<size_t>(patch.index) / 8]];
            patches.push_back({static_cast<uint8_t>(block), static_cast<uint8_t>(patch.index),
                               static_cast<int16_t>(patch.high * (1 << width))});
            kinds[block] = ShapeTable::full;
        }
    }

  private:
    const PackedLine& line_;
    const ShapeTable& table_;
    const uint8_t* payload_;
    int block_;
    int patch_ = 0;
};

}  // namespace

void unpack_line(const PackedLine& line, const ShapeTable& table, int first, int end, const uint8_t* stop,
                 std::vector<int16_t>& dc, int16_t (*out)[64]) {
    read_line_dc(line, end, stop, dc);
    const UnpackBlocks unpack = unpack_kernels().unpack;
    LineCursor cursor(line, table, first);
    std::vector<BlockPatch> patches;
    for (int x = first; x < end;) {
        const int count = std::min(LineCursor::kMost, end - x);
        const uint8_t* payloads[LineCursor::kMost];
        uint8_t kinds[LineCursor::kMost];
        PackedBlock blocks[LineCursor::kMost];
        patches.clear();
        cursor.take(count, payloads, kinds, patches);
        for (int i = 0; i < count; ++i) blocks[i] = {payloads[i], out[i], line.shapes[x + i]};
        unpack(table, blocks, count, stop);
        for (const BlockPatch& patch : patches) patch.apply(out[patch.block][patch.index]);
        for (int i = 0; i < count; ++i) out[i][0] = dc[static_cast<size_t>(x + i)];
        x += count;
        out += count;
    }
}

void PackedDecoder::transform_blocks(const BlockQueue& queue, int count, const Component& component, bool is_corner) {
    IdctBlock blocks[BlockQueue::kMost];
    for (int i = 0; i < count; ++i) blocks[i] = {rows_.coefficients + 64 * i, queue.out[i]};
    if (is_corner) {
        transform_.corner(idct_kernels(), blocks, count, component.quant, component.stride_bytes);
    } else {
        transform_.full(idct_kernels(), blocks, count, component.quant, component.stride_bytes);
    }
}

void PackedDecoder::transform_full(const ShapeTable& table, const uint8_t* stop, bool all, Component& component) {
    const UnpackKernels& kernels = unpack_kernels();
    BlockQueue& queue = component.full;
    const int count = all ? queue.count : queue.count - queue.count % kernels.at_once;
    if (count == 0) return;
    kernels.unpack_queue(table, queue, count, stop, rows_);
    size_t patched = 0;
    for (; patched < component.patches.size() && component.patches[patched].block < count; ++patched) {
        const BlockPatch& patch = component.patches[patched];
        int block = patch.block;
        do {  // and its copies
            const int index = kNaturalOrder[patch.index];
            patch.apply(rows_.coefficients[place_in_rows(block, index, kernels.at_once)]);
            ++block;
        } while (patch.block == count - 1 && block % kernels.at_once != 0);
    }
    if (kernels.transform_queue == nullptr) {
        transform_blocks(queue, count, component, false);
    } else {
        int done = 0;
        while (done < count) {
            done = kernels.transform_queue(queue, rows_, done, count, component.quant, component.stride_bytes);
            for (const int end = std::min(done + kernels.at_once, count); done < end; ++done) {  // those that it can't do
                alignas(16) int16_t coefficients[64];
                for (int i = 0; i < 64; ++i)
                    coefficients[i] = rows_.coefficients[place_in_rows(done, i, kernels.at_once)];
                const IdctBlock block = {coefficients, queue.out[done]};
                transform_.full(idct_kernels(), &block, 1, component.quant, component.stride_bytes);
            }
        }
    }
    component.patches.erase(component.patches.begin(), component.patches.begin() + static_cast<ptrdiff_t>(patched));
    for (BlockPatch& patch : component.patches) patch.block = static_cast<uint8_t>(patch.block - count);
    queue.keep_from(count);
}

void PackedDecoder::transform_corner(const ShapeTable& table, const uint8_t* stop, bool all, Component& component) {
    const UnpackKernels& kernels = unpack_kernels();
    BlockQueue& queue = component.corner;
    const int count = all ? queue.count : queue.count - queue.count % kernels.at_once;
    if (kernels.corner == nullptr) {
        kernels.unpack_queue(table, queue, count, stop, rows_);
        transform_blocks(queue, count, component, true);
    } else {
        int done = 0;
        while (done < count) {
            done = kernels.corner(table, queue, done, count, stop, component.quant, component.stride_bytes);
            for (const int end = std::min(done + kernels.at_once, count); done < end; ++done) {  // those that it can't do
                alignas(64) int16_t ordered[64], coefficients[64];
                const PackedBlock packed = {queue.payload[done], ordered, queue.shape[done]};
                kernels.unpack(table, &packed, 1, stop);
                ordered[0] = queue.dc[done];
                for (int k = 0; k < 64; ++k) coefficients[kNaturalOrder[k]] = ordered[k];
                const IdctBlock block = {coefficients, queue.out[done]};
                transform_.corner(idct_kernels(), &block, 1, component.quant, component.stride_bytes);
            }
        }
    }
    queue.keep_from(count);
}

void PackedDecoder::decode_line(const PackedLine& line, const ShapeTable& table, int first, int end,
                                const uint8_t* stop, uint8_t* out, Component& component) {
    read_line_dc(line, end, stop, dc_);
    LineCursor cursor(line, table, first);
    for (int x = first; x < end;) {
        const int count = std::min(kRunBlocks, end - x);
        const uint8_t* payloads[kRunBlocks];
        uint8_t kinds[kRunBlocks];
        std::vector<BlockPatch>& patches = component.patches;
        const size_t waiting = patches.size();
        cursor.take(count, payloads, kinds, patches);
        // Sorted by kind, without a branch on it. 16 bits of `ends` for each kind.
        uint8_t sorted[(ShapeTable::full + 1) * kRunBlocks];
        uint64_t ends = uint64_t{kRunBlocks} << 16 | uint64_t{2 * kRunBlocks} << 32;
        for (int i = 0; i < count; ++i) {
            const int at = 16 * kinds[i];
            sorted[ends >> at & 0xFFFF] = static_cast<uint8_t>(i);
            ends += uint64_t{1} << at;
        }
        const auto of_kind = [&](ShapeTable::Kind kind) {
            return std::span<const uint8_t>(sorted + kind * kRunBlocks, sorted + (ends >> (16 * kind) & 0xFFFF));
        };
        const int16_t* const dc = dc_.data() + x;
        const uint8_t* const shapes = line.shapes + x;
        for (const int i : of_kind(ShapeTable::flat))
            transform_.flat(dc[i], out + 8 * i, component.quant, component.stride_bytes);
        component.corner.add(of_kind(ShapeTable::corner), payloads, out, dc, shapes);
        transform_corner(table, stop, false, component);
        if (patches.size() > waiting) {
            uint8_t in_queue[kRunBlocks];
            int next = component.full.count;
            for (const int i : of_kind(ShapeTable::full)) in_queue[i] = static_cast<uint8_t>(next++);
            for (size_t p = waiting; p < patches.size(); ++p) patches[p].block = in_queue[patches[p].block];
        }
        component.full.add(of_kind(ShapeTable::full), payloads, out, dc, shapes);
        transform_full(table, stop, false, component);
        x += count;
        out += 8 * count;
    }
}

void PackedDecoder::decode_reduced_line(const PackedLine& line, const ShapeTable& table, int first, int end,
                                        const uint8_t* stop, int shrink, uint8_t* out, const Component& component) {
    read_line_dc(line, end, stop, dc_);
    const UnpackBlocks unpack = unpack_kernels().unpack;
    LineCursor cursor(line, table, first);
    int16_t(*const coefficients)[64] = reinterpret_cast<int16_t(*)[64]>(rows_.coefficients);
    std::vector<BlockPatch>& patches = components_[0].patches;
    for (int x = first; x < end;) {
        const int count = std::min(kRunBlocks, end - x);
        const uint8_t* payloads[kRunBlocks];
        uint8_t kinds[kRunBlocks];
        PackedBlock blocks[kRunBlocks];
        patches.clear();
        cursor.take(count, payloads, kinds, patches);
        for (int i = 0; i < count; ++i) blocks[i] = {payloads[i], coefficients[i], line.shapes[x + i]};
        unpack(table, blocks, count, stop);
        for (const BlockPatch& patch : patches) patch.apply(coefficients[patch.block][patch.index]);
        for (int i = 0; i < count; ++i) {
            coefficients[i][0] = dc_[static_cast<size_t>(x + i)];
            reduced_idct(coefficients[i], CoefficientOrder::zigzag, component.quant, shrink, out, component.stride_bytes);
            out += 8 / shrink;
        }
        x += count;
    }
    patches.clear();
}

bool PackedDecoder::decode(const PackedFile& file, const Codebook& codebook, const PixelBox& box, Bytes& pixels,
                           Planes& planes, StageTimes* times, int shrink) {
    Lap lap(times);
    const JpegHeader& header = file.header();
    const McuGrid& grid = file.grid();
    ColorModel color;
    if (!transform_.ready() || !color_model(header, color).ok()) return false;
    const PixelBox window = mcu_window(header, box);
    if (!lay_out_planes(header, window, color, shrink, pixels, planes)) return false;
    for (int i = 0; i < header.components; ++i) {
        Component& component = components_[i];
        read_quant_table(file.jpeg_header(), header.quant[header.component[i].quant_table], component.quant);
        component.stride_bytes = planes.plane[i].stride_bytes;
        component.full.count = component.corner.count = 0;
        component.patches.clear();
    }
    lap.add_to(&StageTimes::tables);
    const int first_column = window.left / grid.mcu_width_px;
    const int end_column = (window.right + grid.mcu_width_px - 1) / grid.mcu_width_px;
    const int first_row = window.top / grid.mcu_height_px;
    const int end_row = (window.bottom + grid.mcu_height_px - 1) / grid.mcu_height_px;
    file.fetch_row(first_row);
    for (int row = first_row; row < end_row; ++row) {
        if (row + 1 < end_row) file.fetch_row(row + 1);
        if (!file.read_row(row, codebook, lines_)) return false;
        for (const PackedLine& line : lines_) {
            const JpegComponent& component = header.component[line.component];
            const Plane& plane = planes.plane[line.component];
            const ptrdiff_t top = 8 / shrink * ((row - first_row) * component.v + line.row);
            uint8_t* const out = const_cast<uint8_t*>(plane.data) + top * plane.stride_bytes;
            const ShapeTable& table = codebook.of_component(line.component);
            const int first = first_column * component.h, end = end_column * component.h;
            if (shrink == 1) {
                decode_line(line, table, first, end, file.end(), out, components_[line.component]);
            } else {
                decode_reduced_line(line, table, first, end, file.end(), shrink, out, components_[line.component]);
            }
        }
    }
    for (int i = 0; i < header.components; ++i) {
        Component& component = components_[i];
        transform_corner(codebook.of_component(i), file.end(), true, component);
        transform_full(codebook.of_component(i), file.end(), true, component);
    }
    lap.add_to(&StageTimes::idct);
    return true;
}

}  // namespace feeder
