#include "cpu/jpeg/baseline.h"

#include <algorithm>
#include <cstring>

#include "cpu/jpeg/idct.h"
#include "cpu/jpeg/reduced_idct.h"
#include "cpu/jpeg/unstuff.h"

namespace feeder {
namespace {

// A run of MCUs changes a DC prediction by less than this, so a prediction beyond it has not wrapped yet.
constexpr unsigned kMostPrediction = 1u << 30;

}  // namespace

bool BaselineDecoder::build_tables(ByteSpan file, const JpegHeader& header) {
    plan_.blocks = 0;
    plan_.has_pairs = header.restart_interval_mcus == 0;  // one stream
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        const TableRef& quant = header.quant[component.quant_table];
        const TableRef& dc = header.dc_huffman[component.dc_table];
        const TableRef& ac = header.ac_huffman[component.ac_table];
        if (quant.length == 0 || dc.length == 0 || ac.length == 0) return false;
        read_quant_table(file, quant, quant_[i]);
        DcTable& dc_table = dc_tables_[component.dc_table];
        AcTable& ac_table = ac_tables_[component.ac_table];
        if (!dc_table.build(file.subspan(dc.offset, dc.length)) ||
            !ac_table.build(file.subspan(ac.offset, ac.length), plan_.has_pairs)) {
            return false;
        }
        for (int n = component.h * component.v; n > 0; --n) {
            if (plan_.blocks == McuPlan::kMaxBlocks) return false;
            plan_.block[plan_.blocks++] = {&dc_table, &ac_table, i};
        }
    }
    return true;
}

// False: a JPEG for libjpeg.
bool BaselineDecoder::prepare(ByteSpan file, const JpegHeader& original, JpegHeader& header) {
    if (!original.huffman_sequential() || original.precision_bits != 8 || !original.interleaved_scan) return false;
    if (original.components == 4 || original.arithmetic_tables) return false;
    header = original;
    if (header.components == 1) {  // an MCU is one block, regardless of the factors
        header.component[0].h = header.component[0].v = 1;
        header.h_max = header.v_max = 1;
    }
    return build_tables(file, header);
}

// Finds the segments that overlap the window, and unstuffs them.
bool BaselineDecoder::plan_tasks(ByteSpan file, const JpegHeader& header, const Window& window, int file_row,
                                 Lap& lap) {
    const bool whole = header.restart_interval_mcus == 0;
    const int interval = whole ? static_cast<int>(window.mcus) : header.restart_interval_mcus;
    if (file_row > 0 && (window.first_row < file_row || whole || window.columns % interval != 0)) return false;
    const int last_needed = (window.end_row - 1) * window.columns + window.end_column - 1;
    const size_t first = static_cast<size_t>(file_row * window.columns / interval);
    const size_t end = static_cast<size_t>(last_needed / interval) + 1;
    if (whole) {
        segments_.assign(1, {header.entropy_offset, file.size()});
    } else if (find_segments(file, header.entropy_offset, first, end - first, segments_) != MarkerScan::complete) {
        return false;
    }
    lap.add_to(&StageTimes::markers);

    tasks_.clear();
    size_t capacity = kReadAheadBytes;
    for (size_t s = first; s < end; ++s) {
        const int first_mcu = static_cast<int>(s) * interval;
        const int end_mcu =
            static_cast<int>(std::min<int64_t>(window.mcus, static_cast<int64_t>(first_mcu) + interval));
        // The last MCU of the segment that is needed, if any.
        const int last_row = std::min((end_mcu - 1) / window.columns, window.end_row - 1);
        int last_wanted = -1;
        for (int row = last_row; row >= std::max(first_mcu / window.columns, window.first_row) && last_wanted < 0;
             --row) {
            const int begin = std::max(first_mcu, row * window.columns + window.first_column);
            const int end = std::min(end_mcu, row * window.columns + window.end_column);
            if (begin < end) last_wanted = end - 1;
        }
        if (last_wanted < 0) continue;
        const bool to_the_end = last_wanted + 1 == end_mcu && end_mcu != window.mcus;
        tasks_.push_back({s - first, 0, first_mcu, last_wanted + 1, !to_the_end});
        capacity += segments_[s - first].end - segments_[s - first].begin;
    }
    if (unstuffed_.capacity() < capacity) {
        if (!unstuffed_.reserve(capacity + capacity / 2)) return false;
        std::memset(unstuffed_.data(), 0, unstuffed_.capacity());  // bytes read ahead are then initialized
    }
    size_t offset = 0;
    for (Task& task : tasks_) {
        const Segment& segment = segments_[task.offset];
        size_t stopped_at = 0;
        task.bytes = unstuff(file, segment.begin, segment.end, unstuffed_.data() + offset, stopped_at);
        if (!whole && stopped_at != segment.end) return false;
        task.offset = offset;
        offset += task.bytes;
    }
    lap.add_to(&StageTimes::unstuff);
    return true;
}

