#include "cpu/jpeg/baseline.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <new>

#include "cpu/jpeg/idct.h"
#include "cpu/jpeg/reduced_idct.h"
#include "cpu/jpeg/unstuff.h"

namespace feeder {
namespace {

// A run of MCUs changes a DC prediction by less than this, so a prediction beyond it has not wrapped yet.
constexpr unsigned kMostPrediction = 1u << 30;

constexpr size_t kFewWide = 10;  // tasks from which on wide decoding pays

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

void BaselineDecoder::Run::start(const Task& started, const Window& window) {
    task = &started;
    mcu = started.first_mcu;
    row = mcu / window.columns;
    column = mcu % window.columns;
}

void BaselineDecoder::Run::next(const Window& window, int most_wanted) {
    int end = window.columns;
    wanted = row >= window.first_row && column >= window.first_column && column < window.end_column;
    if (wanted) {
        end = std::min(window.end_column, column + most_wanted);
    } else if (row >= window.first_row && column < window.first_column) {
        end = window.first_column;
    }
    mcus = std::min(end - column, task->end_mcu - mcu);
}

void BaselineDecoder::Run::next_whole(const Window& window, int most) {
    mcus = std::min({window.columns - column, task->end_mcu - mcu, most});
    wanted = row >= window.first_row && column < window.end_column && column + mcus > window.first_column;
}

bool BaselineDecoder::Run::pass(const Window& window) {
    mcu += mcus;
    column += mcus;
    if (column == window.columns) {
        column = 0;
        ++row;
    }
    return mcu < task->end_mcu;
}

void BaselineDecoder::start_run(const EntropyKernels& kernels, Lane& lane, const Window& window) {
    lane.run.next(window, kRunBlocks / plan_.blocks);
    EntropyStream& stream = lane.stream;
    stream.block = lane.blocks;
    stream.last = lane.last;
    stream.step = lane.run.wanted ? 1 : 0;
    stream.mcus_left = lane.run.mcus;
    kernels.begin_run(stream, plan_);
}

void BaselineDecoder::start_run(WideStreams& streams, int lane, Run& run, const Window& window) {
    run.next_whole(window, WideStreams::kRunBlocks / plan_.blocks);
    streams.start(lane, run.mcus * plan_.blocks);
}

namespace {

// Whole bytes left over before a restart marker mean that the segment is damaged.
bool is_whole(bool may_have_rest, int64_t rest_bits) { return may_have_rest || rest_bits < 8; }

// False if a DC prediction is absurdly large: libjpeg's versions differ in their treatment of one that wraps.
bool are_sane(const unsigned (&predictions)[4]) {
    bool sane = true;
    for (const unsigned prediction : predictions) sane = sane && prediction + kMostPrediction <= 2 * kMostPrediction;
    return sane;
}

}  // namespace

// Decodes the tasks, kStreams at a time, and calls take() for every run that is needed.
template <typename Take>
bool BaselineDecoder::decode_tasks(const EntropyKernels& kernels, const Window& window, const Take& take, Lap& lap) {
    Lane* lanes[kStreams];
    EntropyStream* streams[kStreams];
    int active = 0;
    size_t next = 0;
    const auto start_task = [&](Lane& lane) {
        const Task& task = tasks_[next++];
        lane.run.start(task, window);
        lane.stream.open(unstuffed_.data() + task.offset, 8 * static_cast<int64_t>(task.bytes));
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
        if (lane.stream.bad || !are_sane(lane.stream.dc)) {
            good = false;
            break;
        }
        if (lane.run.wanted) {
            take(lane.run, lane.blocks, lane.last);
            std::memset(lane.blocks, 0, sizeof(lane.blocks[0]) * static_cast<size_t>(lane.run.mcus * plan_.blocks));
            lap.add_to(&StageTimes::idct);
        } else {
            std::memset(lane.blocks[0], 0, sizeof(lane.blocks[0]));  // which took the coefficients not needed
        }
        if (lane.run.pass(window)) {
            start_run(kernels, lane, window);
        } else if (!is_whole(lane.run.task->may_have_rest, lane.stream.end_bit - lane.stream.position())) {
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

// Makes the memory of wide decoding at its first use. False: there is none.
bool BaselineDecoder::open_wide() {
    if (!wide_) {
        wide_.reset(new (std::nothrow) Wide());
        if (!wide_) return false;
        for (auto& memory : wide_->streams.memory) std::fill(memory + WideStreams::kLasts, std::end(memory), int16_t{63});
    }
    return true;
}

WidePlan BaselineDecoder::wide_plan() {
    WidePlan plan;
    plan.blocks = plan_.blocks;
    plan.tables = wide_->tables[0].lookup;
    plan.bytes = unstuffed_.data();
    const auto add = [&](const HuffmanCodes& codes, CodeTable& table, bool is_dc, int32_t& index) {
        table.build(codes, is_dc);
        index = static_cast<int32_t>(table.lookup - plan.tables);
        return &codes;
    };
    for (int i = 0; i < plan_.blocks; ++i) {
        const McuPlan::Block& block = plan_.block[i];
        plan.dc_codes[i] = add(block.dc->codes, wide_->tables[block.dc - dc_tables_], true, plan.dc[i]);
        plan.ac_codes[i] = add(block.ac->codes, wide_->tables[4 + (block.ac - ac_tables_)], false, plan.ac[i]);
    }
    return plan;
}

// The same as decode_tasks() by a kernel that decodes many at a time.
template <typename Take>
bool BaselineDecoder::decode_wide(WideDecode decode, const Window& window, const Take& take, Lap& lap) {
    WideStreams& streams = wide_->streams;
    const WidePlan plan = wide_plan();
    size_t next = 0;
    const auto start_task = [&](int lane) {
        Run& run = wide_->run[lane];
        const Task& task = tasks_[next++];
        run.start(task, window);
        streams.open(lane, task.offset, task.offset + task.bytes);
        std::fill_n(wide_->dc[lane], 4, 0u);
        start_run(streams, lane, run, window);
        streams.active |= 1u << lane;
    };
    streams.active = 0;
    for (int lane = 0; lane < WideStreams::kLanes; ++lane) {
        streams.clear(lane);
        if (next < tasks_.size()) start_task(lane);
    }
    bool good = true;
    while (streams.active != 0 && good) {
        uint32_t over = decode(streams, plan);
        lap.add_to(&StageTimes::entropy);
        good = !streams.bad;
        for (; over != 0 && good; over &= over - 1) {
            const int lane = __builtin_ctz(over);
            Run& run = wide_->run[lane];
            const Task& task = *run.task;
            const int count = run.mcus * plan_.blocks;
            auto* const blocks = reinterpret_cast<int16_t(*)[64]>(streams.memory[lane]);
            int16_t* const found = streams.memory[lane] + WideStreams::kLasts;
            uint8_t last[WideStreams::kRunBlocks];
            unsigned(&dc)[4] = wide_->dc[lane];
            for (int m = 0, n = 0; m < run.mcus; ++m) {
                for (int i = 0; i < plan_.blocks; ++i, ++n) {
                    unsigned& prediction = dc[plan_.block[i].component];
                    prediction += static_cast<unsigned>(int{blocks[n][0]});
                    blocks[n][0] = static_cast<int16_t>(prediction);
                }
            }
            for (int n = 0; n < count; ++n) last[n] = static_cast<uint8_t>(found[n]);
            std::fill_n(found, count, int16_t{63});
            const int64_t rest_bits = 8 * static_cast<int64_t>(task.offset + task.bytes) - streams.position(lane);
            good = are_sane(dc) && rest_bits >= 0;
            if (good && run.wanted) {
                Run part = run;
                part.column = std::max(run.column, window.first_column);
                part.mcus = std::min(run.column + run.mcus, window.end_column) - part.column;
                const int first = (part.column - run.column) * plan_.blocks;
                take(part, blocks + first, last + first);
            }
            std::memset(blocks, 0, sizeof(blocks[0]) * static_cast<size_t>(count));
            lap.add_to(&StageTimes::idct);
            if (run.pass(window)) {
                start_run(streams, lane, run, window);
            } else if (!is_whole(task.may_have_rest, rest_bits)) {
                good = false;
            } else if (next < tasks_.size()) {
                start_task(lane);
            } else {
                streams.active &= ~(1u << lane);
                streams.clear(lane);
            }
        }
    }
    if (!good) wide_.reset();
    return good;
}

// The reduced inverse DCT of a run.
void BaselineDecoder::transform_reduced(const JpegHeader& header, const Window& window, const Run& run,
                                        const int16_t (*block)[64], const Planes& planes, int shrink) {
    const int edge = 8 / shrink;
    const ptrdiff_t row = run.row - window.first_row, column = run.column - window.first_column;
    for (int m = 0; m < run.mcus; ++m) {
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
void BaselineDecoder::transform(const JpegHeader& header, const Window& window, const Run& run, int16_t (*blocks)[64],
                                const uint8_t* lasts, const Planes& planes) {
    const int row = run.row - window.first_row, column = run.column - window.first_column;
    // Sorted into flat ones, corners and others, without a branch on the kind. 16 bits of `ends` for each kind.
    constexpr int kMost = std::max(kRunBlocks, WideStreams::kRunBlocks);
    constexpr uint64_t kBegins = uint64_t{kMost} << 16 | uint64_t{2 * kMost} << 32;
    IdctBlock sorted[3 * kMost];
    uint64_t ends = kBegins;
    int first = 0;  // block of the component in its MCU
    for (int i = 0; i < header.components; ++i) {
        const JpegComponent& component = header.component[i];
        const Plane& plane = planes.plane[i];
        const ptrdiff_t stride = plane.stride_bytes;
        uint8_t* const top = const_cast<uint8_t*>(plane.data) + static_cast<ptrdiff_t>(row) * 8 * component.v * stride;
        for (int m = 0; m < run.mcus; ++m) {
            int block = m * plan_.blocks + first;
            for (int v = 0; v < component.v; ++v) {
                for (int h = 0; h < component.h; ++h, ++block) {
                    const IdctBlock target = {blocks[block],
                                              top + 8 * v * stride + 8 * ((column + m) * component.h + h)};
                    const int last = lasts[block];
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
        const IdctBlock* const corners = sorted + kMost;
        const IdctBlock* const others = corners + kMost;
        const auto end_of = [&](int kind) { return static_cast<int>(ends >> (16 * kind) & 0xFFFF); };
        transform_.full(idct_kernels(), others, end_of(2) - 2 * kMost, quant_[i], stride);
        transform_.corner(idct_kernels(), corners, end_of(1) - kMost, quant_[i], stride);
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
    const auto take = [&](const Run& run, int16_t(*blocks)[64], const uint8_t* last) {
        if (shrink == 1) {
            transform(header, window, run, blocks, last, planes);
        } else {
            transform_reduced(header, window, run, blocks, planes, shrink);
        }
    };
    if (const WideDecode decode = wide_decode(); decode != nullptr && tasks_.size() >= kFewWide && open_wide())
        return decode_wide(decode, window, take, lap);
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
    const auto take = [&](const Run& run, int16_t(*blocks)[64], const uint8_t*) {
        const size_t count = static_cast<size_t>(run.mcus) * static_cast<size_t>(plan_.blocks);
        if (coefficients != nullptr) {
            const size_t first = static_cast<size_t>(run.mcu) * static_cast<size_t>(plan_.blocks);
            std::memcpy(coefficients + 64 * first, blocks, count * sizeof(blocks[0]));
        }
    };
    const EntropyKernels& kernels = entropy_kernels(CoefficientOrder::zigzag);
    return decode_tasks(kernels, window, take, lap) ? window.mcus * plan_.blocks : -1;
}

}  // namespace feeder
