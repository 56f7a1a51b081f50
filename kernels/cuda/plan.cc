#include "cuda/plan.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "cpu/boxes.h"
#include "cpu/jpeg/bands.h"
#include "cpu/jpeg/segments.h"
#include "cpu/resize/axis_tables.h"
#include "cpu/resize/frame.h"
#include "cuda/huffman.h"

namespace feeder::cuda {
namespace {

constexpr uint64_t kMostBlocks = 1u << 31;
constexpr uint64_t kMostWeights = 1u << 31;

// Kinds that the Huffman kernel decodes.
bool is_decodable(const JpegHeader& header) {
    return header.huffman_sequential() && header.precision_bits == 8 && header.interleaved_scan &&
           !header.arithmetic_tables && header.components <= kComponents;
}

bool ends_with_its_marker(ByteSpan file) {
    return file.size() >= 2 && file[file.size() - 2] == 0xFF && file[file.size() - 1] == 0xD9;
}

// True if an MCU from `first` to `end` lies in the window.
bool touches(const ImageRow& image, uint32_t first, uint32_t end) {
    const uint32_t columns = image.mcu_columns;
    for (uint32_t row = std::max(first / columns, image.first_row); row < image.end_row && row * columns < end; ++row) {
        const uint32_t low = std::max(first, row * columns + image.first_column);
        if (low < std::min(end, row * columns + image.end_column)) return true;
    }
    return false;
}

AxisRow axis_row(const AxisKey& key) {
    AxisRow row{};
    row.in0 = key.in0;
    row.in1 = key.in1;
    row.in_size = key.in_size;
    row.base = key.base;
    row.mirrored = key.mirrored;
    for (int c = 0; c < kComponents; ++c) {
        const AxisKey::Component& component = key.component[c < key.components ? c : 0];
        row.component[c] = {component.replicate, component.factor, component.smooth, component.samples};
    }
    const double scale = static_cast<double>(key.in1 - key.in0) / key.outputs;
    // Of Pillow's filter, and of one that is composed with an upsampling.
    row.taps = 2 * static_cast<int>(std::ceil(std::max(scale, 1.0))) + 1 + 4;
    return row;
}

}  // namespace

CodebookRow codebook_row(const Codebook& codebook) {
    CodebookRow row{};
    for (int t = 0; t < 2; ++t) {
        const ShapeTable& table = codebook.tables[t];
        std::copy_n(table.bytes, kMostShapes, row.bytes[t]);
        for (int i = 0; i < kMostShapes; ++i) std::copy_n(table.codes[i].data(), kGroups, row.codes[t][i]);
    }
    return row;
}

bool ImagePlan::open(const ImageJob& job) {
    job_ = job;
    views_.assign(job.views.begin(), job.views.end());
    job_.views = views_;
    groups_.clear();
    if (!open_header() || !color_model(header_, color_).ok() || !has_resizable_planes(header_)) return false;
    const bool turned = job.orientation >= 5;
    const int width = turned ? header_.height : header_.width, height = turned ? header_.width : header_.height;
    if (job.image_height != 0 && (job.image_height != height || job.image_width != width)) return false;
    needs_.clear();
    for (View& view : views_) {
        int(&support)[4] = view.support_box;
        if (support[0] < 0 || support[1] < 0 || support[0] >= support[2] || support[1] >= support[3] || support[2] > width ||
            support[3] > height) {
            return false;
        }
        narrow_support(ResizeFilter::bilinear, view.source_box, view.out.height, view.out.width, support);
        needs_.push_back({stored_box(support, job.orientation, header_.width, header_.height)});
    }
    group_views(header_, needs_, Fidelity::fast, groups_);
    for (ViewGroup& group : groups_) std::sort(group.views.begin(), group.views.end());
    return true;
}

bool ImagePlan::open_header() {
    is_packed_ = looks_like_packed(job_.file);
    if (is_packed_) {
        if (!packed_.open(job_.file, job_.first_row).ok()) return false;
        header_ = packed_.header();
        codebook_id_ = packed_.codebook_id();
        codebook_ = find_codebook(codebook_id_);
        return codebook_ != nullptr;
    }
    if (!parse_jpeg_header(job_.file, header_).ok() || !is_decodable(header_)) return false;
    if (job_.is_whole() && !ends_with_its_marker(job_.file)) return false;
    if (header_.components == 1) {  // an MCU is one block, regardless of the factors
        header_.component[0].h = header_.component[0].v = 1;
        header_.h_max = header_.v_max = 1;
    }
    return true;
}

bool ImagePlan::make(const ViewGroup& group, Bytes& bytes) {
    planned_.clear();
    image_ = {};
    segments_.clear();
    lines_.clear();
    byte_count_ = 0;
    const size_t before = bytes.size();
    if (add_group(group, bytes)) return true;
    bytes.set_size(before);
    return false;
}

uint8_t* ImagePlan::add_bytes(size_t count, Bytes& bytes) {
    const size_t begin = bytes.size(), end = begin + count;
    if (byte_count_ + count + kBytesPadding > UINT32_MAX) return nullptr;
    if (end > bytes.capacity() && !bytes.reserve(2 * end)) return nullptr;
    bytes.set_size(end);
    byte_count_ += count;
    return bytes.data() + begin;
}

bool ImagePlan::add_group(const ViewGroup& group, Bytes& bytes) {
    return (is_packed_ || add_codes()) && add_geometry(group) && (is_packed_ ? add_lines(bytes) : add_segments(bytes));
}

bool ImagePlan::add_geometry(const ViewGroup& group) {
    const JpegHeader& header = header_;
    const ByteSpan tables = is_packed_ ? packed_.jpeg_header() : job_.file;
    const PixelBox window = mcu_window(header, group.box);
    const McuGrid grid = mcu_grid(header);

    ImageRow& row = image_;
    row.components = static_cast<uint32_t>(header.components);
    row.mcu_columns = static_cast<uint32_t>(grid.columns);
    row.mcus = row.mcu_columns * static_cast<uint32_t>(grid.rows);
    row.interval = header.restart_interval_mcus != 0 ? static_cast<uint32_t>(header.restart_interval_mcus) : row.mcus;
    row.first_column = static_cast<uint32_t>(window.left / grid.mcu_width_px);
    row.end_column = static_cast<uint32_t>((window.right + grid.mcu_width_px - 1) / grid.mcu_width_px);
    row.first_row = static_cast<uint32_t>(window.top / grid.mcu_height_px);
    row.end_row = static_cast<uint32_t>((window.bottom + grid.mcu_height_px - 1) / grid.mcu_height_px);
    uint64_t blocks = 0, in_mcu = 0;
    for (int c = 0; c < kComponents; ++c) {
        row.first_block[c] = static_cast<uint32_t>(blocks);
        if (c >= header.components) continue;
        const JpegComponent& component = header.component[c];
        if (header.quant[component.quant_table].length == 0) return false;
        int16_t quant[64];
        read_quant_table(tables, header.quant[component.quant_table], quant);
        std::memcpy(row.quant[c], quant, sizeof(quant));
        row.h[c] = component.h;
        row.v[c] = component.v;
        row.block_columns[c] = (row.end_column - row.first_column) * component.h;
        in_mcu += static_cast<uint64_t>(component.h) * component.v;
        blocks += static_cast<uint64_t>(row.block_columns[c]) * (row.end_row - row.first_row) * component.v;
        if (blocks > kMostBlocks) return false;
    }
    if (in_mcu > 10) return false;
    row.end_block = static_cast<uint32_t>(blocks);
    for (int c = header.components; c < kComponents; ++c) row.first_block[c] = row.end_block;
    const Planes planes = planes_of(header, window, color_);
    return std::all_of(group.views.begin(), group.views.end(), [&](size_t view) { return add_view(views_[view], planes); });
}

bool ImagePlan::add_view(const View& view, const Planes& planes) {
    const double* const source = view.source_box;
    const int* const support = view.support_box;
    const Frame frame = frame_of(planes, job_.orientation);
    try {
        check_boxes(frame, source, support, job_.orientation);
    } catch (const std::invalid_argument&) {
        return false;  // for the CPU's message
    }
    AxisKey x = axis_key(source[0], source[2], support[0], support[2], view.out.width, frame.mirrored_x,
                         frame.image_width, frame.origin_x);
    AxisKey y = axis_key(source[1], source[3], support[1], support[3], view.out.height, frame.mirrored_y,
                         frame.image_height, frame.origin_y);
    PlannedView& planned = planned_.emplace_back();
    planned.height = static_cast<uint32_t>(view.out.height);
    planned.width = static_cast<uint32_t>(view.out.width);
    ImageRow& row = planned.image = image_;
    row.exact = planes.color != ColorModel::ycbcr;
    row.transposed = frame.transposed;
    row.flip = view.flip;
    if (row.exact != 0) {
        x.components = y.components = 1;
        x.component[0] = {1, 1, 0, frame.window_width};
        y.component[0] = {1, 1, 0, frame.window_height};
    } else {
        add_ycbcr_components(planes, frame.transposed, x, y);
    }
    uint64_t weights = 0;
    for (int a = 0; a < 2; ++a) {
        row.axis[a] = axis_row(a == 0 ? x : y);
        row.axis[a].weights = static_cast<uint32_t>(weights);
        weights += uint64_t{row.components} * (2 + static_cast<uint64_t>(row.axis[a].taps)) *
                   (a == 0 ? planned.width : planned.height);
        if (weights > kMostWeights) return false;
    }
    planned.weight_count = static_cast<uint32_t>(weights);
    return true;
}

bool ImagePlan::add_codes() {
    const JpegHeader& header = header_;
    ImageRow& row = image_;
    struct Used {
        int kind, number;
    } used[kHuffmanTables];
    int count = 0;
    for (int c = 0; c < header.components; ++c) {
        for (int kind = 0; kind < 2; ++kind) {
            const int number = kind == 0 ? header.component[c].dc_table : header.component[c].ac_table;
            int slot = 0;
            while (slot < count && (used[slot].kind != kind || used[slot].number != number)) ++slot;
            (kind == 0 ? row.dc_table : row.ac_table)[c] = static_cast<uint8_t>(slot);
            if (slot < count) continue;
            if (count == kHuffmanTables) return false;
            const TableRef& table = kind == 0 ? header.dc_huffman[number] : header.ac_huffman[number];
            const ByteSpan payload = job_.file.subspan(table.offset, table.length);
            feeder::HuffmanCodes& codes = checked_[kind][number];
            if (!codes.built_from(payload)) {
                if (payload.empty() || !codes.build(payload)) return false;
                if (kind == 0 && !codes.are_sizes()) {
                    codes.source_length = 0;
                    return false;
                }
            }
            std::memcpy(row.codes[slot].counts, payload.data(), 16);
            std::memcpy(row.codes[slot].values, payload.data() + 16, payload.size() - 16);
            used[count++] = {kind, number};
        }
    }
    return true;
}

bool ImagePlan::add_segments(Bytes& bytes) {
    const JpegHeader& header = header_;
    const ImageRow& row = image_;
    const int file_row = job_.is_whole() ? 0 : mcu_row_at(header, job_.first_row);
    if (file_row < 0) return false;
    const uint32_t begin_row = static_cast<uint32_t>(file_row);
    const bool seekable = header.restart_interval_mcus != 0 && row.mcu_columns % row.interval == 0;
    if (begin_row > 0 && (row.first_row < begin_row || !seekable)) return false;
    const uint32_t first = begin_row * row.mcu_columns / row.interval;
    const uint32_t end = ((row.end_row - 1) * row.mcu_columns + row.end_column - 1) / row.interval + 1;
    if (find_segments(job_.file, header.entropy_offset, first, end - first, found_) != MarkerScan::complete) return false;
    for (uint32_t s = first; s < end; ++s) {
        const uint32_t mcu = s * row.interval;
        if (!touches(row, mcu, std::min(row.mcus, mcu + row.interval))) continue;
        const Segment& segment = found_[s - first];
        const size_t length = segment.end - segment.begin;
        const uint32_t offset = static_cast<uint32_t>(byte_count_);
        uint8_t* const place = length == 0 ? nullptr : add_bytes(length, bytes);
        if (place == nullptr) return false;
        std::memcpy(place, job_.file.data() + segment.begin, length);
        segments_.push_back({offset, static_cast<uint32_t>(length), mcu, 0});
    }
    while (segments_.size() % Huffman::kThreads != 0) segments_.push_back({0, 0, 0, 0});
    return true;
}

bool ImagePlan::add_lines(Bytes& bytes) {
    const ImageRow& row = image_;
    for (uint32_t mcu_row = row.first_row; mcu_row < row.end_row; ++mcu_row) {
        if (!packed_.read_row(static_cast<int>(mcu_row), *codebook_, packed_lines_)) return false;
        const uint8_t* const begin = packed_lines_.front().shapes;
        const PackedLine& last = packed_lines_.back();
        const uint8_t* const end = last.patches + kPatchBytes * static_cast<size_t>(last.patch_count);
        const uint32_t offset = static_cast<uint32_t>(byte_count_);
        uint8_t* const place = add_bytes(static_cast<size_t>(end - begin), bytes);
        if (place == nullptr) return false;
        std::memcpy(place, begin, static_cast<size_t>(end - begin));
        const auto moved = [&](const uint8_t* at) { return offset + static_cast<uint32_t>(at - begin); };
        for (const PackedLine& line : packed_lines_) {
            const uint32_t c = static_cast<uint32_t>(line.component);
            const uint32_t block_row = (mcu_row - row.first_row) * row.v[c] + static_cast<uint32_t>(line.row);
            lines_.push_back({moved(line.shapes), moved(line.dc_payload), moved(line.payload), moved(line.patches),
                              static_cast<uint32_t>(line.patch_count),
                              row.first_block[c] + block_row * row.block_columns[c], 0, c});
        }
    }
    return true;
}

}  // namespace feeder::cuda