// Starts a run: MCUs of one row from lane.mcu on, all needed or all not, as many as fit into the lane's blocks.
void BaselineDecoder::start_run(const EntropyKernels& kernels, Lane& lane, const Window& window) {
    const int row = lane.row, column = lane.column;
    int end = window.columns;
    lane.wanted = row >= window.first_row && column >= window.first_column && column < window.end_column;
    if (lane.wanted) {
        end = std::min(window.end_column, column + kRunBlocks / plan_.blocks);
    } else if (row >= window.first_row && column < window.first_column) {
        end = window.first_column;
    }
    lane.run_mcus = std::min(end - column, lane.task->end_mcu - lane.mcu);
    EntropyStream& stream = lane.stream;
    stream.block = lane.blocks;
    stream.last = lane.last;
    stream.step = lane.wanted ? 1 : 0;
    stream.mcus_left = lane.run_mcus;
    kernels.begin_run(stream, plan_);
}

// Whole bytes left over before a restart marker mean that the segment is damaged.
bool BaselineDecoder::at_end(const Lane& lane) const {
    return lane.task->may_have_rest || lane.stream.end_bit - lane.stream.position() < 8;
}

// False if a DC prediction is absurdly large: libjpeg's versions differ in their treatment of one that wraps.
bool BaselineDecoder::sane(const EntropyStream& stream) const {
    bool sane = true;
    for (const unsigned prediction : stream.dc) sane = sane && prediction + kMostPrediction <= 2 * kMostPrediction;
    return sane;
}

// Decodes the tasks, kStreams at a time, and calls take() for every run that is needed.
template <typename Take>
bool BaselineDecoder::decode_tasks(const EntropyKernels& kernels, const Window& window, const Take& take, Lap& lap) {
    Lane* lanes[kStreams];
    EntropyStream* streams[kStreams];
    int active = 0;
    size_t next = 0;
    const auto start_task = [&](Lane& lane) {
        lane.task = &tasks_[next++];
        lane.mcu = lane.task->first_mcu;
        lane.row = lane.mcu / window.columns;
        lane.column = lane.mcu % window.columns;
        lane.stream.open(unstuffed_.data() + lane.task->offset, 8 * static_cast<int64_t>(lane.task->bytes));
        start_run(kernels, lane, window);
    };
    for (Lane& lane : lanes_) {
        if (next == tasks_.size()) break;
        start_task(lane);
        lanes[active] = &lane;
        streams[active++] = &lane.stream;
    }
    bool good = true;
    while (active > 0 && good) {
        int over = 0;
        while (over < active && !streams[over]->bad) ++over;  // already in its first block
        if (over == active) over = (plan_.has_pairs ? kernels.run_pairs : kernels.run[active - 1])(streams, plan_);
        lap.add_to(&StageTimes::entropy);
        Lane& lane = *lanes[over];
        if (lane.stream.bad || !sane(lane.stream)) {
            good = false;
            break;
        }
        if (lane.wanted) {
            take(lane);
            lap.add_to(&StageTimes::idct);
        } else {
            std::memset(lane.blocks[0], 0, sizeof(lane.blocks[0]));  // which took the coefficients not needed
        }
        lane.mcu += lane.run_mcus;
        lane.column += lane.run_mcus;
        if (lane.column == window.columns) {
            lane.column = 0;
            ++lane.row;
        }
        if (lane.mcu < lane.task->end_mcu) {
            start_run(kernels, lane, window);
        } else if (!at_end(lane)) {
            good = false;
        } else if (next < tasks_.size()) {
            start_task(lane);
        } else {
            --active;
            std::swap(lanes[over], lanes[active]);
            std::swap(streams[over], streams[active]);
        }
    }
    if (!good) {
        for (Lane& lane : lanes_) std::memset(lane.blocks, 0, sizeof(lane.blocks));
    }
    return good;
}

// Makes the blocks of a run zero again.
void BaselineDecoder::clear_run(Lane& lane) const {
    std::memset(lane.blocks, 0, sizeof(lane.blocks[0]) * static_cast<size_t>(lane.run_mcus * plan_.blocks));
}

// The reduced inverse DCT of a run.
void BaselineDecoder::transform_reduced(const JpegHeader& header, const Window& window, const Lane& lane,
                                        const Planes& planes, int shrink) {
    const int edge = 8 / shrink;
    const ptrdiff_t row = lane.row - window.first_row, column = lane.column - window.first_column;
    const int16_t(*block)[64] = lane.blocks;
    for (int m = 0; m < lane.run_mcus; ++m) {
        for (int i = 0; i < header.components; ++i) {
            const JpegComponent& component = header.component[i];
            const ptrdiff_t stride = planes.plane[i].stride_bytes;
            uint8_t* const out = const_cast<uint8_t*>(planes.plane[i].data) + row * edge * component.v * stride +
                                 (column + m) * component.h * edge;
            for (int v = 0; v < component.v; ++v)
                for (int h = 0; h < component.h; ++h)
                    reduced_idct(*block++, CoefficientOrder::natural, quant_[i], shrink,
                                 out + edge * (v * stride + h), stride);
        }
    }
}

