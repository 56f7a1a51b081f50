#include "cpu/resize/coefficients.h"

#include <algorithm>
#include <cmath>

namespace feeder {
namespace {

constexpr int32_t kExactLowMask = (1 << kExactLowBits) - 1;

// True where no sample is missing at the sides.
bool is_inner(int begin, int count, int last) { return begin >= 2 && (begin + count + 1) / 2 <= last; }

// One output of compose_filter(), whatever the upsampling is.
void compose_output(const Filter& full, int replicate, int factor, bool smooth, int last, int i, Filter& composed) {
    const int begin = full.first[static_cast<size_t>(i)];
    const int count = full.count[static_cast<size_t>(i)];
    for (int x = 0; x < composed.capacity(); ++x) composed.weight(i, x) = 0.0;
    int position = begin / replicate, phase = begin % replicate;
    // The neighbours of the first and last sample are included here, with or without a weight.
    const int side = smooth ? 1 : 0;
    const int low = std::clamp(position / factor - side, 0, last);
    const int high = std::clamp((begin + count - 1) / (replicate * factor) + side, low, last);
    for (int x = 0; x < count; ++x) {
        const double weight = full.weight(i, x);
        if (smooth) {
            const int center = std::min(position / 2, last);
            const int neighbour = std::clamp(center + (position % 2 ? 1 : -1), 0, last);
            composed.weight(i, center - low) += 0.75 * weight;
            composed.weight(i, neighbour - low) += 0.25 * weight;
        } else {
            composed.weight(i, std::min(position, last) - low) += weight;
        }
        if (++phase == replicate) {
            phase = 0;
            ++position;
        }
    }
    composed.first[static_cast<size_t>(i)] = low;
    composed.count[static_cast<size_t>(i)] = high - low + 1;
}

}  // namespace

void Filter::reset(int outputs, int capacity) {
    outputs_ = outputs;
    capacity_ = capacity;
    const size_t lanes = static_cast<size_t>((outputs + kFilterLanes - 1) / kFilterLanes * kFilterLanes);
    const size_t padding = static_cast<size_t>(kFilterPadding) * lanes;
    first.resize(lanes);
    count.resize(lanes);
    weight_.resize(2 * padding + static_cast<size_t>(capacity) * lanes);
}

void Filter::pad() {
    const ptrdiff_t padding = static_cast<ptrdiff_t>(kFilterPadding) * lanes();
    std::fill(weight_.begin(), weight_.begin() + padding, 0.0);
    std::fill(weight_.end() - padding, weight_.end(), 0.0);
}

void pillow_filter(ResizeFilter kind, int in_size, float in0, float in1, int outputs, Filter& filter) {
    const double scale = static_cast<double>(in1 - in0) / outputs;
    filter.reset(outputs, static_cast<int>(std::ceil(reach_of(kind) * std::max(scale, 1.0))) * 2 + 1);
    filter.pad();
    filter_kernels().weigh({kind, in_size, in0, scale, outputs}, filter.rows());
}

void place_filter(bool mirrored, int base, Filter& filter) {
    if (!mirrored) {
        for (int32_t& first : filter.first) first += base;
        return;
    }
    for (int i = 0; i < filter.lanes(); ++i) {
        int32_t& first = filter.first[static_cast<size_t>(i)];
        const int32_t count = filter.count[static_cast<size_t>(i)];
        first = base - (first + count - 1);
        for (int x = 0; x < count - 1 - x; ++x) std::swap(filter.weight(i, x), filter.weight(i, count - 1 - x));
    }
}

void compose_filter(const Filter& full, const Upsampling& upsampling, int samples, Filter& composed) {
    const bool smooth = upsampling.smooth;
    // Two replications in a row are one.
    const int replicate = smooth ? upsampling.replicate : upsampling.replicate * upsampling.factor;
    const int factor = smooth ? upsampling.factor : 1;
    composed.reset(full.outputs(), full.capacity() / (replicate * factor) + 4);
    const int last = samples - 1;
    const bool vectors = smooth && replicate == 1;
    if (vectors) filter_kernels().compose_smooth(full.rows(), composed.rows());
    for (int i = 0; i < full.lanes(); ++i) {
        if (!vectors || !is_inner(full.first[static_cast<size_t>(i)], full.count[static_cast<size_t>(i)], last))
            compose_output(full, replicate, factor, smooth, last, i, composed);
    }
}

FilterReach TableMaker::round(const Filter& filter, Precision precision) {
    lanes_ = filter.lanes();
    capacity_ = filter.capacity();
    const size_t lanes = static_cast<size_t>(lanes_), padding = kPadding * lanes;
    for (std::vector<int32_t>* each : {&first_, &count_, &skip_, &shift_}) each->resize(lanes);
    value_.resize(2 * padding + static_cast<size_t>(capacity_) * lanes);
    std::fill_n(value_.begin(), padding, 0);
    std::fill_n(value_.end() - static_cast<ptrdiff_t>(padding), padding, 0);
    const bool exact = precision == Precision::exact;
    return filter_kernels().round_weights(filter.rows(), exact ? 1 << kExactBits : 1 << kPlainBits, !exact,
                                          {first_.data(), count_.data(), skip_.data(), value_.data() + padding});
}

template <typename Table>
void TableMaker::pair_up(Precision precision, int pairs, Table& table) {
    const FilterKernels& kernels = filter_kernels();
    const size_t size = static_cast<size_t>(lanes_) * static_cast<size_t>(pairs);
    const ptrdiff_t padding = static_cast<ptrdiff_t>(kPadding) * lanes_;
    const bool exact = precision == Precision::exact;
    table.plain.resize(exact ? 0 : size);
    table.high.resize(exact ? size : 0);
    table.low.resize(exact ? size : 0);
    if (!exact) {
        kernels.pair_values(value_.data() + padding, shift_.data(), lanes_, pairs, table.plain.data());
        return;
    }
    part_.resize(value_.size());
    for (size_t i = 0; i < value_.size(); ++i) part_[i] = value_[i] >> kExactLowBits;
    kernels.pair_values(part_.data() + padding, shift_.data(), lanes_, pairs, table.high.data());
    for (size_t i = 0; i < value_.size(); ++i) part_[i] = value_[i] & kExactLowMask;
    kernels.pair_values(part_.data() + padding, shift_.data(), lanes_, pairs, table.low.data());
}

void TableMaker::rows(const Filter& filter, Precision precision, RowTable& rows) {
    const FilterReach reach = round(filter, precision);
    rows.lanes = lanes_;
    rows.begin = reach.begin;
    rows.end = reach.end;
    rows.first = first_;
    rows.pairs.resize(first_.size());
    int most_pairs = 0;
    for (size_t i = 0; i < first_.size(); ++i) {
        rows.pairs[i] = (count_[i] + 1) / 2;
        most_pairs = std::max(most_pairs, rows.pairs[i]);
        shift_[i] = skip_[i];
    }
    pair_up(precision, most_pairs, rows);
}

void TableMaker::columns(const Filter& filter, Precision precision, bool flip, ColumnTableData& columns) {
    const FilterReach reach = round(filter, precision);
    columns.begin = reach.begin;
    columns.end = reach.end;
    columns.first.resize(first_.size());
    int most_pairs = 1;
    for (size_t i = 0; i < first_.size(); ++i) {
        const int first = first_[i] - reach.begin, odd = first & 1;
        most_pairs = std::max(most_pairs, (odd + count_[i] + 1) / 2);
        columns.first[i] = first >> 1;
        shift_[i] = skip_[i] - odd;
    }
    pair_up(precision, most_pairs, columns);
    if (flip) {
        const ptrdiff_t outputs = filter.outputs();
        std::reverse(columns.first.begin(), columns.first.begin() + outputs);
        for (std::vector<int32_t>* each : {&columns.plain, &columns.high, &columns.low})
            for (auto row = each->begin(); row != each->end(); row += lanes_) std::reverse(row, row + outputs);
    }
    columns.table = {columns.first.data(), columns.plain.data(), columns.high.data(), columns.low.data(), most_pairs,
                     lanes_};
}

}  // namespace feeder
