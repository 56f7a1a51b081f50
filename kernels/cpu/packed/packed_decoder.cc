#include "cpu/packed/packed_decoder.h"

#include <algorithm>
#include <bit>
#include <cstring>

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
    LineCursor(const PackedLine& line, const ShapeTable& table, int first)
        : line_(line), table_(table), payload_(line.payload), block_(first) {
        for (int x = 0; x < first; ++x) payload_ += table.bytes[line.shapes[x]];
        while (patch_ < line.patch_count && line.patch_place(patch_) >> 6 < first) ++patch_;
    }

    const uint8_t* payload() const { return payload_; }

    // Goes on by some blocks, at most BlockRun::kMost, and adds the patches of their coefficients but DC, by the block's
    // number among these.
    void take_patches(int count, std::vector<BlockPatch>& patches) {
        const uint8_t* const shapes = line_.shapes + block_;
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
        }
    }

    void skip_payload(int bytes) { payload_ += bytes; }

    // The next blocks, at most BlockRun::kMost, to be unpacked to `out`, and their patches.
    void take(int count, int16_t (*out)[64], PackedBlock* blocks, std::vector<BlockPatch>& patches) {
        const uint8_t* const shapes = line_.shapes + block_;
        for (int i = 0; i < count; ++i) {
            blocks[i] = {payload_, out[i], shapes[i]};
            payload_ += table_.bytes[shapes[i]];
        }
        take_patches(count, patches);
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
        const int count = std::min(BlockRun::kMost, end - x);
        PackedBlock blocks[BlockRun::kMost];
        patches.clear();
        cursor.take(count, out, blocks, patches);
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
    const UnpackKernels& kernels = unpack_kernels();
    LineCursor cursor(line, table, first);
    std::vector<BlockPatch>& patches = component.patches;
    for (int x = first; x < end;) {
        const int count = std::min(BlockRun::kMost, end - x);
        const size_t waiting = patches.size();
        BlockRun run{cursor.payload(), line.shapes + x, dc_.data() + x, out, count, nullptr, 0};
        cursor.take_patches(count, patches);
        run.patches = patches.data() + waiting;
        run.patch_count = static_cast<int>(patches.size() - waiting);
        int payload_bytes;
        uint64_t flat = kernels.add_run(table, run, component.corner, component.full, payload_bytes);
        cursor.skip_payload(payload_bytes);
        for (; flat != 0; flat &= flat - 1) {
            const int i = std::countr_zero(flat);
            transform_.flat(run.dc[i], out + 8 * i, component.quant, component.stride_bytes);
        }
        transform_corner(table, stop, false, component);
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
        const int count = std::min(BlockRun::kMost, end - x);
        PackedBlock blocks[BlockRun::kMost];
        patches.clear();
        cursor.take(count, coefficients, blocks, patches);
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