// The inverse DCT of a run.
void BaselineDecoder::transform(const JpegHeader& header, const Window& window, Lane& lane, const Planes& planes) {
    const int row = lane.row - window.first_row, column = lane.column - window.first_column;
    // Sorted into flat ones, corners and others, without a branch on the kind. 16 bits of `ends` for each kind.
    constexpr uint64_t kBegins = uint64_t{kRunBlocks} << 16 | uint64_t{2 * kRunBlocks} << 32;
    IdctBlock sorted[3 * kRunBlocks];
    uint64_t ends = kBegins;
    int first = 0;  // block of the component in its MCU
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        const Plane& plane = planes.plane[i];
        const ptrdiff_t stride = plane.stride_bytes;
        uint8_t* const top = const_cast<uint8_t*>(plane.data) + static_cast<ptrdiff_t>(row) * 8 * component.v * stride;
        for (int m = 0; m < lane.run_mcus; ++m) {
            int block = m * plan_.blocks + first;
            for (int v = 0; v < component.v; ++v) {
                for (int h = 0; h < component.h; ++h, ++block) {
                    const IdctBlock target = {lane.blocks[block],
                                              top + 8 * v * stride + 8 * ((column + m) * component.h + h)};
                    const int last = lane.last[block];
                    const int at = 16 * ((last > 0) + (last >= kCornerEnd));
                    sorted[ends >> at & 0xFFFF] = target;
                    ends += uint64_t{1} << at;
                }
            }
        }
        first += component.h * component.v;
        // Both chroma components together: their tables and strides are nearly always the same.
        if (i + 1 < header.components && planes.plane[i + 1].stride_bytes == stride &&
            std::memcmp(quant_[i], quant_[i + 1], sizeof(quant_[i])) == 0) {
            continue;
        }
        const IdctBlock* const corners = sorted + kRunBlocks;
        const IdctBlock* const others = corners + kRunBlocks;
        const auto end_of = [&](int kind) { return static_cast<int>(ends >> (16 * kind) & 0xFFFF); };
        transform_.full(idct_kernels(), others, end_of(2) - 2 * kRunBlocks, quant_[i], stride);
        transform_.corner(idct_kernels(), corners, end_of(1) - kRunBlocks, quant_[i], stride);
        for (int n = 0; n < end_of(0); ++n) transform_.flat(sorted[n].coefficients[0], sorted[n].out, quant_[i], stride);
        ends = kBegins;
    }
}

bool BaselineDecoder::decode(ByteSpan file, const JpegHeader& original, const PixelBox& box, int file_row,
                             Bytes& pixels, Planes& planes, StageTimes* times, int shrink) {
    Lap lap(times);
    ColorModel color;
    JpegHeader header;
    if (!transform_.ready() || !color_model(original, color).ok() || !prepare(file, original, header)) return false;
    lap.add_to(&StageTimes::tables);

    const PixelBox pixel_window = mcu_window(header, box);
    if (!lay_out_planes(header, pixel_window, color, shrink, pixels, planes)) return false;
    const McuGrid grid = mcu_grid(header);
    Window window;
    window.columns = grid.columns;
    window.first_column = pixel_window.left / grid.mcu_width_px;
    window.end_column = (pixel_window.right + grid.mcu_width_px - 1) / grid.mcu_width_px;
    window.first_row = pixel_window.top / grid.mcu_height_px;
    window.end_row = (pixel_window.bottom + grid.mcu_height_px - 1) / grid.mcu_height_px;
    window.mcus = static_cast<int64_t>(grid.columns) * grid.rows;
    if (!plan_tasks(file, header, window, file_row, lap)) return false;
    const auto take = [&](Lane& lane) {
        if (shrink == 1) {
            transform(header, window, lane, planes);
        } else {
            transform_reduced(header, window, lane, planes, shrink);
        }
        clear_run(lane);
    };
    return decode_tasks(entropy_kernels(CoefficientOrder::natural), window, take, lap);
}

int64_t BaselineDecoder::read_coefficients(ByteSpan file, const JpegHeader& original, int16_t* coefficients) {
    Lap lap(nullptr);
    JpegHeader header;
    if (!prepare(file, original, header)) return -1;
    const McuGrid grid = mcu_grid(header);
    Window window;
    window.columns = window.end_column = grid.columns;
    window.end_row = grid.rows;
    window.mcus = static_cast<int64_t>(grid.columns) * grid.rows;
    if (!plan_tasks(file, header, window, 0, lap)) return -1;
    const auto take = [&](Lane& lane) {
        const size_t count = static_cast<size_t>(lane.run_mcus) * static_cast<size_t>(plan_.blocks);
        if (coefficients != nullptr) {
            const size_t first = static_cast<size_t>(lane.mcu) * static_cast<size_t>(plan_.blocks);
            std::memcpy(coefficients + 64 * first, lane.blocks, count * sizeof(lane.blocks[0]));
        }
        clear_run(lane);
    };
    const EntropyKernels& kernels = entropy_kernels(CoefficientOrder::zigzag);
    return decode_tasks(kernels, window, take, lap) ? window.mcus * plan_.blocks : -1;
}

}  // namespace feeder
